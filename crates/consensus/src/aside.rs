//! Work that blocks for long, beside the tasks that drive the protocol.

use tokio::{
    runtime::{Handle, RuntimeFlavor},
    task::{JoinError, spawn_blocking},
};

/// Runs work on a thread for what blocks, so that it holds up nothing else. A runtime of one thread is a simulation's, in
/// which there must be no other: there it runs at once.
pub async fn aside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, JoinError> {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::CurrentThread => Ok(work()),
        _ => spawn_blocking(work).await,
    }
}
