//! openraft's own tests of a storage, on ours: our log over our writer, on the engine and on the simulated disk.

use std::sync::Arc;

use onceward_core::cluster::ShardId;
use onceward_storage::{LogWriter, MemoryStore, RocksStore, Store, StoreOptions};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{RealClock, SlowDisk, config, member};
use crate::{
    clock::GroupClock,
    log::Log,
    state::{State, StateMachine},
    types::Types,
};

struct Builder<S>(S);

impl<S: Fn(&TempDir) -> Arc<dyn Store> + Send + Sync> StoreBuilder<Types, Log, StateMachine, TempDir> for Builder<S> {
    async fn build(&self) -> Result<(TempDir, Log, StateMachine), StorageError<Types>> {
        let dir = tempfile::tempdir().unwrap();
        let store = (self.0)(&dir);
        let writer = LogWriter::start(Arc::clone(&store), Arc::new(|error| panic!("{error}")));
        let clock = Arc::new(GroupClock::new(Arc::new(RealClock(Instant::now())), None));
        // The suite calls its own node 0.
        let mut config = config(member(0, 0), &dir);
        config.shard = ShardId(1);
        let log = Log::open(config.shard, config.me, Arc::clone(&store), writer, clock).unwrap();
        let state = Arc::new(State::open(&config, store, log.purged()).unwrap());
        let machine = StateMachine::new(state, log.clone(), Arc::new(|what| panic!("{what}")));
        Ok((dir, log, machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_storage_does_on_the_engine_what_openraft_asks_of_one() {
    let builder = Builder(|dir: &TempDir| {
        let store = RocksStore::open(&dir.path().join("store"), &StoreOptions::default()).unwrap();
        Arc::new(store) as Arc<dyn Store>
    });
    Suite::test_all(builder).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_storage_does_on_the_simulated_disk_what_openraft_asks_of_one() {
    let builder = Builder(|_: &TempDir| Arc::new(SlowDisk(MemoryStore::new())) as Arc<dyn Store>);
    Suite::test_all(builder).await.unwrap();
}
