//! A shard's Raft group on this node: the API that the shard crate sees.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use onceward_core::{
    cluster::{MemberId, NodeId, ShardId},
    codec,
    command::{Command, EntryBatch, Reply},
    rows::{ReadRows, RowsError},
    seams::Clock,
    time::ShardTime,
};
use onceward_storage::{Family, LogWriter, Store, keys};
use onceward_transport::Links;
use openraft::{
    EmptyNode, Instant as _, ReadPolicy, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ClientWriteError, InitializeError, LinearizableReadError, RaftError},
};
use tokio::{sync::watch, task::JoinHandle, time::Instant};

use crate::{
    aside::aside,
    clock::GroupClock,
    config::GroupConfig,
    error::{ConsensusError, ProposeError, ReadError},
    frames::{self, Method},
    incoming::Incoming,
    leadership::{self, Leadership},
    log::Log,
    maintenance, membership,
    network::Network,
    state::{OnMoved, State, StateMachine},
    types::{AppendResponse, Batch, ReplyPort, Types, Vote, member},
};

pub(crate) type Raft = openraft::Raft<Types, StateMachine>;
type OnFatal = Arc<dyn Fn(String) + Send + Sync>;

/// Longest encoded batch. An append request carries one entry besides a bounded rest, and has to fit a peer frame.
const ENTRY_BYTES_MAX: usize = 4 << 20;

/// What a group looks like right now, for status pages and metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    pub leader: Option<MemberId>,
    pub term: u64,
    /// As in [`Leadership::am_leader`].
    pub am_leader: bool,
    pub last_log_index: Option<u64>,
    pub applied_index: Option<u64>,
    pub snapshot_index: Option<u64>,
    pub purged_index: Option<u64>,
    pub voters: BTreeSet<MemberId>,
    pub learners: BTreeSet<MemberId>,
    /// A change of members is under way: two sets of voters have to agree.
    pub joint: bool,
    /// Bytes of entries in the log on this member.
    pub log_bytes: u64,
    /// Rows applied and not yet on their way to the disk.
    pub dirty_rows: usize,
}

/// The hash of a member's state at a named index; equal on all members at the same index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateHash {
    pub applied_index: u64,
    pub hash: String,
}

/// A shard's Raft group on this node. Clones are handles to the same group; it goes on until [`Group::stop`].
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    shard: ShardId,
    me: MemberId,
    raft: Raft,
    log: Log,
    state: Arc<State>,
    clock: Arc<GroupClock>,
    incoming: Incoming,
    leadership: Arc<watch::Sender<Leadership>>,
    /// When a leader's append was accepted last.
    heard: Mutex<Option<Instant>>,
    started: AtomicBool,
    stopping: Arc<AtomicBool>,
    on_fatal: OnFatal,
    config: GroupConfig,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.abort_tasks();
    }
}

impl Inner {
    fn abort_tasks(&self) {
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("no code panics while it holds the tasks"));
        tasks.iter().for_each(JoinHandle::abort);
    }

    fn started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }
}

impl Group {
    /// Opens the group from what is in the store; [`Group::run`] starts it. Whatever calls `on_fatal` later says what
    /// broke and where; the process is expected to end.
    pub async fn open(
        config: GroupConfig,
        store: Arc<dyn Store>,
        writer: LogWriter,
        links: Arc<dyn Links>,
        clock: Arc<dyn Clock>,
        on_fatal: OnFatal,
    ) -> Result<Group, ConsensusError> {
        let (shard, me) = (config.shard, config.me);
        let corrupt_pair = |error: codec::DecodeError| ConsensusError::Corrupt {
            what: format!("the clock pair of shard {shard}"),
            detail: error.to_string(),
        };
        let pair = store.get(Family::RaftMeta, &keys::clock_pair(shard))?;
        let pair = pair.map(|pair| codec::decode(&pair)).transpose().map_err(corrupt_pair)?;
        let clock = Arc::new(GroupClock::new(clock, pair));
        let log = Log::open(shard, me, Arc::clone(&store), writer, Arc::clone(&clock))?;
        let state = Arc::new(State::open(&config, store, log.purged())?);
        let raft = Raft::build(
            me.to_u64(),
            config.raft()?,
            Network::new(shard, me, links, config.timing.clone()),
            log.clone(),
            StateMachine::new(Arc::clone(&state), log.clone(), Arc::clone(&on_fatal)),
        );
        let opening = |detail: String| ConsensusError::Corrupt { what: format!("the group of shard {shard}"), detail };
        let raft = raft.await.map_err(|fatal| opening(fatal.to_string()))?;
        clock.seen(state.clock().map_err(|error| opening(error.to_string()))?);
        let inner = Inner {
            shard,
            me,
            incoming: Incoming::new(state.snapshots()),
            raft,
            log,
            state,
            clock,
            leadership: Arc::default(),
            heard: Mutex::default(),
            started: AtomicBool::new(false),
            stopping: Arc::default(),
            on_fatal,
            config,
            tasks: Mutex::default(),
        };
        Ok(Group { inner: Arc::new(inner) })
    }

