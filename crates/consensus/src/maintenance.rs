//! What a group does on its own: writing applied rows behind, and snapshots and purges by log bytes.
//!
//! openraft counts entries; entries differ a thousandfold in size, so bytes are counted here.

use std::{sync::Arc, time::Duration};

use tokio::task::spawn_blocking;

use crate::{config::GroupConfig, group::Raft, log::Log, state::State};

/// Writes applied rows behind, some time after the first of them. Ends with an error, which is fatal.
pub(crate) async fn write_behind(state: Arc<State>, after: Duration) -> String {
    loop {
        state.dirty().await;
        tokio::time::sleep(after).await;
        let flushing = Arc::clone(&state);
        match spawn_blocking(move || flushing.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.to_string(),
            Err(error) => return format!("writing rows behind was cut short: {error}"),
        }
    }
}

/// Asks for a snapshot once the log has grown by so many bytes since the last one, and for a purge once a snapshot
/// leaves more log behind it than is to be kept. Ends when the group does, or with an error, which is fatal.
pub(crate) async fn bound_log(raft: Raft, log: Log, state: Arc<State>, config: GroupConfig) -> Option<String> {
    let mut grown = log.grown();
    let mut snapshot = state.snapshot_index();
    let at_start = *snapshot.borrow();
    let mut asked_at = match log.bytes_through(at_start) {
        Ok(bytes) => bytes,
        Err(error) => return Some(error.to_string()),
    };
    loop {
        let bytes = *grown.borrow_and_update();
        if bytes.saturating_sub(asked_at) >= config.snapshot_every_bytes {
            asked_at = bytes;
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
        let enough = |bytes: &u64| bytes.saturating_sub(asked_at) >= config.snapshot_every_bytes;
        tokio::select! {
            seen = grown.wait_for(enough) => seen.map(drop).ok()?,
            changed = snapshot.changed() => changed.ok()?,
        }
    }
}
