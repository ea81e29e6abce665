//! Changing who is in a group, and handing leadership over.

use std::{collections::BTreeSet, time::Duration};

use onceward_core::cluster::MemberId;
use openraft::{
    ChangeMembers, EmptyNode, RaftMetrics, ServerState,
    async_runtime::watch::WatchReceiver,
    errors::{ChangeMembershipError, ClientWriteError, RaftError},
};
use tokio::time::{Instant, timeout};

use crate::{
    error::ConsensusError,
    group::Raft,
    types::{Types, member},
};

/// A new member may vote when it lacks no more entries than this: it has them within a round trip or two.
const CAUGHT_UP_ENTRIES: u64 = 64;
/// A new member that makes no progress for so long is given up for now.
const NO_PROGRESS_MAX: Duration = Duration::from_secs(60);
/// A handover is tried again after this time, with the follower that is the best then.
const HANDOVER_ATTEMPT: Duration = Duration::from_millis(1000);
/// A handover takes an election, a few milliseconds on a quiet node.
const HANDOVER_MAX: Duration = Duration::from_secs(5);

/// Voters and learners of the effective membership.
pub(crate) fn members(metrics: &RaftMetrics<Types>) -> (BTreeSet<MemberId>, BTreeSet<MemberId>, bool) {
    let membership = metrics.membership_config.membership();
    let voters: BTreeSet<MemberId> = membership.voter_ids().map(member).collect();
    let learners = membership.learner_ids().map(member).collect();
    (voters, learners, membership.get_joint_config().len() > 1)
}

/// Makes `new` a learner; nothing to do where it is a member already.
pub(crate) async fn add_learner(raft: &Raft, new: MemberId) -> Result<(), ConsensusError> {
    let (voters, learners, _) = members(&raft.metrics().borrow_watched());
    if voters.contains(&new) || learners.contains(&new) {
        return Ok(());
    }
    raft.add_learner(new.to_u64(), EmptyNode {}, false).await.map(drop).map_err(change_failed)
}

/// Puts `new` in the place of `old`: as a voter if that was one, after it has caught up; `old` is out then. Repeating
/// it changes nothing, and finishes what was interrupted.
pub(crate) async fn replace(raft: &Raft, old: MemberId, new: MemberId) -> Result<(), ConsensusError> {
    let (voters, learners, joint) = members(&raft.metrics().borrow_watched());
    let has_old = voters.contains(&old) || learners.contains(&old);
    if !has_old && !joint && (voters.contains(&new) || learners.contains(&new)) {
        return Ok(());
    }
    add_learner(raft, new).await?;
    let change = if voters.contains(&old) {
        catch_up(raft, new).await?;
        let (voters, _, _) = members(&raft.metrics().borrow_watched());
        let wanted = voters.into_iter().filter(|voter| *voter != old).chain([new]);
        ChangeMembers::ReplaceAllVoters(wanted.map(MemberId::to_u64).collect())
    } else if learners.contains(&old) {
        ChangeMembers::RemoveNodes([old.to_u64()].into())
    } else {
        return Ok(());
    };
    raft.change_membership(change, false).await.map(drop).map_err(change_failed)
}

/// Waits until `new` lacks only a few entries.
async fn catch_up(raft: &Raft, new: MemberId) -> Result<(), ConsensusError> {
    let mut metrics = raft.metrics();
    let mut best = None;
    let mut progressed = Instant::now();
    loop {
        {
            let now = metrics.borrow_watched();
            let Some(replication) = &now.replication else {
                return Err(ConsensusError::NotLeader { hint: now.current_leader.map(member) });
            };
            let matched = replication.get(&new.to_u64()).and_then(|matched| matched.as_ref().map(|id| id.index));
            let lacks = now.last_log_index.unwrap_or(0).saturating_sub(matched.unwrap_or(0));
            if matched.is_some() && lacks <= CAUGHT_UP_ENTRIES {
                return Ok(());
            }
            if matched > best {
                best = matched;
                progressed = Instant::now();
            }
        }
        if progressed.elapsed() > NO_PROGRESS_MAX {
            return Err(ConsensusError::TimedOut(format!("member {new} makes no progress in catching up")));
        }
        // Metrics change with every heartbeat at least; the timeout only guards against their end.
        if let Ok(Err(_)) = timeout(NO_PROGRESS_MAX, metrics.changed()).await {
            return Err(ConsensusError::Stopped(crate::leadership::end_of(raft)));
        }
    }
}

fn change_failed(error: RaftError<Types, ClientWriteError<Types>>) -> ConsensusError {
    match error {
        RaftError::Fatal(fatal) => ConsensusError::Stopped(fatal.to_string()),
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => {
            ConsensusError::NotLeader { hint: forward.leader_id.map(member) }
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            error @ (ChangeMembershipError::InProgress(_) | ChangeMembershipError::UncommittedLeaderLog(_)),
        )) => ConsensusError::Unavailable(error.to_string()),
        RaftError::APIError(error) => ConsensusError::Unavailable(format!("changing the members: {error}")),
    }
}

/// Hands leadership to the follower, among those that it may go to, that lacks least and answered last; waits until it leads.
pub(crate) async fn handover(
    raft: &Raft,
    me: MemberId,
    may_lead: impl Fn(MemberId) -> bool,
) -> Result<(), ConsensusError> {
    let deadline = Instant::now() + HANDOVER_MAX;
    let mut server = raft.server_metrics();
    while Instant::now() < deadline {
        if server.borrow_watched().state != ServerState::Leader {
            return Ok(());
        }
        let best = best_follower(&raft.metrics().borrow_watched(), me, &may_lead);
        let Some(best) = best else {
            return Err(ConsensusError::Unavailable("no follower can take over leadership".to_owned()));
        };
        let stopped = |_| ConsensusError::Stopped(crate::leadership::end_of(raft));
        raft.trigger().transfer_leader(best.to_u64()).await.map_err(stopped)?;
        let gone = async {
            while server.borrow_watched().state == ServerState::Leader
                || server.borrow_watched().current_leader.is_none()
            {
                WatchReceiver::changed(&mut server).await.ok()?;
            }
            Some(())
        };
        match timeout(HANDOVER_ATTEMPT, gone).await {
            Ok(Some(())) => return Ok(()),
            Ok(None) => return Err(ConsensusError::Stopped(crate::leadership::end_of(raft))),
            Err(_) => {}
        }
    }
    Err(ConsensusError::TimedOut("handing over leadership".to_owned()))
}

fn best_follower(metrics: &RaftMetrics<Types>, me: MemberId, may_lead: impl Fn(MemberId) -> bool) -> Option<MemberId> {
    let (replication, heard) = (metrics.replication.as_ref()?, metrics.heartbeat.as_ref()?);
    let followers = metrics.membership_config.membership().voter_ids().filter(|id| *id != me.to_u64());
    let followers = followers.filter(|id| may_lead(member(*id)));
    followers
        .filter_map(|id| {
            let answered = (*heard.get(&id)?)?;
            Some((replication.get(&id)?.as_ref()?.index, answered, id))
        })
        .max()
        .map(|(_, _, id)| member(id))
}
