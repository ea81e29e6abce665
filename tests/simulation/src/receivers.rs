//! The receivers of webhooks: they log what they get, and now and then fail, hang, or answer so that the answer is lost.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use onceward_checkers::history::{Delivery, Record};
use onceward_dispatch::{Answered, Exchange, Failure, Post};
use onceward_partition::{
    message::{digest, event_id},
    recorder::Recorder,
    workload::webhooks::GRAVE,
};
use tokio::time::sleep;

use crate::world::World;

/// Where all endpoints lead.
pub const URL: &str = "http://receiver.simulation";

/// Cheap to clone: the same receivers.
#[derive(Clone)]
pub struct Receivers {
    world: Arc<World>,
    recorder: Recorder,
    well: Arc<AtomicBool>,
}

impl Receivers {
    pub fn new(world: Arc<World>, recorder: Recorder) -> Receivers {
        Receivers { world, recorder, well: Arc::default() }
    }

    /// From now on they work.
    pub fn get_well(&self) {
        self.well.store(true, Ordering::Relaxed);
    }

    async fn receive(&self, post: &Post<'_>) -> Answered {
        let world = &self.world;
        sleep(Duration::from_millis(world.between(1, 10))).await;
        let (app, endpoint) = path(post.url);
        let trouble = if self.well.load(Ordering::Relaxed) { 100 } else { world.between(0, 99) };
        let answered = match trouble {
            _ if app == GRAVE => Some(500),
            0..10 => Some(500),
            10..14 => None,
            _ => Some(200),
        };
        self.recorder.record(Record::Delivery(Delivery {
            at_us: world.now_us(),
            app: app.to_owned(),
            endpoint: endpoint.to_owned(),
            message_id: post.message_id.to_owned(),
            event_id: event_id(&post.body).unwrap_or_default(),
            sequence: post.sequence.unwrap_or_default(),
            digest: digest(&post.body),
            // Signatures have no part in what is simulated.
            signed: true,
            answered,
        }));
        sleep(Duration::from_millis(world.between(1, 10))).await;
        match (answered, trouble) {
            // It hung, and then was given up.
            (None, _) => failed(Failure::NoAnswer(Duration::from_secs(1))),
            // It answered, and the answer was lost.
            (Some(200), 14..18) => failed(Failure::Closed),
            (Some(status), _) => Answered { status, ..Answered::default() },
        }
    }
}

fn failed(failure: Failure) -> Answered {
    Answered { failure: Some(failure), ..Answered::default() }
}

fn path(url: &str) -> (&str, &str) {
    let path = url.strip_prefix(URL).unwrap_or(url).trim_start_matches('/');
    path.split_once('/').unwrap_or((path, ""))
}

impl Exchange for Receivers {
    fn post<'p>(&'p self, post: &'p Post<'_>) -> BoxFuture<'p, Answered> {
        Box::pin(self.receive(post))
    }
}
