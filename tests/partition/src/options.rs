//! What a run is made of, as the command line says it; and the command line that makes the same run again.

use std::{path::PathBuf, time::Duration};

use crate::{
    arena::Net,
    nemesis::{Kind, Order},
    workload::Workload,
};

#[derive(Debug, Clone)]
pub struct Options {
    pub nemesis: Chosen<Kind>,
    pub order: Order,
    /// For which nemeses are played; set-up and final reads come on top.
    pub time: Duration,
    pub seed: u64,
    pub nodes: u16,
    pub workload: Chosen<Workload>,
    /// Calls a second of all clients together.
    pub rate: f64,
    pub net: Net,
    /// The directory that the run leaves.
    pub out: PathBuf,
    /// A mutation of the product that the run is to catch.
    pub fault: Option<String>,
}

/// A choice, and the words that it was made by.
#[derive(Debug, Clone)]
pub struct Chosen<T> {
    pub words: String,
    pub items: Vec<T>,
}

impl Options {
    /// What was given on the command line, or stands for it.
    pub fn again(&self) -> String {
        let Options { nemesis, order, time, seed, nodes, workload, rate, net, fault, .. } = self;
        let order = match order {
            Order::InTurn => "in-turn",
            Order::Combined => "combined",
        };
        let net = match net {
            Net::Proxy => "proxy",
            Net::Netns => "netns",
        };
        let fault = fault.as_ref().map(|fault| format!(" --fault {fault}")).unwrap_or_default();
        format!(
            "scripts/partition --nemesis {} --order {order} --time {}s --seed {seed} --nodes {nodes} --workload {} --rate \
             {rate} --net {net}{fault}",
            nemesis.words,
            time.as_secs(),
            workload.words,
        )
    }
}

/// Reads `90s`, `10m` or `2h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let (count, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit_s = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3_600,
        _ => return Err(format!("{text:?} is no time; write 90s, 10m or 2h")),
    };
    let count: u64 = count.parse().map_err(|_| format!("{text:?} is no time; write 90s, 10m or 2h"))?;
    if count == 0 { Err("a run takes some time".to_owned()) } else { Ok(Duration::from_secs(count * unit_s)) }
}
