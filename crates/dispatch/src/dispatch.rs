//! The dispatch of a node: one dispatcher for each of its shards, started again when it dies, and the parts that all share.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::join_all;
use onceward_core::seams::{Clock, Entropy};
use parking_lot::Mutex;
use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SpawnErr, SupervisionEvent};
use tokio::{sync::oneshot, time::timeout};
use tracing::{error, warn};

use crate::{
    attempt::Node,
    bounds::STOP_TIMEOUT,
    config::DispatchConfig,
    dispatcher::{self, DispatcherActor},
    feed::Feed,
    permits::Permits,
    resolve::Resolve,
    sender::{Exchange, Sender},
    stats::{DispatchStats, Stats},
};

/// An actor that dies at every start must not keep a core busy.
const RESTART_DELAY: Duration = Duration::from_millis(100);

/// Delivers what the shards of this node have due, while it leads them.
pub struct Dispatch {
    node: Arc<Node>,
    actors: Actors,
    supervisor: ActorRef<Start>,
}

/// The dispatchers that run now, by their feed's place.
type Actors = Arc<Mutex<BTreeMap<usize, ActorRef<dispatcher::Message>>>>;

/// Dispatch can't begin.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("webhooks: a certificate authority cannot be used: {0}")]
    Tls(#[from] tokio_rustls::rustls::Error),
    #[error("webhooks: {0}")]
    Actor(#[from] SpawnErr),
}

impl Dispatch {
    /// Delivers over HTTP.
    pub async fn start(
        config: DispatchConfig,
        feeds: Vec<Arc<dyn Feed>>,
        resolver: Box<dyn Resolve>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Dispatch, StartError> {
        let sender = Sender::new(config.guard.clone(), config.timeout, &config.authorities, resolver, clock.clone())?;
        Ok(Dispatch::over(config, feeds, Arc::new(sender), clock, entropy).await?)
    }

    /// Delivers by whatever carries posts.
    pub async fn over(
        config: DispatchConfig,
        feeds: Vec<Arc<dyn Feed>>,
        sender: Arc<dyn Exchange>,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Dispatch, SpawnErr> {
        let permits = Permits::new(config.in_flight_max);
        let node = Arc::new(Node { config, sender, permits, stats: Stats::default(), clock, entropy });
        let actors = Actors::default();
        let supervised = Supervised { node: node.clone(), feeds, actors: actors.clone(), running: BTreeMap::new() };
        let (supervisor, _) = Actor::spawn(None, Supervisor, supervised).await?;
        Ok(Dispatch { node, actors, supervisor })
    }

    pub fn stats(&self) -> DispatchStats {
        self.node.stats.read()
    }

    /// Starts nothing more, and gives what runs [`STOP_TIMEOUT`] to end and to be recorded; what doesn't is due again
    /// under the next leader.
    pub async fn stop(&self) {
        let asked: Vec<_> = self.actors.lock().values().filter_map(ask_to_stop).collect();
        if timeout(STOP_TIMEOUT, join_all(asked)).await.is_err() {
            warn!("webhooks: some attempts did not end in time");
        }
        // The dispatchers end with their supervisor.
        self.supervisor.stop(None);
    }
}

fn ask_to_stop(actor: &ActorRef<dispatcher::Message>) -> Option<oneshot::Receiver<()>> {
    let (sender, stopped) = oneshot::channel();
    actor.cast(dispatcher::Message::Stop(sender)).ok().map(|()| stopped)
}

struct Supervisor;

/// Start the dispatcher of the feed at this place.
#[derive(Debug)]
struct Start(usize);

struct Supervised {
    node: Arc<Node>,
    feeds: Vec<Arc<dyn Feed>>,
    actors: Actors,
    running: BTreeMap<ActorId, usize>,
}

impl Actor for Supervisor {
    type Msg = Start;
    type State = Supervised;
    type Arguments = Supervised;

    async fn pre_start(
        &self,
        myself: ActorRef<Start>,
        mut state: Supervised,
    ) -> Result<Supervised, ActorProcessingErr> {
        for place in 0..state.feeds.len() {
            state.start(place, myself.get_cell()).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Start>,
        Start(place): Start,
        state: &mut Supervised,
    ) -> Result<(), ActorProcessingErr> {
        if let Err(error) = state.start(place, myself.get_cell()).await {
            error!(shard = %state.feeds[place].shard(), %error, "the dispatcher did not start, trying again");
            myself.send_after(RESTART_DELAY, move || Start(place));
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Start>,
        event: SupervisionEvent,
        state: &mut Supervised,
    ) -> Result<(), ActorProcessingErr> {
        let why = match &event {
            SupervisionEvent::ActorFailed(_, error) => error.to_string(),
            SupervisionEvent::ActorTerminated(_, _, reason) => reason.clone().unwrap_or_else(|| "stopped".to_owned()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        let Some(place) = event.actor_id().and_then(|id| state.running.remove(&id)) else { return Ok(()) };
        state.actors.lock().remove(&place);
        error!(shard = %state.feeds[place].shard(), why, "the dispatcher died, starting another");
        myself.send_after(RESTART_DELAY, move || Start(place));
        Ok(())
    }
}

impl Supervised {
    async fn start(&mut self, place: usize, supervisor: ActorCell) -> Result<(), ActorProcessingErr> {
        let arguments = (self.node.clone(), self.feeds[place].clone());
        let (actor, _) = Actor::spawn_linked(None, DispatcherActor, arguments, supervisor).await?;
        self.running.insert(actor.get_id(), place);
        self.actors.lock().insert(place, actor);
        Ok(())
    }
}