    /// Whom to tell of what moves in the state of this member. Once, before the group runs.
    pub fn set_on_moved(&self, on_moved: OnMoved) {
        self.inner.state.set_on_moved(on_moved);
    }

    pub fn shard(&self) -> ShardId {
        self.inner.shard
    }

    pub fn me(&self) -> MemberId {
        self.inner.me
    }

    /// Starts the protocol: from here on this member may campaign, and frames from peers are handled.
    pub fn run(&self) {
        let inner = &self.inner;
        if inner.started.swap(true, Ordering::AcqRel) {
            return;
        }
        inner.raft.run();
        let (shard, on_fatal, stopping) = (inner.shard, Arc::clone(&inner.on_fatal), Arc::clone(&inner.stopping));
        let fatal = move |what: String| {
            if !stopping.load(Ordering::Relaxed) {
                on_fatal(format!("shard {shard}: {what}"));
            }
        };
        let (raft, log, state) = (inner.raft.clone(), inner.log.clone(), Arc::clone(&inner.state));
        let on_end = {
            let fatal = fatal.clone();
            move |end| fatal(format!("Raft has ended: {end}"))
        };
        let follow = leadership::follow(raft.clone(), state.applied_term(), Arc::clone(&inner.leadership), on_end);
        let bound = maintenance::bound_log(raft, log, Arc::clone(&state), inner.config.clone());
        let behind = maintenance::write_behind(state, inner.config.flush_after);
        let mut tasks = inner.tasks.lock().expect("no code panics while it holds the tasks");
        tasks.push(tokio::spawn(follow));
        tasks.push(tokio::spawn({
            let fatal = fatal.clone();
            async move {
                if let Some(error) = bound.await {
                    fatal(error);
                }
            }
        }));
        tasks.push(tokio::spawn(async move { fatal(behind.await) }));
    }

    /// Founds the group with these voters. On one member is enough, and repeating it changes nothing.
    pub async fn initialize(&self, members: BTreeSet<MemberId>) -> Result<(), ConsensusError> {
        self.expect_started()?;
        let stopped = |fatal: openraft::errors::Fatal<Types>| ConsensusError::Stopped(fatal.to_string());
        if self.inner.raft.is_initialized().await.map_err(stopped)? {
            return Ok(());
        }
        let members: BTreeMap<u64, EmptyNode> = members.iter().map(|id| (id.to_u64(), EmptyNode {})).collect();
        match self.inner.raft.initialize(members).await {
            // Meanwhile another member was faster.
            Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
            Err(RaftError::APIError(error @ InitializeError::NotInMembers(_))) => {
                Err(ConsensusError::Config(error.to_string()))
            }
            Err(RaftError::Fatal(fatal)) => Err(stopped(fatal)),
        }
    }

