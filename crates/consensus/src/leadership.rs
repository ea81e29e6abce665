//! Who leads, as the rest of the node needs to know it; and noticing that openraft has ended.

use std::sync::Arc;

use onceward_core::cluster::MemberId;
use openraft::{ServerState, async_runtime::watch::WatchReceiver};
use tokio::sync::watch;

use crate::{
    group::Raft,
    types::{Types, member},
};

/// Who leads a group, as far as this member knows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The last leader heard of. After a partition this may be long out of date: see
    /// [`Group::heard_from_leader_within`](crate::Group::heard_from_leader_within).
    pub leader: Option<MemberId>,
    pub term: u64,
    /// This member leads, and its own first entry of the term is applied: its state covers everything acknowledged.
    pub am_leader: bool,
}

/// Keeps the leadership up to date until openraft ends, which it only does when it was told to or met a fatal error.
pub(crate) async fn follow(
    raft: Raft,
    mut applied_term: watch::Receiver<u64>,
    leadership: Arc<watch::Sender<Leadership>>,
    on_end: impl FnOnce(String),
) {
    let mut server = raft.server_metrics();
    loop {
        let now = {
            let server = server.borrow_watched();
            let term = server.vote.leader_id.term;
            // All entries of the own term are the own ones: the first one applied says that they begin to be.
            let am_leader = server.state == ServerState::Leader && *applied_term.borrow_and_update() == term;
            Leadership { leader: server.current_leader.map(member), term, am_leader }
        };
        leadership.send_if_modified(|last| std::mem::replace(last, now) != now);
        tokio::select! {
            changed = WatchReceiver::changed(&mut server) => if changed.is_err() { break },
            changed = applied_term.changed() => if changed.is_err() { break },
        }
    }
    leadership.send_modify(|last| last.am_leader = false);
    on_end(end_of(&raft));
}

/// What openraft says about its end.
pub(crate) fn end_of(raft: &openraft::Raft<Types, crate::state::StateMachine>) -> String {
    match &raft.metrics().borrow_watched().running_state {
        Ok(()) => "its task ended without a word".to_owned(),
        Err(fatal) => fatal.to_string(),
    }
}
