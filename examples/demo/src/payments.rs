//! Payments under idempotency keys: repeated, changed, at once, and by workers that die or sleep.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    heading,
    shop::{LEASE, Reply, Shop, Worker},
};

pub const POLICY: &str = "demo-payments";

/// A key that was answered, to be asked again later.
pub struct Remembered {
    key: &'static str,
    order: Value,
    reply: Reply,
}

pub async fn everything(shop: &Shop, account: &str) -> Result<Remembered> {
    let worker = shop.start(&[])?;
    let remembered = twice(&worker, account).await?;
    changed(&worker, account, &remembered).await?;
    at_once(&worker, account).await?;
    equal_payments(&worker, account).await?;
    a_worker_dies(shop, &worker, account).await?;
    a_worker_sleeps(shop, &worker, account).await?;
    Ok(remembered)
}

/// Another process of the service, on what is left of the cluster, still has the answer from before.
pub async fn still_remembered(shop: &Shop, account: &str, remembered: &Remembered) -> Result<()> {
    let worker = shop.start(&[])?;
    let Remembered { key, order, reply } = remembered;
    let (again, _) = worker.pay_until_answered(account, key, order).await?;
    show(key, &again);
    ensure!(again.is_same_as(reply), "the answer was another one before: {reply:?}");
    println!("  the payment from before is answered as before, byte for byte");
    expect_rows(&worker, account, key, 1).await
}

fn order(amount_cents: u64) -> Value {
    json!({ "amount_cents": amount_cents, "currency": "EUR", "to": "bob" })
}

fn show(key: &str, reply: &Reply) {
    let mark = if reply.is_replayed() { "  (replayed)" } else { "" };
    let body: Value = reply.json().unwrap_or_default();
    let gist = ["id", "code"].iter().find_map(|member| body[member].as_str()).unwrap_or_default();
    println!("  {key:<14} → {} {gist}{mark}", reply.status);
}

fn expect_status(reply: &Reply, status: u16) -> Result<()> {
    ensure!(reply.status == status, "status {} instead of {status}: {}", reply.status, reply.body);
    Ok(())
}

fn expect_code(reply: &Reply, status: u16, code: &str) -> Result<()> {
    expect_status(reply, status)?;
    ensure!(reply.json()?["code"] == code, "not {code}: {}", reply.body);
    Ok(())
}

async fn expect_rows(worker: &Worker, account: &str, key: &str, expected: usize) -> Result<()> {
    let rows = worker.rows(account, key).await?;
    ensure!(rows == expected, "{rows} payments in the database under {key}, not {expected}");
    Ok(())
}

async fn twice(worker: &Worker, account: &str) -> Result<Remembered> {
    heading(&format!("{account} posts a payment, hears nothing, and posts it again with the same Idempotency-Key"));
    let (key, order) = ("invoice-1", order(4_200));
    let reply = worker.pay(account, key, &order, None).await?;
    show(key, &reply);
    expect_status(&reply, 201)?;
    let again = worker.pay(account, key, &order, None).await?;
    show(key, &again);
    ensure!(again.is_same_as(&reply), "the two answers differ: {reply:?} and {again:?}");
    ensure!(again.is_replayed() && !reply.is_replayed(), "the second should be marked as replayed");
    expect_rows(worker, account, key, 1).await?;
    println!("  one payment in the database, the same bytes twice");
    Ok(Remembered { key, order, reply })
}

async fn changed(worker: &Worker, account: &str, remembered: &Remembered) -> Result<()> {
    heading("The same key with another amount is a mistake, and is told so");
    let reply = worker.pay(account, remembered.key, &order(9_900), None).await?;
    show(remembered.key, &reply);
    expect_code(&reply, 422, "fingerprint_mismatch")?;
    expect_rows(worker, account, remembered.key, 1).await
}