    /// Stamps commands, appends them as one entry and waits until it is applied here. The caller bounds how long it
    /// waits; the entry may still be applied after that.
    pub async fn propose(&self, commands: Vec<Command>) -> Result<Vec<Reply>, ProposeError> {
        let inner = &self.inner;
        let leadership = *inner.leadership.borrow();
        if !leadership.am_leader {
            return Err(ProposeError::NotLeader { hint: leadership.leader.filter(|leader| *leader != inner.me) });
        }
        let stamp = inner.clock.now().ok_or(ProposeError::NoClock)?;
        let data = Batch::new(&EntryBatch { stamp, commands });
        if data.encoded.len() > ENTRY_BYTES_MAX {
            return Err(ProposeError::TooLarge { bytes: data.encoded.len() });
        }
        let (port, outcome) = ReplyPort::new();
        // Another term may have put entries before this one by which the stamp would be ahead of the log.
        if let Err(fatal) = inner.raft.write(data).with_leader(leadership.term).responder(port).await {
            return Err(ProposeError::Unknown(fatal.to_string()));
        }
        // Each variant for itself: both of the first two know a leader, and only one of them is a definite no.
        match outcome.await {
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(ClientWriteError::ForwardToLeader(forward))) => {
                Err(ProposeError::NotLeader { hint: forward.leader_id.map(member) })
            }
            Ok(Err(ClientWriteError::LogEntryDiscarded(_))) => {
                Err(ProposeError::Unknown("the entry gave way to another leader's".to_owned()))
            }
            Ok(Err(error @ (ClientWriteError::ChangeMembershipError(_) | ClientWriteError::PreconditionFailed(_)))) => {
                Err(ProposeError::Unknown(error.to_string()))
            }
            Err(_) => Err(ProposeError::Unknown("the group has stopped".to_owned())),
        }
    }

    /// What proposing these commands now would be answered, if nothing came in between.
    #[cfg(feature = "faults")]
    pub fn foresee(&self, commands: Vec<Command>) -> Option<Vec<Reply>> {
        let stamp = self.inner.clock.now()?;
        self.inner.state.foresee(&EntryBatch { stamp, commands }).ok()
    }

    /// Confirms with a majority that this member leads, and waits until its state covers everything acknowledged
    /// before the call: what is read afterwards is not stale.
    pub async fn read_index(&self) -> Result<(), ReadError> {
        let inner = &self.inner;
        if !inner.started() {
            return Err(ReadError::NotLeader { hint: None });
        }
        let unavailable = |error: &dyn std::fmt::Display| ReadError::Unavailable(error.to_string());
        let confirmed = inner.raft.get_read_linearizer(ReadPolicy::ReadIndex).await.map_err(|error| match error {
            RaftError::APIError(LinearizableReadError::ForwardToLeader(forward)) => {
                ReadError::NotLeader { hint: forward.leader_id.map(member) }
            }
            RaftError::APIError(error @ LinearizableReadError::QuorumNotEnough(_)) => unavailable(&error),
            RaftError::Fatal(fatal) => unavailable(&fatal),
        })?;
        match confirmed.try_await_ready(&inner.raft, Some(inner.config.timing.election_max)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(ReadError::Unavailable("the state lags behind the log".to_owned())),
            Err(fatal) => Err(unavailable(&fatal)),
        }
    }

    /// Reads the applied state, under its lock: be short. Only after [`Group::read_index`] is that not stale.
    pub fn read<R>(&self, f: impl FnOnce(&dyn ReadRows) -> R) -> R {
        self.inner.state.read(f)
    }

    /// The first due time among the shard's rows.
    pub fn next_due(&self) -> Result<Option<ShardTime>, RowsError> {
        self.inner.state.next_due()
    }

    /// The shard clock of the applied state.
    pub fn state_clock(&self) -> Result<ShardTime, RowsError> {
        self.inner.state.clock()
    }

    /// The index of the last applied entry, as it grows.
    pub fn applied_index(&self) -> watch::Receiver<u64> {
        self.inner.state.applied_index_changes()
    }

    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        self.inner.leadership.subscribe()
    }

    /// Whether the leader is known to lead since at most `lease`: on a follower because it accepted something from it,
    /// on the leader because a majority answered it.
    pub fn heard_from_leader_within(&self, lease: Duration) -> bool {
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state == ServerState::Leader {
            let alone = metrics.membership_config.membership().voter_ids().eq([self.inner.me.to_u64()]);
            return alone || metrics.last_quorum_acked.is_some_and(|acked| acked.elapsed() <= lease);
        }
        let heard = *self.inner.heard.lock().expect("no code panics while it holds the time");
        heard.is_some_and(|heard| heard.elapsed() <= lease)
    }

    /// The term of the last entry in the log. A clock that is read after it is no further ahead than the last stamp of
    /// that term allows.
    pub fn last_log_term(&self) -> Option<u64> {
        self.inner.log.last().map(|last| last.leader_id.term)
    }

    /// The index of the last entry in the log, also before the group runs.
    pub fn last_log_index(&self) -> Option<u64> {
        self.inner.log.last().map(|last| last.index)
    }

    /// The shard clock now. It lives once an entry of another leader or a snapshot arrived, or an estimate was adopted,
    /// since the process started.
    pub fn shard_clock(&self) -> Option<ShardTime> {
        self.inner.clock.now()
    }

    /// The shard clock where it lives; otherwise what it may have come to, from what the last process stored.
    pub fn clock_guess(&self) -> ShardTime {
        self.inner.clock.guess()
    }

    /// Starts the clock of a leader that has none: from `stamp`, or from the log's last stamp if that is later.
    pub fn adopt_clock(&self, stamp: ShardTime) {
        self.inner.clock.adopt(stamp);
    }

    /// Answers a frame from another member. `from` is who the link says it is.
    pub async fn handle(&self, from: MemberId, method: u8, body: Bytes) -> Result<Bytes, String> {
        let inner = &self.inner;
        self.expect_started().map_err(|error| error.to_string())?;
        let method = Method::from_u8(method).ok_or_else(|| format!("method {method} is unknown"))?;
        let (target, reader) = frames::open(body).map_err(text)?;
        if target != inner.me {
            return Err(format!("this is member {}, the request is for {target}", inner.me));
        }
        match method {
            Method::Append => {
                let rpc = frames::read_append_request(reader).map_err(text)?;
                expect_sender(from, &rpc.vote)?;
                let response = inner.raft.append_entries(rpc).await.map_err(text)?;
                if !matches!(response, AppendResponse::HigherVote(_)) {
                    *inner.heard.lock().expect("no code panics while it holds the time") = Some(Instant::now());
                }
                Ok(frames::append_response(&response))
            }
            Method::Vote | Method::PreVote => {
                let rpc = frames::read_vote_request(reader).map_err(text)?;
                expect_sender(from, &rpc.vote)?;
                let response = match method {
                    Method::Vote => inner.raft.vote(rpc).await,
                    _ => inner.raft.pre_vote(rpc).await,
                };
                Ok(frames::vote_response(&response.map_err(text)?))
            }
            Method::Transfer => {
                let rpc = frames::read_transfer_request(reader).map_err(text)?;
                expect_sender(from, rpc.from_leader())?;
                let response = inner.raft.handle_transfer_leader(rpc).await.map_err(text)?;
                Ok(frames::transfer_response(&response))
            }
            Method::SnapshotPiece => {
                let piece = frames::read_snapshot_piece(reader).map_err(text)?;
                expect_sender(from, &piece.transfer.vote)?;
                inner.incoming.piece(from, piece).await?;
                Ok(Bytes::new())
            }
            Method::SnapshotInstall => {
                let transfer = frames::read_snapshot_install(reader).map_err(text)?;
                expect_sender(from, &transfer.vote)?;
                self.install(from, transfer).await
            }
        }
    }

    /// Installs what was received. In a task of its own: it goes on when the leader stops waiting for the answer.
    async fn install(&self, from: MemberId, transfer: frames::Transfer) -> Result<Bytes, String> {
        let inner = Arc::clone(&self.inner);
        let install = tokio::spawn(async move {
            let file = inner.incoming.finish(from, &transfer).await?;
            let snapshot = inner.state.raft_snapshot(file).map_err(text)?;
            // openraft takes it for granted that a leader sends nothing from beyond its own term.
            if snapshot.meta.last_log_id.is_some_and(|id| id.leader_id.term > transfer.vote.leader_id.term) {
                return Err("the snapshot is of a later term than its leader".to_owned());
            }
            let response = inner.raft.install_full_snapshot(transfer.vote, snapshot).await.map_err(text)?;
            Ok(frames::snapshot_response(&response.vote))
        });
        install.await.unwrap_or_else(|error| Err(error.to_string()))
    }

    /// Hands leadership to the best follower and waits until it leads. Nothing to do where this member doesn't lead.
    pub async fn handover(&self) -> Result<(), ConsensusError> {
        self.expect_started()?;
        membership::handover(&self.inner.raft, self.inner.me, |_| true).await
    }

    /// Likewise, but only to one of these nodes.
    pub async fn handover_to(&self, nodes: &BTreeSet<NodeId>) -> Result<(), ConsensusError> {
        self.expect_started()?;
        membership::handover(&self.inner.raft, self.inner.me, |member| nodes.contains(&member.node)).await
    }

    /// Makes `new` a member that gets all entries and doesn't vote. Only the leader can; repeating it changes nothing.
    pub async fn add_learner(&self, new: MemberId) -> Result<(), ConsensusError> {
        self.expect_started()?;
        membership::add_learner(&self.inner.raft, new).await
    }

    /// Puts `new` in the place of `old`, as a voter once it has caught up, or as a learner where `old` was one. Only the
    /// leader can; repeating it finishes what was interrupted. It may take as long as sending a snapshot does.
    pub async fn replace_member(&self, old: MemberId, new: MemberId) -> Result<(), ConsensusError> {
        self.expect_started()?;
        membership::replace(&self.inner.raft, old, new).await
    }

    pub fn status(&self) -> GroupStatus {
        let inner = &self.inner;
        let am_leader = inner.leadership.borrow().am_leader;
        let (applied_index, log_bytes, dirty_rows) =
            (inner.state.applied_index(), inner.log.bytes(), inner.state.dirty_rows());
        let metrics = inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let (voters, learners, joint) = membership::members(&metrics);
        GroupStatus {
            leader: metrics.current_leader.map(member),
            term: metrics.current_term,
            am_leader,
            last_log_index: metrics.last_log_index,
            applied_index,
            snapshot_index: metrics.snapshot.map(|id| id.index),
            purged_index: metrics.purged.map(|id| id.index),
            voters,
            learners,
            joint,
            log_bytes,
            dirty_rows,
        }
    }

    /// The hash of the state as it is now, with the index at which it is that. Reads all rows.
    pub async fn state_hash(&self) -> Result<StateHash, ConsensusError> {
        let state = Arc::clone(&self.inner.state);
        let hashed = aside(move || state.hash()).await;
        let (applied_index, hash) = hashed.map_err(|error| ConsensusError::Stopped(error.to_string()))??;
        Ok(StateHash { applied_index, hash })
    }

    /// Asks for a snapshot of what is applied now; it is built meanwhile.
    pub async fn snapshot_now(&self) -> Result<(), ConsensusError> {
        self.expect_started()?;
        let asked = self.inner.raft.trigger().snapshot().await;
        asked.map_err(|fatal| ConsensusError::Stopped(fatal.to_string()))
    }

    /// Ends the protocol and writes what is applied, so that the next start is quick. Hand leadership over before.
    pub async fn stop(&self) {
        let inner = &self.inner;
        inner.stopping.store(true, Ordering::Relaxed);
        // It joins openraft's task, whose own errors were told when they happened.
        drop(inner.raft.shutdown().await);
        inner.abort_tasks();
        let state = Arc::clone(&inner.state);
        match aside(move || state.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::warn!(shard = %inner.shard, %error, "applied rows are not written; the log has them")
            }
            Err(error) => {
                tracing::warn!(shard = %inner.shard, %error, "applied rows are not written; the log has them")
            }
        }
        if let Err(error) = inner.log.sync().await {
            tracing::warn!(shard = %inner.shard, %error, "the clock pair is not stored");
        }
    }

    fn expect_started(&self) -> Result<(), ConsensusError> {
        if self.inner.started() {
            return Ok(());
        }
        Err(ConsensusError::Unavailable(format!("the group of shard {} isn't started", self.inner.shard)))
    }
}

/// A vote names who campaigns or leads; nobody speaks for another.
fn expect_sender(from: MemberId, vote: &Vote) -> Result<(), String> {
    if vote.leader_id.voted_for == from.to_u64() {
        return Ok(());
    }
    Err(format!("member {from} sends what is member {}'s", member(vote.leader_id.voted_for)))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
