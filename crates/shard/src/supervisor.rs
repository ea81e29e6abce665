//! One supervisor a node: starts an actor for each shard and starts another when one dies. The queue of the shard
//! lives outside the actor, so that a crash costs the commands in flight their certainty and nothing else.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ractor::{Actor, ActorCell, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tracing::{error, info};

use crate::shard_actor::{Shard, ShardActor};

/// An actor that dies at every start must not keep a core busy.
const RESTART_DELAY: Duration = Duration::from_millis(100);

pub(crate) struct Supervisor;

#[derive(Debug)]
pub(crate) enum Message {
    /// Start the actor of the shard at this place of the list.
    Start(usize),
}

pub(crate) struct SupervisorState {
    shards: Vec<Arc<Shard>>,
    running: BTreeMap<ActorId, usize>,
}

impl Actor for Supervisor {
    type Msg = Message;
    type State = SupervisorState;
    type Arguments = Vec<Arc<Shard>>;

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        shards: Vec<Arc<Shard>>,
    ) -> Result<SupervisorState, ActorProcessingErr> {
        let mut state = SupervisorState { shards, running: BTreeMap::new() };
        for place in 0..state.shards.len() {
            state.start(place, myself.get_cell()).await?;
        }
        Ok(state)
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        Message::Start(place): Message,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        if let Err(error) = state.start(place, myself.get_cell()).await {
            error!(shard = %state.shards[place].id, %error, "the shard's actor did not start, trying again");
            myself.send_after(RESTART_DELAY, move || Message::Start(place));
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Message>,
        event: SupervisionEvent,
        state: &mut SupervisorState,
    ) -> Result<(), ActorProcessingErr> {
        let why = match &event {
            SupervisionEvent::ActorFailed(_, error) => error.to_string(),
            SupervisionEvent::ActorTerminated(_, _, reason) => reason.clone().unwrap_or_else(|| "stopped".to_owned()),
            SupervisionEvent::ActorStarted(_) | SupervisionEvent::ProcessGroupChanged(_) => return Ok(()),
        };
        let Some(place) = event.actor_id().and_then(|id| state.running.remove(&id)) else { return Ok(()) };
        error!(shard = %state.shards[place].id, why, "the shard's actor died, starting another");
        myself.send_after(RESTART_DELAY, move || Message::Start(place));
        Ok(())
    }
}

impl SupervisorState {
    async fn start(&mut self, place: usize, supervisor: ActorCell) -> Result<(), ActorProcessingErr> {
        let shard = self.shards[place].clone();
        let (actor, _) = Actor::spawn_linked(None, ShardActor, shard.clone(), supervisor).await?;
        self.running.insert(actor.get_id(), place);
        info!(shard = %shard.id, "the shard's actor runs");
        shard.adopt_actor(actor);
        Ok(())
    }
}
