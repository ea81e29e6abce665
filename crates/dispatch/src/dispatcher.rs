//! The dispatcher of a shard: an actor that works off what is due while this node leads the shard, and is idle otherwise.
//!
//! Endpoints take turns, one attempt each, as far as permits, their own bounds and rate limits allow. Attempts and reports
//! run beside the actor and come back as messages; whatever doesn't come back well is read again from the rows.

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::StreamExt;
use onceward_core::{
    faults::{self, Fault},
    machine::Machine,
    rows::RowsError,
    time::ShardTime,
    webhooks::{self, AppId, EndpointKey, Outcome, Target, Verdict},
};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::{
    sync::{Notify, oneshot, watch},
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{debug, info};

use crate::{
    attempt::{Delivery, Ended, Node},
    bounds::{AGAIN, CATCH_UP_TIMEOUT, LANE_IDLE, LANE_PAUSE, LOAD_PAGE},
    feed::{Feed, Touched, read},
    lane::{Lane, Rates},
    lanes::Lanes,
    permits::{Permit, Standing},
    recording::Recording,
    throttle::{Throttle, take_all},
    unrecorded::Unrecorded,
};

/// The behaviour; one value serves all shards.
pub(crate) struct DispatcherActor;

pub(crate) enum Message {
    Term(Option<u64>),
    /// The rows cover everything that was acknowledged before the term, or nobody can tell yet.
    CaughtUp {
        term: u64,
        covered: bool,
    },
    /// Find the endpoints behind `after` that have something pending.
    Load {
        term: u64,
        after: Option<EndpointKey>,
    },
    Touched(Touched),
    /// A lane's time has come.
    Tick,
    Permit(Standing, Permit),
    Ended(Delivery, Ended),
    /// The report under way has ended.
    Recorded {
        applied: bool,
    },
    /// Start nothing more, and say when everything has ended and is recorded.
    Stop(oneshot::Sender<()>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Following,
    CatchingUp(u64),
    Leading(u64),
}

pub(crate) struct Dispatcher {
    node: Arc<Node>,
    feed: Arc<dyn Feed>,
    phase: Phase,
    /// For reports that are repeated while the term lasts.
    term: watch::Sender<Option<u64>>,
    /// When it began to lead: what came before that, rate limits can't know.
    leads_since: Instant,
    lanes: Lanes,
    apps: HashMap<AppId, AppThrottle>,
    unrecorded: Unrecorded,
    running: usize,
    /// By standing.
    awaited: [Awaited; Standing::ALL.len()],
    timer: Option<(Instant, AbortHandle)>,
    /// Touched endpoints were taken note of: more may come.
    heard: Arc<Notify>,
    watches: Vec<AbortHandle>,
    /// Nothing more is started.
    stopping: bool,
    /// Who waits for everything to have ended and to be recorded.
    stopped: Option<oneshot::Sender<()>>,
}

/// An application's rate limit, for all of its endpoints on this shard together.
struct AppThrottle {
    throttle: Throttle,
    used: Instant,
}

/// A permit that is waited for, and the one that has come.
#[derive(Default)]
struct Awaited {
    granted: Option<Permit>,
    waits: bool,
}

impl Actor for DispatcherActor {
    type Msg = Message;
    type State = Dispatcher;
    type Arguments = (Arc<Node>, Arc<dyn Feed>);

    async fn pre_start(
        &self,
        myself: ActorRef<Message>,
        (node, feed): (Arc<Node>, Arc<dyn Feed>),
    ) -> Result<Dispatcher, ActorProcessingErr> {
        let heard = Arc::<Notify>::default();
        let watches = vec![
            tokio::spawn(watch_terms(feed.clone(), myself.clone())).abort_handle(),
            tokio::spawn(watch_touched(feed.clone(), heard.clone(), myself)).abort_handle(),
        ];
        Ok(Dispatcher {
            lanes: Lanes::new(node.clone()),
            node,
            feed,
            phase: Phase::Following,
            term: watch::Sender::new(None),
            leads_since: Instant::now(),
            apps: HashMap::new(),
            unrecorded: Unrecorded::default(),
            running: 0,
            awaited: Default::default(),
            timer: None,
            heard,
            watches,
            stopping: false,
            stopped: None,
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Message>,
        message: Message,
        state: &mut Dispatcher,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            Message::Term(term) => state.turn_to(term, &myself),
            Message::CaughtUp { term, covered } => state.caught_up(term, covered, &myself),
            Message::Load { term, after } => state.load(term, after, &myself)?,
            Message::Touched(touched) => state.touched(touched, &myself),
            Message::Tick => {
                state.timer = None;
                state.pass_time();
            }
            Message::Permit(standing, permit) => {
                state.awaited[standing as usize] = Awaited { granted: Some(permit), waits: false };
            }
            Message::Ended(delivery, ended) => state.ended(delivery, ended),
            Message::Recorded { applied } => state.recorded(applied),
            Message::Stop(stopped) => (state.stopping, state.stopped) = (true, Some(stopped)),
        }
        state.start_attempts(&myself)?;
        state.report(&myself);
        state.set_timer(&myself);
        state.stop_if_done();
        Ok(())
    }
}

impl Drop for Dispatcher {
    fn drop(&mut self) {
        self.watches.iter().for_each(AbortHandle::abort);
        if let Some((_, timer)) = &self.timer {
            timer.abort();
        }
    }
}

impl Dispatcher {
    fn leads(&self) -> bool {
        matches!(self.phase, Phase::Leading(_))
    }

    fn turn_to(&mut self, term: Option<u64>, myself: &ActorRef<Message>) {
        let present = match self.phase {
            Phase::Following => None,
            Phase::CatchingUp(term) | Phase::Leading(term) => Some(term),
        };
        if present == term {
            return;
        }
        self.term.send_replace(term);
        self.stand_down();
        if let Some(term) = term {
            self.phase = Phase::CatchingUp(term);
            self.catch_up(term, Duration::ZERO, myself);
        }
    }

    /// Starts nothing more. What runs may end; it isn't known yet whether it can be recorded.
    fn stand_down(&mut self) {
        self.phase = Phase::Following;
        for delivery in self.unrecorded.forget() {
            self.give_up(delivery, Duration::ZERO);
        }
        self.lanes.stand_down();
        self.apps.clear();
    }

    fn catch_up(&self, term: u64, delay: Duration, myself: &ActorRef<Message>) {
        let (feed, myself) = (self.feed.clone(), myself.clone());
        tokio::spawn(async move {
            sleep(delay).await;
            let covered = timeout(CATCH_UP_TIMEOUT, feed.catch_up()).await.unwrap_or(false);
            let _ = myself.cast(Message::CaughtUp { term, covered });
        });
    }

    fn caught_up(&mut self, term: u64, covered: bool, myself: &ActorRef<Message>) {
        if self.phase != Phase::CatchingUp(term) {
            return;
        }
        if !covered {
            self.catch_up(term, AGAIN, myself);
            return;
        }
        info!(shard = %self.feed.shard(), term, "dispatching");
        self.phase = Phase::Leading(term);
        self.leads_since = Instant::now();
        let _ = myself.cast(Message::Load { term, after: None });
    }

    /// Opens a lane for each endpoint of a page, and asks for the next page.
    fn load(&mut self, term: u64, after: Option<EndpointKey>, myself: &ActorRef<Message>) -> Result<(), RowsError> {
        if self.phase != Phase::Leading(term) {
            return Ok(());
        }
        let Some(now) = self.feed.now() else {
            myself.send_after(AGAIN, move || Message::Load { term, after });
            return Ok(());
        };
        let page = read(&*self.feed, |rows| webhooks::pending_endpoints(rows, after, LOAD_PAGE))?;
        if let Some((last, _)) = page.last()
            && page.len() == LOAD_PAGE
        {
            let after = Some(*last);
            let _ = myself.cast(Message::Load { term, after });
        }
        for (endpoint, due) in page {
            let lane = self.lanes.get_or_open(endpoint);
            if due <= now {
                lane.touch()
            } else {
                lane.note_due(instant(due, now))
            }
            self.lanes.settle(endpoint);
        }
        Ok(())
    }

    fn touched(&mut self, touched: Touched, myself: &ActorRef<Message>) {
        self.heard.notify_one();
        let Phase::Leading(term) = self.phase else { return };
        let endpoints = match touched {
            Touched::Endpoints(endpoints) => endpoints.into_iter().collect(),
            Touched::All => {
                let _ = myself.cast(Message::Load { term, after: None });
                self.lanes.endpoints()
            }
        };
        for endpoint in endpoints {
            self.lanes.get_or_open(endpoint).touch();
            self.lanes.settle(endpoint);
        }
    }

    fn pass_time(&mut self) {
        let now = Instant::now();
        for endpoint in self.lanes.pass_time(now) {
            let idle = |app: &AppThrottle| now.saturating_duration_since(app.used) >= LANE_IDLE;
            if self.apps.get(&endpoint.app).is_some_and(idle) {
                self.apps.remove(&endpoint.app);
            }
        }
    }

    /// Gives turns for as long as there is something to start and a permit for it.
    fn start_attempts(&mut self, myself: &ActorRef<Message>) -> Result<(), RowsError> {
        for standing in Standing::ALL {
            while self.leads() && !self.stopping && !self.unrecorded.is_full() {
                if !self.lanes.is_anyone_waiting(standing) {
                    break;
                }
                let Some(permit) = self.permit(standing, myself) else { break };
                let Some(endpoint) = self.lanes.next_turn(standing) else { break };
                if let Some(delivery) = self.take_turn(endpoint)? {
                    self.start(delivery, permit, myself);
                }
                self.lanes.settle(endpoint);
            }
            // Nobody here needs it now, and others may.
            self.awaited[standing as usize].granted = None;
        }
        Ok(())
    }

    /// A permit, or `None` and a message when there is one.
    fn permit(&mut self, standing: Standing, myself: &ActorRef<Message>) -> Option<Permit> {
        let node = self.node.clone();
        let awaited = &mut self.awaited[standing as usize];
        let permit = awaited.granted.take().or_else(|| node.permits.try_take(standing));
        if permit.is_none() && !std::mem::replace(&mut awaited.waits, true) {
            let myself = myself.clone();
            tokio::spawn(async move {
                let permit = node.permits.take(standing).await;
                let _ = myself.cast(Message::Permit(standing, permit));
            });
        }
        permit
    }

    /// What the endpoint is to start now, if it may.
    fn take_turn(&mut self, endpoint: EndpointKey) -> Result<Option<Delivery>, RowsError> {
        self.refresh(endpoint)?;
        let now = Instant::now();
        let permits = &self.node.permits;
        let Some(lane) = self.lanes.get(endpoint) else { return Ok(None) };
        if !lane.may_start(permits.free()) || !lane.has_ahead() {
            return Ok(None);
        }
        if !permits.has_room_for_payload(lane.standing()) {
            lane.pause(now + AGAIN);
            return Ok(None);
        }
        if let Err(wait) = throttle(&mut self.apps, lane, endpoint.app, self.leads_since, now) {
            lane.pause(now + wait);
            return Ok(None);
        }
        Ok(lane.start(now).map(|item| Delivery { endpoint, item }))
    }

    /// Reads the endpoint, if it may have changed, and what it has due, if none of that is left.
    fn refresh(&mut self, endpoint: EndpointKey) -> Result<(), RowsError> {
        let Some(lane) = self.lanes.get(endpoint) else { return Ok(()) };
        let wanted = lane.wants_rows();
        if wanted.is_none() && !lane.changed {
            return Ok(());
        }
        let Some(now) = self.feed.now() else {
            lane.pause(Instant::now() + AGAIN);
            return Ok(());
        };
        let shard = self.feed.shard();
        let (target, found) = read(&*self.feed, |rows| {
            // The clock before what is due, so that nothing comes in between that is due before it.
            let clock = Machine::new(shard).clock(rows)?;
            let target = webhooks::target(rows, endpoint, now)?;
            let due = |(after, limit)| webhooks::due(rows, endpoint, now, after, limit).map(|due| (due, limit, clock));
            Ok((target, wanted.map(due).transpose()?))
        })?;
        let Some(Target { rate_limit, app_rate_limit, .. }) = target.filter(|target| !target.disabled) else {
            lane.close();
            return Ok(());
        };
        lane.changed = false;
        lane.rates = Rates { endpoint: rate_limit, app: app_rate_limit };
        if let Some(((mut items, next), limit, clock)) = found {
            if faults::active(Fault::DropDueOnLeaderChange) {
                let led_us = self.leads_since.elapsed().as_micros() as u64;
                items.retain(|item| now.since_us(item.at) <= led_us);
            }
            lane.take_rows(items, limit, next.map(|due| instant(due, now)), clock);
        }
        Ok(())
    }

    fn start(&mut self, delivery: Delivery, permit: Permit, myself: &ActorRef<Message>) {
        self.running += 1;
        self.node.stats.in_flight.add(1);
        let feed = self.feed.clone();
        let ended = Ended::Crashed;
        let task =
            Task { node: self.node.clone(), actor: myself.clone(), delivery, ended: Some(ended), _permit: permit };
        tokio::spawn(task.run(feed));
    }

    fn ended(&mut self, delivery: Delivery, ended: Ended) {
        self.running = self.running.saturating_sub(1);
        if let Some(lane) = self.lanes.get(delivery.endpoint) {
            lane.end(Instant::now());
        }
        match ended {
            Ended::Made(outcome) => self.made(delivery, *outcome),
            Ended::NotLeading | Ended::NothingToDo => self.give_up(delivery, AGAIN),
            Ended::Crashed => {
                self.node.stats.crashed.add(1);
                self.give_up(delivery, LANE_PAUSE);
            }
        }
        self.lanes.settle(delivery.endpoint);
    }

    fn made(&mut self, delivery: Delivery, outcome: Outcome) {
        if self.phase == Phase::Following {
            debug!(shard = %self.feed.shard(), message = %outcome.message, "an outcome is left to the next leader");
            self.give_up(delivery, Duration::ZERO);
            return;
        }
        if let Some(lane) = self.lanes.get(delivery.endpoint) {
            lane.learn(outcome.verdict == Verdict::Succeeded);
        }
        self.unrecorded.push(delivery, outcome);
    }

    /// Of a delivery nothing will be recorded: it is read again, after a while.
    fn give_up(&mut self, Delivery { endpoint, item }: Delivery, pause: Duration) {
        let Some(lane) = self.lanes.get(endpoint) else { return };
        lane.give_up(item);
        if self.phase == Phase::Following {
            lane.stop();
            self.lanes.forget_if_quiet(endpoint);
        } else if !pause.is_zero() {
            lane.pause(Instant::now() + pause);
        }
    }

    fn report(&mut self, myself: &ActorRef<Message>) {
        let (Phase::CatchingUp(term) | Phase::Leading(term)) = self.phase else { return };
        let Some(outcomes) = self.unrecorded.next_report() else { return };
        let (node, feed, terms) = (self.node.clone(), self.feed.clone(), self.term.subscribe());
        tokio::spawn(Recording::new(myself.clone()).run(node, feed, term, terms, outcomes));
    }

    fn recorded(&mut self, applied: bool) {
        for reported in self.unrecorded.end_report() {
            let endpoint = reported.delivery.endpoint;
            if !applied {
                self.give_up(reported.delivery, Duration::ZERO);
            } else if let Some(lane) = self.lanes.get(endpoint) {
                lane.record(reported.delivery.item);
                if reported.again {
                    lane.touch();
                }
                if self.phase == Phase::Following {
                    lane.stop();
                    self.lanes.forget_if_quiet(endpoint);
                }
            }
            self.lanes.settle(endpoint);
        }
    }

    fn set_timer(&mut self, myself: &ActorRef<Message>) {
        let Some(at) = self.lanes.next_look() else { return };
        if self.timer.as_ref().is_some_and(|(planned, _)| *planned <= at) {
            return;
        }
        let myself = myself.clone();
        let timer = tokio::spawn(async move {
            sleep_until(at).await;
            let _ = myself.cast(Message::Tick);
        });
        if let Some((_, later)) = self.timer.replace((at, timer.abort_handle())) {
            later.abort();
        }
    }

    fn stop_if_done(&mut self) {
        if self.running == 0
            && self.unrecorded.is_empty()
            && let Some(stopped) = self.stopped.take()
        {
            // Whoever asked may have gone.
            let _ = stopped.send(());
        }
    }
}

/// When `due` will be, on this process's clock.
fn instant(due: ShardTime, now: ShardTime) -> Instant {
    /// Further off than any schedule's pause; it is looked at again then.
    const FAR: Duration = Duration::from_secs(30 * 86_400);
    Instant::now() + Duration::from_micros(due.since_us(now)).min(FAR)
}

/// Takes one message of the endpoint's and its application's rate, or says how long to wait.
fn throttle(
    apps: &mut HashMap<AppId, AppThrottle>,
    lane: &mut Lane,
    app: AppId,
    since: Instant,
    now: Instant,
) -> Result<(), Duration> {
    let Rates { endpoint: endpoint_rate, app: app_rate } = lane.rates;
    let own = match endpoint_rate {
        None => {
            lane.throttle = None;
            None
        }
        Some(rate) => Some((lane.throttle.get_or_insert_with(|| Throttle::new(rate, since)), rate)),
    };
    let of_app = app_rate.map(|rate| {
        let app = apps.entry(app).or_insert_with(|| AppThrottle { throttle: Throttle::new(rate, since), used: now });
        app.used = now;
        (&mut app.throttle, rate)
    });
    take_all(own.into_iter().chain(of_app), now)
}

/// An attempt under way. However it ends, the dispatcher is told, and the permit is free again.
struct Task {
    node: Arc<Node>,
    actor: ActorRef<Message>,
    delivery: Delivery,
    ended: Option<Ended>,
    _permit: Permit,
}

impl Task {
    async fn run(mut self, feed: Arc<dyn Feed>) {
        let ended = self.node.attempt(&*feed, self.delivery).await;
        self.ended = Some(ended);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.node.stats.in_flight.sub(1);
        if let Some(ended) = self.ended.take() {
            // A dispatcher that crashed meanwhile has a successor that reads everything anew.
            let _ = self.actor.cast(Message::Ended(self.delivery, ended));
        }
    }
}

async fn watch_terms(feed: Arc<dyn Feed>, actor: ActorRef<Message>) {
    let mut terms = feed.terms();
    while let Some(term) = terms.next().await {
        if actor.cast(Message::Term(term)).is_err() {
            return;
        }
    }
}

/// One message at a time: what is touched while the actor is busy gathers on the other side, which bounds it.
async fn watch_touched(feed: Arc<dyn Feed>, heard: Arc<Notify>, actor: ActorRef<Message>) {
    while actor.cast(Message::Touched(feed.touched().await)).is_ok() {
        heard.notified().await;
    }
}