async fn at_once(worker: &Worker, account: &str) -> Result<()> {
    heading("Two at once with one key: one works, the other is told when to ask again");
    let (key, order) = ("invoice-2", order(1_000));
    let slow = worker.pay(account, key, &order, Some("after-begin=600"));
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        worker.pay(account, key, &order, None).await
    };
    let (slow, meanwhile) = tokio::join!(slow, meanwhile);
    let (slow, meanwhile) = (slow?, meanwhile?);
    show(key, &meanwhile);
    expect_code(&meanwhile, 409, "in_progress")?;
    ensure!(meanwhile.headers.contains_key("retry-after"), "409 without Retry-After");
    show(key, &slow);
    expect_status(&slow, 201)?;
    let (again, _) = worker.pay_until_answered(account, key, &order).await?;
    show(key, &again);
    ensure!(again.is_same_as(&slow), "the two answers differ: {slow:?} and {again:?}");
    expect_rows(worker, account, key, 1).await
}

async fn equal_payments(worker: &Worker, account: &str) -> Result<()> {
    heading("Two coffees are two payments: equal bodies under two keys");
    let mut ids = Vec::new();
    for key in ["coffee-1", "coffee-2"] {
        let reply = worker.pay(account, key, &order(350), None).await?;
        show(key, &reply);
        expect_status(&reply, 201)?;
        expect_rows(worker, account, key, 1).await?;
        ids.push(reply.json()?["id"].clone());
    }
    ensure!(ids[0] != ids[1], "both keys got the payment {}", ids[0]);
    println!("  a key is chosen by the client, never derived from what it sends");
    Ok(())
}

async fn a_worker_dies(shop: &Shop, worker: &Worker, account: &str) -> Result<()> {
    heading("A worker dies between its commit and telling Onceward: the payment is made, and nobody knows");
    let (key, order) = ("invoice-3", order(7_700));
    let doomed = shop.start(&["--crash-at", "after-commit"])?;
    let lost = doomed.pay(account, key, &order, None).await;
    ensure!(lost.is_err(), "the worker lives and answers {lost:?}");
    doomed.wait_end().await?;
    println!("  {key:<14} → connection lost");
    expect_rows(worker, account, key, 1).await?;
    let began = Instant::now();
    let (reply, refused) = worker.pay_until_answered(account, key, &order).await?;
    println!("  asked another worker: {refused} × 409, until the lease of {} ms was over", LEASE.as_millis());
    show(key, &reply);
    expect_status(&reply, 201)?;
    ensure!(refused > 0, "the key should have been held until its lease was over");
    expect_rows(worker, account, key, 1).await?;
    println!(
        "  it took over after {:.1} s, found the first one's payment, and paid nothing",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

async fn a_worker_sleeps(shop: &Shop, worker: &Worker, account: &str) -> Result<()> {
    heading("A worker falls asleep before it pays; another takes over and pays; then the first wakes up");
    let (key, order) = ("invoice-4", order(8_800));
    let sleeper = shop.start(&[])?;
    let pause = format!("after-begin={}", (LEASE + Duration::from_millis(1_500)).as_millis());
    let late = sleeper.pay(account, key, &order, Some(&pause));
    let other = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (reply, refused) = worker.pay_until_answered(account, key, &order).await?;
        println!("  the other worker, after {refused} × 409:");
        show(key, &reply);
        anyhow::Ok(reply)
    };
    let (late, reply) = tokio::join!(late, other);
    let (late, reply) = (late?, reply?);
    expect_status(&reply, 201)?;
    ensure!(!reply.is_replayed(), "the other worker should have paid by itself: {reply:?}");
    println!("  the one that slept:");
    show(key, &late);
    expect_code(&late, 409, "in_progress")?;
    let again = sleeper.pay(account, key, &order, None).await?;
    show(key, &again);
    ensure!(again.is_same_as(&reply), "the two answers differ: {reply:?} and {again:?}");
    expect_rows(worker, account, key, 1).await?;
    println!(
        "  the database had the answer already, and Onceward takes nothing by its outdated token: fenced, one payment"
    );
    Ok(())
}
