//! Each node in a network namespace of its own, on a bridge; conditions are rules of the kernel: `nft` drops and rejects,
//! `tc` throttles and, where the kernel has netem, delays. Needs root, `ip`, `tc` and `nft`.
//!
//! Names carry this process' id. What a process left behind that was killed is removed by the next one that starts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    io::Write as _,
    net::Ipv4Addr,
    process::{Command, Stdio},
    time::Duration,
};

use tokio::{task::block_in_place, time::sleep};

use super::{Condition, Flow, Party, Passage};

/// Where nodes listen: every namespace has all ports to itself.
pub const HTTP_PORT: u16 = 4001;
pub const PEER_PORT: u16 = 4101;
const NAMESPACE_PREFIX: &str = "onceward-";
/// Names of interfaces have 15 characters at most; a process' id has up to 7.
const BRIDGE_PREFIX: &str = "owb";
const VETH_PREFIX: &str = "owv";
/// The bridge has two addresses, so that clients can be cut off and observers are not.
const CLIENTS_HOST: u8 = 254;
const OBSERVERS_HOST: u8 = 253;
/// How long the rule stands by which connections are reset: longer than the busiest link is silent, heartbeats included.
const RESET_FOR: Duration = Duration::from_millis(400);

/// The namespaces of all nodes; dropping it removes them, and kills what still runs in them.
pub struct Namespaces {
    nodes: u16,
    conditions: BTreeMap<Flow, Condition>,
    /// What the rules counted before they were last replaced.
    counted: BTreeMap<&'static str, u64>,
    delays: bool,
}

impl Namespaces {
    /// # Panics
    /// With what to install or become, when something is missing.
    pub fn start(nodes: u16) -> Namespaces {
        remove_stale();
        let mut namespaces = Namespaces { nodes, conditions: BTreeMap::new(), counted: BTreeMap::new(), delays: false };
        let bridge = bridge(std::process::id());
        ip(&format!("link add {bridge} type bridge"));
        for host in [CLIENTS_HOST, OBSERVERS_HOST] {
            ip(&format!("addr add {}/24 dev {bridge}", address(host)));
        }
        ip(&format!("link set {bridge} up"));
        for node in 1..=nodes {
            let (namespace, veth) = (namespace(node), veth(std::process::id(), node));
            ip(&format!("netns add {namespace}"));
            ip(&format!("link add {veth} type veth peer name eth0 netns {namespace}"));
            ip(&format!("link set {veth} master {bridge} up"));
            ip(&format!("-n {namespace} addr add {}/24 dev eth0", namespaces.node_address(node)));
            ip(&format!("-n {namespace} link set eth0 up"));
            ip(&format!("-n {namespace} link set lo up"));
        }
        namespaces.delays = has_netem(&namespace(1));
        (1..=nodes).for_each(|node| namespaces.apply(node));
        namespaces
    }

    pub fn node_address(&self, node: u16) -> Ipv4Addr {
        address(u8::try_from(node).expect("clusters are small"))
    }

    /// From where clients dial, and where they can listen for what nodes send.
    pub fn clients_address(&self) -> Ipv4Addr {
        address(CLIENTS_HOST)
    }

    /// From where observers dial, whom nothing disturbs.
    pub fn observers_address(&self) -> Ipv4Addr {
        address(OBSERVERS_HOST)
    }

    /// What runs a command within a node's namespace: the beginning of its command line.
    pub fn prefix(&self, node: u16) -> Vec<String> {
        ["ip", "netns", "exec", &namespace(node)].map(str::to_owned).to_vec()
    }

    /// Whether the kernel can delay packets; where it can't, slow links are only throttled.
    pub fn delays(&self) -> bool {
        self.delays
    }

    pub fn set(&mut self, conditions: &[(Flow, Condition)]) {
        self.conditions.extend(conditions.iter().copied());
        let parties: BTreeSet<Party> = conditions.iter().flat_map(|(flow, _)| [flow.from, flow.to]).collect();
        for party in parties {
            if let Party::Node(node) = party {
                self.apply(node);
            }
        }
    }

