//! What a group does on its own: writing applied rows behind, and snapshots and purges by log bytes.
//!
//! openraft counts entries; entries differ a thousandfold in size, so bytes are counted here.

use std::{sync::Arc, time::Duration};

use crate::{
    aside::aside,
    config::GroupConfig,
    group::Raft,
    log::{Extent, Log},
    state::State,
};

/// Writes applied rows behind, some time after the first of them. Ends with an error, which is fatal.
pub(crate) async fn write_behind(state: Arc<State>, after: Duration) -> String {
    loop {
        state.dirty().await;
        tokio::time::sleep(after).await;
        let flushing = Arc::clone(&state);
        match aside(move || flushing.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(error) => return format!("writing rows behind was cut short: {error}"),
        }
    }
}

/// A snapshot of up to this many bytes is taken as often as entries and bytes of the log ask for it.
const SMALL_SNAPSHOT_BYTES: u64 = 16 << 20;

/// Whether the log has grown enough since `asked` for another snapshot, where the last one takes `snapshot_bytes`: by so
/// many entries or bytes as are set, and by as much as the state is large. So writing snapshots never takes more than
/// writing the log does, and the log never takes much more than the state.
fn is_enough(asked: Extent, now: Extent, snapshot_bytes: u64, config: &GroupConfig) -> bool {
    let bytes = now.bytes.saturating_sub(asked.bytes);
    let entries = now.index.saturating_sub(asked.index);
    let wanted = bytes >= config.snapshot_every_bytes || entries >= config.snapshot_every_entries;
    wanted && (snapshot_bytes <= SMALL_SNAPSHOT_BYTES || bytes >= snapshot_bytes)
}

/// Asks for a snapshot once the log has grown enough since the last one, and for a purge once a snapshot leaves more log
/// behind it than is to be kept. Ends when the group does, or with an error, which is fatal.
pub(crate) async fn bound_log(raft: Raft, log: Log, state: Arc<State>, config: GroupConfig) -> Option<String> {
    let mut grown = log.grown();
    let mut snapshot = state.snapshot_index();
    let at_start = *snapshot.borrow();
    let mut asked = match log.bytes_through(at_start) {
        Ok(bytes) => Extent { bytes, index: at_start.unwrap_or(0) },
        Err(error) => return Some(error.to_string()),
    };
    loop {
        let now = *grown.borrow_and_update();
        if is_enough(asked, now, state.snapshot_bytes(), &config) {
            asked = now;
            raft.trigger().snapshot().await.ok()?;
        }
        let index = *snapshot.borrow_and_update();
        if let Some(index) = index
            && log.bytes() > config.keep_bytes
        {
            match log.index_before(index, config.keep_bytes) {
                // It is applied, for it is in a snapshot, so this doesn't race with an apply.
                Ok(Some(through)) => raft.trigger().purge_log(through).await.ok()?,
                Ok(None) => {}
                Err(error) => return Some(error.to_string()),
            }
        }
        // A snapshot may be worth a purge; growth alone is only looked at when it may ask for a snapshot.
        let snapshot_bytes = state.snapshot_bytes();
        let enough = |now: &Extent| is_enough(asked, *now, snapshot_bytes, &config);
        tokio::select! {
            seen = grown.wait_for(enough) => seen.map(drop).ok()?,
            changed = snapshot.changed() => changed.ok()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use onceward_core::cluster::{Generation, MemberId, NodeId, ShardId};

    use super::*;

    #[test]
    fn a_large_state_is_written_anew_only_when_as_much_log_came() {
        let member = MemberId::new(NodeId(1), Generation(0));
        let mut config = GroupConfig::new(ShardId(1), member, std::path::PathBuf::new());
        (config.snapshot_every_bytes, config.snapshot_every_entries) = (1_000, 10);
        let enough = |bytes, index, snapshot_bytes| {
            is_enough(Extent { bytes: 500, index: 5 }, Extent { bytes, index }, snapshot_bytes, &config)
        };
        assert!(!enough(1_499, 14, 0));
        assert!(enough(1_500, 14, 0) && enough(1_499, 15, SMALL_SNAPSHOT_BYTES));
        assert!(!enough(1_500, 15, SMALL_SNAPSHOT_BYTES + 1));
        assert!(enough(500 + SMALL_SNAPSHOT_BYTES + 1, 6, SMALL_SNAPSHOT_BYTES + 1));
    }
}
