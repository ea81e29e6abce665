//! The cluster as a client sees it: nodes to ask in turn, and a script that kills and starts them.

use std::{
    io::Write,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use onceward_core::cluster::Manifest;
use reqwest::{Method, header::HeaderMap};
use serde_json::{Value, json};

pub struct Cluster {
    http: reqwest::Client,
    /// Id and URL.
    nodes: Vec<(u16, String)>,
    dead: Option<u16>,
    placement: Manifest,
    script: Option<PathBuf>,
}

pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Answer {
    /// The members of the only, or first, result.
    pub fn result(&self, member: &str) -> u64 {
        self.body["results"][0][member].as_u64().unwrap_or(u64::MAX)
    }
}

impl Cluster {
    /// Learns of all nodes from the first that answers.
    pub async fn reach(urls: &[String], script: Option<PathBuf>) -> Result<Cluster> {
        let http = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build()?;
        for url in urls {
            let Ok(response) = http.get(format!("{url}/v1/cluster")).send().await else { continue };
            let status: Value = serde_json::from_str(&response.text().await?)?;
            let nodes = status["nodes"].as_array().context("no list of nodes")?;
            let nodes = nodes.iter().filter_map(|node| {
                Some((node["id"].as_u64()? as u16, format!("http://{}", node["http_address"].as_str()?)))
            });
            let data_shards = status["shards"].as_array().context("no list of shards")?.len().saturating_sub(1) as u16;
            ensure!(data_shards > 0, "the cluster at {url} is still being founded");
            let placement = Manifest { cluster_id: 0, data_shards, nodes: Vec::new() };
            return Ok(Cluster { http, nodes: nodes.collect(), dead: None, placement, script });
        }
        bail!("no node answers at {}; start the cluster first: scripts/cluster up", urls.join(", "))
    }

    pub fn describe(&self) -> String {
        self.nodes.iter().map(|(id, url)| format!("node {id} {url}")).collect::<Vec<_>>().join(", ")
    }

    /// The URLs of all nodes, dead or alive.
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(|(_, url)| url.clone()).collect()
    }

    /// A node's URL, another one for each turn, never that of a node we killed.
    pub fn url(&self, turn: usize) -> &str {
        let alive: Vec<&String> =
            self.nodes.iter().filter(|(id, _)| Some(*id) != self.dead).map(|(_, url)| url).collect();
        alive[turn % alive.len()]
    }

    pub async fn put_policy(&self, name: &str, policy: Value) -> Result<Answer> {
        let url = format!("{}/v1/policies/{name}", self.url(0));
        self.send(self.http.put(url), policy).await
    }

    /// One request against all these (policy, key), cost 1 each.
    pub async fn check(&self, turn: usize, checks: &[(&str, &str)]) -> Result<Answer> {
        let checks: Vec<Value> = checks.iter().map(|(policy, key)| json!({ "policy": policy, "key": key })).collect();
        let url = format!("{}/v1/limits/check", self.url(turn));
        self.send(self.http.post(url), json!({ "checks": checks })).await
    }

    /// What a bucket has left: a peek takes nothing.
    pub async fn peek(&self, turn: usize, policy: &str, key: &str) -> Result<Answer> {
        let checks = json!([{ "policy": policy, "key": key, "cost": 0 }]);
        let url = format!("{}/v1/limits/check", self.url(turn));
        self.send(self.http.post(url), json!({ "checks": checks, "mode": "peek" })).await
    }

    /// A call of the webhooks API.
    pub async fn webhooks(&self, method: Method, path: &str, body: Value) -> Result<Answer> {
        let url = format!("{}/api/v1{path}", self.url(1));
        self.send(self.http.request(method, url), body).await
    }

    async fn send(&self, request: reqwest::RequestBuilder, body: Value) -> Result<Answer> {
        let request = request.header("content-type", "application/json").body(body.to_string());
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).with_context(|| format!("status {status}, no JSON: {text}"))?;
        Ok(Answer { status, headers, body })
    }

    pub fn shard_of(&self, policy: &str, key: &str) -> u16 {
        self.placement.bucket_shard(policy, key).0
    }

    pub fn shard_of_account(&self, account: &str) -> u16 {
        self.placement.account_shard(account).0
    }

    /// The node that leads a shard.
    pub async fn leader(&self, shard: u16) -> Result<u16> {
        let status = self.http.get(format!("{}/v1/cluster", self.url(0))).send().await?.text().await?;
        let status: Value = serde_json::from_str(&status)?;
        let shards = status["shards"].as_array().context("no list of shards")?;
        let leader = shards.iter().find(|status| status["id"] == shard).and_then(|status| status["leader"].as_u64());
        Ok(leader.with_context(|| format!("shard {shard} has no leader"))? as u16)
    }

    pub fn can_kill(&self) -> bool {
        self.script.is_some()
    }

    /// Kills a node. Whatever comes of the story, it is started again at the end; the only one, at once.
    pub fn kill(&mut self, node: u16) -> Result<()> {
        self.dead = Some(node);
        self.run("kill", node)?;
        if self.nodes.len() == 1 { self.start_again() } else { Ok(()) }
    }

    /// Starts the node that was killed and waits until it is ready.
    pub fn start_again(&mut self) -> Result<()> {
        match self.dead.take() {
            Some(node) => self.run("start", node),
            None => Ok(()),
        }
    }

    fn run(&self, command: &str, node: u16) -> Result<()> {
        let script = self.script.as_ref().context("no script that kills and starts nodes")?;
        // In a group of its own: Ctrl-C is for the story, neither for the script nor for the node that it starts.
        let status = Command::new(script).arg(command).arg(node.to_string()).process_group(0).status()?;
        ensure!(status.success(), "{} {command} {node} failed", script.display());
        Ok(())
    }

    /// Asks until the bucket's shard answers, as a client does that is told 503; says how long and how often that took.
    pub async fn wait_served(&self, policy: &str, key: &str) -> Result<(Duration, u32)> {
        let began = Instant::now();
        let mut refused = 0;
        while began.elapsed() < Duration::from_secs(15) {
            let answer = self.peek(refused as usize, policy, key).await?;
            match answer.status {
                200 => return Ok((began.elapsed(), refused)),
                503 | 504 => refused += 1,
                other => bail!("status {other}: {}", answer.body),
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("nobody serves {policy}/{key}")
    }
}

impl Drop for Cluster {
    /// The story broke off: the cluster that it was told on is left as it was found.
    fn drop(&mut self) {
        let Some(node) = self.dead else { return };
        let outcome = match self.start_again() {
            Ok(()) => format!("node {node}, which was killed for the story, runs again"),
            Err(error) => format!("node {node}, which was killed for the story, does not run: {error:#}"),
        };
        // Where nobody listens any more, the node runs all the same.
        let _ = writeln!(std::io::stderr(), "\n{outcome}");
    }
}