    pub async fn reset(&mut self, flow: Flow) {
        let both = [flow, flow.back()];
        let before = both.map(|flow| (flow, self.condition(flow)));
        block_in_place(|| self.set(&both.map(|flow| (flow, Condition::reset()))));
        sleep(RESET_FOR).await;
        block_in_place(|| self.set(&before));
    }

    pub fn heal(&mut self) {
        self.conditions.clear();
        (1..=self.nodes).for_each(|node| self.apply(node));
    }

    pub fn counters(&self) -> BTreeMap<&'static str, u64> {
        let mut counters = self.counted.clone();
        for node in 1..=self.nodes {
            self.count(node, &mut counters);
        }
        counters
    }

    fn condition(&self, flow: Flow) -> Condition {
        self.conditions.get(&flow).copied().unwrap_or_default()
    }

    /// Replaces a node's rules. Its packets are judged where they come in; what goes to clients, where it leaves.
    fn apply(&mut self, node: u16) {
        let mut counted = std::mem::take(&mut self.counted);
        self.count(node, &mut counted);
        self.counted = counted;
        run(&format!("ip netns exec {} nft -f -", namespace(node)), &self.rules(node));
        self.shape(node);
    }

    fn rules(&self, node: u16) -> String {
        let mut rules = String::from("add table inet faults\nflush table inet faults\ntable inet faults {\n");
        for (chain, field) in [("input", "saddr"), ("output", "daddr")] {
            writeln!(rules, "chain {chain} {{ type filter hook {chain} priority 0;").expect("strings take all");
            for (flow, condition) in &self.conditions {
                let other = match chain {
                    "input" if flow.to == Party::Node(node) => flow.from,
                    "output" if flow.from == Party::Node(node) && flow.to == Party::Clients => flow.to,
                    _ => continue,
                };
                let packets = format!("ip {field} {}", self.address_of(other));
                match condition.passage {
                    Passage::Open if condition.corrupt_per_1000 > 0 => {
                        let lost = condition.corrupt_per_1000;
                        writeln!(rules, "{packets} numgen random mod 1000 < {lost} counter drop")
                    }
                    Passage::Open => continue,
                    Passage::Hold => writeln!(rules, "{packets} counter drop"),
                    Passage::Reset => writeln!(rules, "{packets} meta l4proto tcp counter reject with tcp reset"),
                }
                .expect("strings take all");
            }
            rules.push_str("}\n");
        }
        rules.push_str("}\n");
        rules
    }

    /// Classes for the flows that leave this node slower than it could.
    fn shape(&self, node: u16) {
        let tc = |arguments: &str| run(&format!("ip netns exec {} tc {arguments}", namespace(node)), "");
        // It fails when there is none.
        let _ = try_run(&format!("ip netns exec {} tc qdisc del dev eth0 root", namespace(node)), "");
        let slow = |(flow, condition): &(&Flow, &Condition)| {
            flow.from == Party::Node(node) && (condition.bytes_per_s.is_some() || !condition.delay.is_zero())
        };
        for (index, (flow, condition)) in self.conditions.iter().filter(slow).enumerate() {
            if index == 0 {
                tc("qdisc add dev eth0 root handle 1: htb");
            }
            let class = 10 + index;
            let rate = condition.bytes_per_s.map_or("10gbit".to_owned(), |bytes_per_s| format!("{bytes_per_s}bps"));
            tc(&format!("class add dev eth0 parent 1: classid 1:{class} htb rate {rate} burst 16384 quantum 4096"));
            let to = self.address_of(flow.to);
            tc(&format!("filter add dev eth0 parent 1: protocol ip u32 match ip dst {to}/32 flowid 1:{class}"));
            if self.delays && !condition.delay.is_zero() {
                let mean = condition.delay + condition.jitter / 2;
                let (mean_ms, half_ms) = (mean.as_millis(), (condition.jitter / 2).as_millis());
                tc(&format!("qdisc add dev eth0 parent 1:{class} netem delay {mean_ms}ms {half_ms}ms"));
            }
        }
    }

    fn address_of(&self, party: Party) -> Ipv4Addr {
        match party {
            Party::Node(node) => self.node_address(node),
            Party::Clients => self.clients_address(),
        }
    }

    /// Adds what the rules and classes of a node counted since they were made.
    fn count(&self, node: u16, counters: &mut BTreeMap<&'static str, u64>) {
        let listed = try_run(&format!("ip netns exec {} nft list table inet faults", namespace(node)), "");
        for line in listed.unwrap_or_default().lines() {
            let Some(packets) = number_after(line, "packets ") else { continue };
            let name = if line.contains("reject") { "packets_rejected" } else { "packets_dropped" };
            *counters.entry(name).or_default() += packets;
        }
        let classes = try_run(&format!("ip netns exec {} tc -s class show dev eth0", namespace(node)), "");
        for line in classes.unwrap_or_default().lines() {
            if let Some(bytes) = number_after(line, "Sent ") {
                *counters.entry("bytes_slowed").or_default() += bytes;
            }
        }
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        remove(std::process::id());
    }
}

