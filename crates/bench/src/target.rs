//! The cluster that is measured: one started here, whose processes can be looked at, or one behind URLs.

use anyhow::{Context, bail};
use onceward_core::cluster::Manifest;
use onceward_tests::{client::Api, cluster::Cluster};
use serde_json::json;

use crate::Options;

/// Never runs out and is never full again while we measure.
pub const POLICY: &str = "bench";

pub struct Target {
    pub apis: Vec<Api>,
    /// `host:port` of every node.
    pub addresses: Vec<String>,
    own: Option<Cluster>,
    placement: Manifest,
}

impl Target {
    pub async fn reach(options: &Options) -> anyhow::Result<Target> {
        let own = if options.url.is_empty() { Some(start(options).await) } else { None };
        let apis = match &own {
            Some(cluster) => cluster.apis(),
            None => options.url.iter().map(|url| Api::new(url.trim_end_matches('/').to_owned())).collect(),
        };
        let mut addresses = Vec::new();
        for api in &apis {
            let address = api.url.strip_prefix("http://").context("URLs look like http://127.0.0.1:4001")?;
            addresses.push(address.to_owned());
            if !api.is_ready().await {
                bail!("{} is not ready", api.url);
            }
        }
        let policy =
            json!({ "rate": "1/365d", "burst": 1_000_000_000_000u64, "on_unavailable": "deny", "timeout_ms": 2000 });
        let written = apis[0].put_policy(POLICY, policy).await;
        if !matches!(written.status, 200 | 201) {
            bail!("the policy {POLICY:?} could not be written: {}", written.body);
        }
        let data_shards = apis[0].cluster().await.shards.len() as u16 - 1;
        Ok(Target { apis, addresses, own, placement: Manifest { cluster_id: 0, data_shards, nodes: Vec::new() } })
    }

    /// The processes of the nodes, where they are ours.
    pub fn pids(&self) -> Option<Vec<u32>> {
        self.own.as_ref().map(Cluster::pids)
    }

    /// The cluster, where it is ours.
    pub fn own(&self) -> Option<&Cluster> {
        self.own.as_ref()
    }

    pub fn own_mut(&mut self) -> Option<&mut Cluster> {
        self.own.as_mut()
    }

    pub fn shard_of(&self, key: &str) -> u16 {
        self.placement.bucket_shard(POLICY, key).0
    }

    pub async fn stop(self) {
        if let Some(mut cluster) = self.own {
            cluster.stop_all().await;
        }
    }
}

async fn start(options: &Options) -> Cluster {
    let loopback = toml::Value::Array(vec!["127.0.0.0/8".into()]);
    let mut builder = Cluster::builder().nodes(options.nodes).data_shards(options.data_shards);
    builder = builder.set("webhooks.allow_private", loopback);
    for (name, value) in &options.set {
        builder = builder.set(name, value.clone());
    }
    builder.start().await
}
