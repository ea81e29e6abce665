//! The receivers of a run: where all its endpoints lead to. Every request that one gets is recorded with whether its
//! signature was right; now and then one fails, hangs, answers slowly or restarts, for a few seconds.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use onceward_checkers::history::{Delivery, Record};
use onceward_tests::{
    client::Api,
    draw::Draw,
    receiver::{self, Behaviour, Receiver},
};
use tokio::{sync::Mutex, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{
    message::{digest, event_id},
    recorder::Recorder,
    wire::Targets,
};

/// So that one can be down while others work.
const RECEIVERS: usize = 3;
/// Deliveries are recorded within this time.
const POLL: Duration = Duration::from_millis(250);
/// How long a receiver behaves badly at most: by far shorter than the schedule of retries that runs are made with.
const TROUBLE_MS_MAX: u64 = 2_500;

/// Clones are the same receivers.
#[derive(Clone)]
pub struct Receivers {
    receivers: Arc<Mutex<Vec<Receiver>>>,
    urls: Vec<String>,
}

impl Receivers {
    /// Listening on an address of this machine.
    pub async fn start(host: IpAddr) -> Receivers {
        let mut receivers = Vec::new();
        for _ in 0..RECEIVERS {
            receivers.push(Receiver::start_on(host).await);
        }
        let urls = receivers.iter().map(|receiver| receiver.url("")).collect();
        Receivers { receivers: Arc::new(Mutex::new(receivers)), urls }
    }

    pub fn targets(&self) -> Targets {
        Targets(self.urls.clone())
    }

    /// From now on an endpoint answers everything with 500.
    pub async fn bury(&self, app: &str, endpoint: &str) {
        let receiver = self.targets().receiver(endpoint);
        self.receivers.lock().await[receiver].behave(&format!("/{app}/{endpoint}"), Behaviour::Answer(500));
    }

    /// Records what comes until stopped, and then what came last. `nodes` are asked for the secrets of endpoints.
    pub async fn record(self, nodes: Vec<Api>, recorder: Recorder, stop: CancellationToken) {
        let mut seen = vec![BTreeMap::new(); RECEIVERS];
        let mut secrets = Secrets { nodes, known: BTreeMap::new() };
        loop {
            let over = stop.is_cancelled();
            let mut news = Vec::new();
            for (receiver, seen) in self.receivers.lock().await.iter().zip(&mut seen) {
                news.extend(receiver.news(seen));
            }
            for delivery in &news {
                let record = secrets.judge(delivery, &recorder).await;
                recorder.record(Record::Delivery(record));
            }
            if over {
                return;
            }
            tokio::select! { () = tokio::time::sleep(POLL) => {}, () = stop.cancelled() => {} }
        }
    }

    /// Makes one receiver or endpoint after the other misbehave for a while, until stopped; all is well again at the end.
    pub async fn misbehave(self, endpoints: Vec<(String, String)>, seed: u64, stop: CancellationToken) {
        let mut draw = Draw::new(seed, "receivers");
        while !stop.is_cancelled() {
            let trouble = Duration::from_millis(draw.between(500, TROUBLE_MS_MAX));
            if draw.chance(30) {
                let which = usize::try_from(draw.below(RECEIVERS as u64)).expect("few receivers");
                self.receivers.lock().await[which].stop().await;
                wait(trouble, &stop).await;
                self.receivers.lock().await[which].listen().await;
            } else {
                let (app, endpoint) = draw.pick(&endpoints);
                let which = self.targets().receiver(endpoint);
                let behaviour = bad(&mut draw);
                let path = format!("/{app}/{endpoint}");
                self.receivers.lock().await[which].behave(&path, behaviour);
                wait(trouble, &stop).await;
                self.receivers.lock().await[which].behave(&path, Behaviour::Answer(200));
            }
            wait(Duration::from_millis(draw.between(200, 2_000)), &stop).await;
        }
    }
}

fn bad(draw: &mut Draw) -> Behaviour {
    match draw.below(6) {
        0 | 1 => Behaviour::Answer(500),
        2 => Behaviour::Hang,
        3 => Behaviour::Slow(Duration::from_millis(draw.between(100, 900)), 200),
        4 => Behaviour::DripHead,
        _ => Behaviour::Reset,
    }
}

async fn wait(pause: Duration, stop: &CancellationToken) {
    tokio::select! { () = tokio::time::sleep(pause) => {}, () = stop.cancelled() => {} }
}

/// What endpoints sign with, as the cluster tells it.
struct Secrets {
    nodes: Vec<Api>,
    known: BTreeMap<String, String>,
}

impl Secrets {
    async fn judge(&mut self, delivery: &receiver::Delivery, recorder: &Recorder) -> Delivery {
        let header = |name: &str| {
            let value = delivery.headers.get(name).and_then(|value| value.to_str().ok());
            value.unwrap_or_default().to_owned()
        };
        let path = delivery.path.trim_start_matches('/');
        let (app, endpoint) = path.split_once('/').unwrap_or((path, ""));
        let signed = match self.of(&delivery.path, app, endpoint).await {
            Some(secret) => delivery.is_signed_at_any_time_with(&secret),
            None => false,
        };
        Delivery {
            at_us: recorder.at_us(delivery.at),
            app: app.to_owned(),
            endpoint: endpoint.to_owned(),
            message_id: header("webhook-id"),
            event_id: event_id(&delivery.body).unwrap_or_default(),
            sequence: header("onceward-sequence").parse().unwrap_or_default(),
            digest: digest(&delivery.body),
            signed,
            answered: (delivery.status != 0).then_some(delivery.status),
        }
    }

    /// Asks all nodes until one knows it; none: none did for long, the endpoint is not there.
    async fn of(&mut self, path: &str, app: &str, endpoint: &str) -> Option<String> {
        /// A cluster that can't be read for longer has more to answer for than a secret.
        const TRIES: u32 = 300;
        if let Some(secret) = self.known.get(path) {
            return Some(secret.clone());
        }
        for _ in 0..TRIES {
            let mut asked = JoinSet::new();
            for node in self.nodes.clone() {
                let path = format!("/api/v1/app/{app}/endpoint/{endpoint}/secret");
                asked.spawn(async move { tokio::time::timeout(Duration::from_secs(3), node.try_get(&path)).await });
            }
            while let Some(answer) = asked.join_next().await {
                let Ok(Ok(Ok(answer))) = answer else { continue };
                if answer.status == 404 {
                    return None;
                }
                if answer.status == 200
                    && let Some(secret) = answer.json()["key"].as_str()
                {
                    self.known.insert(path.to_owned(), secret.to_owned());
                    return Some(secret.to_owned());
                }
            }
            tokio::time::sleep(POLL).await;
        }
        None
    }
}
