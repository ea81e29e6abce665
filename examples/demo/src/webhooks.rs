//! Webhooks: every payment is told to its account, signed and numbered, though the receiver was down and the leader died.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use reqwest::Method;
use serde_json::{Value, json};

use crate::{
    cluster::Cluster,
    heading,
    receiver::Receiver,
    shop::{Shop, Worker},
};

const ARRIVES_MAX: Duration = Duration::from_secs(5);
/// The first pause of the schedule, its jitter, and an election.
const RETRIED_MAX: Duration = Duration::from_secs(20);
const WHILE_DOWN: usize = 3;

/// What an account's receiver is to have in the end.
pub struct Watch {
    receiver: Receiver,
    account: String,
    /// Ids of all payments since it listens.
    payments: Vec<Value>,
}

/// The account registers a receiver, and the webhook of its next payment arrives.
pub async fn subscribe(cluster: &Cluster, shop: &Shop, account: &str) -> Result<Watch> {
    heading(&format!("{account} wants to be told of its payments: an endpoint, and a secret to verify with"));
    let receiver = Receiver::start().await?;
    let app =
        cluster.webhooks(Method::POST, "/app?get_if_exists=true", json!({ "name": account, "uid": account })).await?;
    ensure!(matches!(app.status, 200 | 201), "{}", app.body);
    let path = format!("/app/{account}/endpoint");
    let made = cluster.webhooks(Method::POST, &path, json!({ "url": receiver.url() })).await?;
    println!("  POST /api/v1/app/{account}/endpoint {} → {}", receiver.url(), made.status);
    ensure!(made.status == 201, "{}", made.body);
    let id = made.body["id"].as_str().context("no id")?;
    let secret = cluster.webhooks(Method::GET, &format!("{path}/{id}/secret"), Value::Null).await?;
    receiver.set_secret(secret.body["key"].as_str().context("no key")?)?;

    let mut watch = Watch { receiver, account: account.to_owned(), payments: Vec::new() };
    let worker = shop.start(&[])?;
    let began = Instant::now();
    watch.pay(&worker, "told-1").await?;
    let after = watch.arrived(ARRIVES_MAX).await?;
    println!(
        "  told-1         → paid in {} ms; its webhook, stored in the same entry as the key's completion, was there {} ms later",
        (began.elapsed() - after).as_millis(),
        after.as_millis()
    );
    println!("  {}", watch.receiver.inbox().events[&1]);
    Ok(watch)
}

impl Watch {
    /// The receiver answers 500 to what comes now: it is kept.
    pub async fn fail(&mut self, shop: &Shop) -> Result<()> {
        heading(&format!("The receiver of {} goes down; it pays {WHILE_DOWN} more invoices", self.account));
        self.receiver.set_down(true);
        let worker = shop.start(&[])?;
        for n in 0..WHILE_DOWN {
            self.pay(&worker, &format!("untold-{}", n + 1)).await?;
        }
        self.receiver.wait(ARRIVES_MAX, |inbox| inbox.failed >= WHILE_DOWN).await?;
        println!(
            "  {WHILE_DOWN} × 201 to the client, {WHILE_DOWN} × 500 from the receiver; the next try is due in 5 s"
        );
        Ok(())
    }

    /// The receiver works again, and after the shard has another leader everything arrives that came before and since.
    pub async fn mend(&mut self, shop: &Shop) -> Result<()> {
        heading(&format!("The receiver of {} is up again", self.account));
        self.receiver.set_down(false);
        let worker = shop.start(&[])?;
        self.pay(&worker, "told-2").await?;
        let after = self.arrived(RETRIED_MAX).await?;
        let inbox = self.receiver.inbox();
        println!(
            "  after {:.1} s it has all {}: numbers 1 to {} without a gap, {} deliveries failed, {} came twice under their id, \
             {} had a wrong signature",
            after.as_secs_f64(),
            self.payments.len(),
            inbox.events.len(),
            inbox.failed,
            inbox.repeated,
            inbox.forged
        );
        Ok(())
    }

    async fn pay(&mut self, worker: &Worker, key: &str) -> Result<()> {
        let order = json!({ "amount_cents": 1_500, "currency": "EUR", "to": "bob" });
        let (reply, _) = worker.pay_until_answered(&self.account, key, &order).await?;
        ensure!(reply.status == 201, "{}", reply.body);
        self.payments.push(reply.json()?["id"].clone());
        Ok(())
    }

    /// Waits until as many events came as there are payments; fails unless each tells of one, and all are numbered.
    async fn arrived(&self, at_most: Duration) -> Result<Duration> {
        let after = self.receiver.wait(at_most, |inbox| inbox.events.len() >= self.payments.len()).await?;
        let inbox = self.receiver.inbox();
        ensure!(inbox.forged == 0, "{} deliveries had a wrong signature", inbox.forged);
        let numbers: Vec<u64> = inbox.events.keys().copied().collect();
        ensure!(numbers.iter().copied().eq(1..=self.payments.len() as u64), "the numbers are {numbers:?}");
        let told: Vec<&Value> = inbox.events.values().map(|event| &event["data"]["id"]).collect();
        ensure!(told == self.payments.iter().collect::<Vec<_>>(), "{:?} were paid, {told:?} were told", self.payments);
        Ok(after)
    }
}