fn number_after(line: &str, word: &str) -> Option<u64> {
    line.split_once(word)?.1.split(' ').next()?.parse().ok()
}

fn namespace(node: u16) -> String {
    format!("{NAMESPACE_PREFIX}{}-{node}", std::process::id())
}

fn bridge(process: u32) -> String {
    format!("{BRIDGE_PREFIX}{process}")
}

fn veth(process: u32, node: u16) -> String {
    format!("{VETH_PREFIX}{process}n{node}")
}

/// In a network that depends on the process, so that two runs don't meet.
fn address(host: u8) -> Ipv4Addr {
    let process = std::process::id();
    Ipv4Addr::new(10, 200 + (process % 50) as u8, (process / 50 % 250) as u8, host)
}

fn has_netem(namespace: &str) -> bool {
    let netem = format!("ip netns exec {namespace} tc qdisc");
    let has = try_run(&format!("{netem} add dev eth0 root netem delay 1ms"), "").is_ok();
    if has {
        run(&format!("{netem} del dev eth0 root"), "");
    }
    has
}

/// Removes what processes left that are dead.
fn remove_stale() {
    let listed = try_run("ip netns list", "").unwrap_or_default();
    let owner = |line: &str| line.strip_prefix(NAMESPACE_PREFIX)?.split('-').next()?.parse::<u32>().ok();
    let mut owners: Vec<u32> = listed.lines().filter_map(owner).collect();
    owners.dedup();
    for process in owners {
        // Of a dead process that nobody has waited for, the command line is empty.
        let command_line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
        if command_line.is_empty() {
            remove(process);
        }
    }
}

/// Removes all that a process made, and whatever runs in it.
fn remove(process: u32) {
    let listed = try_run("ip netns list", "").unwrap_or_default();
    let own = format!("{NAMESPACE_PREFIX}{process}-");
    for name in listed.lines().filter_map(|line| line.split(' ').next()).filter(|name| name.starts_with(&own)) {
        for pid in try_run(&format!("ip netns pids {name}"), "").unwrap_or_default().lines() {
            if let Some(pid) = pid.trim().parse().ok().and_then(rustix::process::Pid::from_raw) {
                // It may be gone by now.
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = try_run(&format!("ip netns del {name}"), "");
        // The kernel takes its time for what was in a namespace; this end of the pair takes the other with it.
        if let Some(node) = name.rsplit('-').next().and_then(|node| node.parse().ok()) {
            let _ = try_run(&format!("ip link del {}", veth(process, node)), "");
        }
    }
    let _ = try_run(&format!("ip link del {}", bridge(process)), "");
}

fn ip(arguments: &str) {
    run(&format!("ip {arguments}"), "");
}

fn run(command: &str, input: &str) {
    if let Err(error) = try_run(command, input) {
        panic!(
            "`{command}` failed: {error}\n{input}\nnetwork namespaces need root, `ip`, `tc` (iproute2) and `nft` (nftables)"
        );
    }
}

/// What the command said, or its complaint. Its words have no spaces in them.
fn try_run(command: &str, input: &str) -> Result<String, String> {
    let mut words = command.split(' ');
    let mut child = Command::new(words.next().expect("a command"))
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).map_err(|error| error.to_string())?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
