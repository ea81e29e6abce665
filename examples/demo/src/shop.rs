//! The payments service of `examples/payments`: its processes, started for the story and gone with it, and what they
//! are asked.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use reqwest::header::HeaderMap;
use serde_json::Value;
use tempfile::TempDir;

/// Short, so that nobody watches a clock: after this time an attempt counts as dead.
pub const LEASE: Duration = Duration::from_millis(1_500);
const ANSWER_MAX: Duration = Duration::from_secs(15);

pub struct Shop {
    binary: PathBuf,
    onceward: Vec<String>,
    policy: &'static str,
    http: reqwest::Client,
    /// Its SQLite file, which all of its processes share.
    dir: TempDir,
}

/// One process; killed when dropped.
pub struct Worker {
    url: String,
    child: Child,
    http: reqwest::Client,
}

#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: String,
}

impl Shop {
    pub fn open(binary: PathBuf, onceward: Vec<String>, policy: &'static str) -> Result<Shop> {
        ensure!(binary.is_file(), "there is no payments service at {}", binary.display());
        let http = reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX).build()?;
        let dir = tempfile::Builder::new().prefix("onceward-demo-").tempdir()?;
        Ok(Shop { binary, onceward, policy, http, dir })
    }

    pub fn start(&self, arguments: &[&str]) -> Result<Worker> {
        let mut command = Command::new(&self.binary);
        command.args(["--demo", "--listen", "127.0.0.1:0", "--database"]).arg(self.dir.path().join("payments.sqlite"));
        command.args(["--policy", self.policy, "--lease-ms", &LEASE.as_millis().to_string()]).args(arguments);
        for url in &self.onceward {
            command.args(["--onceward", url]);
        }
        // It says on its standard error what the story shows anyway.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let child = command.spawn().with_context(|| format!("{} cannot be run", self.binary.display()))?;
        let mut worker = Worker { url: String::new(), child, http: self.http.clone() };
        let mut line = String::new();
        let output = worker.child.stdout.take().context("its output is ours")?;
        BufReader::new(output).read_line(&mut line)?;
        worker.url =
            line.trim().strip_prefix("listening on ").context("the payments service did not start")?.to_owned();
        Ok(worker)
    }
}

impl Worker {
    /// `POST /payments`; `pause` makes the service slow at a step.
    pub async fn pay(&self, account: &str, key: &str, order: &Value, pause: Option<&str>) -> reqwest::Result<Reply> {
        let mut request = self.http.post(format!("{}/payments", self.url)).bearer_auth(account);
        request = request.header("idempotency-key", format!("\"{key}\"")).json(order);
        if let Some(pause) = pause {
            request = request.header("x-demo-pause", pause);
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        Ok(Reply { status, headers, body: response.text().await? })
    }

    /// As [`Worker::pay`], again and again with the same key until the answer is a final one. Also says how often it was
    /// told to ask again.
    pub async fn pay_until_answered(&self, account: &str, key: &str, order: &Value) -> Result<(Reply, u32)> {
        let began = Instant::now();
        let mut refused = 0;
        loop {
            let reply = self.pay(account, key, order, None).await?;
            if ![409, 503, 504].contains(&reply.status) {
                return Ok((reply, refused));
            }
            refused += 1;
            if began.elapsed() > ANSWER_MAX {
                bail!("no final answer after {ANSWER_MAX:?}: {reply:?}");
            }
            let wait_ms = reply.json()?["retry_after_ms"].as_u64().context("no retry_after_ms")?;
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
        }
    }

    /// How many payments the database has under a key.
    pub async fn rows(&self, account: &str, key: &str) -> Result<usize> {
        let request = self.http.get(format!("{}/payments", self.url)).bearer_auth(account);
        let list: Value = serde_json::from_str(&request.send().await?.text().await?)?;
        let rows = list["payments"].as_array().context("no list of payments")?;
        Ok(rows.iter().filter(|row| row["idempotency_key"] == key).count())
    }

    /// Waits until the process has ended by itself.
    pub async fn wait_end(mut self) -> Result<()> {
        let began = Instant::now();
        while self.child.try_wait()?.is_none() {
            ensure!(began.elapsed() < ANSWER_MAX, "the worker that was to die lives");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reply {
    pub fn json(&self) -> Result<Value> {
        serde_json::from_str(&self.body).with_context(|| format!("status {}, no JSON: {}", self.status, self.body))
    }

    pub fn is_replayed(&self) -> bool {
        self.headers.contains_key("idempotent-replayed")
    }

    /// Whether a client can tell the two apart, but for the header that says which came first.
    pub fn is_same_as(&self, other: &Reply) -> bool {
        let kept = |reply: &Reply| ["content-type", "location"].map(|name| reply.headers.get(name).cloned());
        self.status == other.status && self.body == other.body && kept(self) == kept(other)
    }
}
