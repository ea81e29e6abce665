//! The nemeses by name, and which of them may act at the same time.

use std::{ops::RangeInclusive, time::Duration};

use self::Kind::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    LeaderIsolated,
    RandomHalves,
    OneWay,
    Bridge,
    SlowLinks,
    FlakyLinks,
    Corrupt,
    ClientLinks,
    KillOne,
    KillLeader,
    KillAll,
    PauseLeader,
    RollingRestart,
    WallClock,
    WallClockStrobe,
    ClockRate,
    DiskFull,
    SlowFsync,
    FsyncError,
    Snapshots,
    ReplaceNode,
}

/// What a nemesis acts on. Two of one group would undo or hide each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// Which nodes reach each other.
    Cut,
    /// Which processes run.
    Processes,
    /// A node's whole disk, which nothing but other nodes brings back.
    Membership,
    WallClocks,
    /// Each is a group of its own.
    Other,
}

impl Kind {
    pub const ALL: [Kind; 21] = [
        LeaderIsolated,
        RandomHalves,
        OneWay,
        Bridge,
        SlowLinks,
        FlakyLinks,
        Corrupt,
        ClientLinks,
        KillOne,
        KillLeader,
        KillAll,
        PauseLeader,
        RollingRestart,
        WallClock,
        WallClockStrobe,
        ClockRate,
        DiskFull,
        SlowFsync,
        FsyncError,
        Snapshots,
        ReplaceNode,
    ];

    pub fn name(self) -> &'static str {
        match self {
            LeaderIsolated => "leader-isolated",
            RandomHalves => "random-halves",
            OneWay => "one-way",
            Bridge => "bridge",
            SlowLinks => "slow-links",
            FlakyLinks => "flaky-links",
            Corrupt => "corrupt",
            ClientLinks => "client-links",
            KillOne => "kill-one",
            KillLeader => "kill-leader",
            KillAll => "kill-all",
            PauseLeader => "pause-leader",
            RollingRestart => "rolling-restart",
            WallClock => "wall-clock",
            WallClockStrobe => "wall-clock-strobe",
            ClockRate => "clock-rate",
            DiskFull => "disk-full",
            SlowFsync => "slow-fsync",
            FsyncError => "fsync-error",
            Snapshots => "snapshots",
            ReplaceNode => "replace-node",
        }
    }

    /// A bridge needs two nodes at either side of it.
    pub fn nodes_min(self) -> u16 {
        if self == Bridge { 5 } else { 3 }
    }

    /// How long it acts; it may take longer to undo itself.
    pub fn lasts(self) -> RangeInclusive<Duration> {
        let seconds = |least, most| Duration::from_secs(least)..=Duration::from_secs(most);
        match self {
            // Each ends when it has done what it does.
            KillAll | RollingRestart | FsyncError | ReplaceNode => seconds(5, 8),
            // Two or three leaders in a row.
            LeaderIsolated | KillLeader | PauseLeader => seconds(12, 15),
            _ => seconds(8, 12),
        }
    }

    fn group(self) -> Group {
        match self {
            LeaderIsolated | RandomHalves | OneWay | Bridge => Group::Cut,
            KillOne | KillLeader | KillAll | PauseLeader | RollingRestart | FsyncError => Group::Processes,
            ReplaceNode => Group::Membership,
            WallClock | WallClockStrobe => Group::WallClocks,
            SlowLinks | FlakyLinks | Corrupt | ClientLinks | ClockRate | DiskFull | SlowFsync | Snapshots => {
                Group::Other
            }
        }
    }

    /// Whether which nodes reach each other is its to decide.
    pub fn cuts(self) -> bool {
        matches!(self.group(), Group::Cut | Group::Membership)
    }

    /// Whether which processes run is its to decide.
    pub fn runs_processes(self) -> bool {
        matches!(self.group(), Group::Processes | Group::Membership)
    }

    /// Whether the two may act at the same time. A node is replaced only while nothing else takes nodes or links away, and no
    /// disk is full: what its disk held must be whole on the others, and come from them.
    pub fn goes_with(self, other: Kind) -> bool {
        let apart = |one: Kind, two: Kind| {
            one.group() == Group::Membership && (two.cuts() || two.runs_processes() || two == DiskFull)
        };
        let same_group = self.group() == other.group() && self.group() != Group::Other;
        self != other && !same_group && !apart(self, other) && !apart(other, self)
    }
}

/// Reads `all`, or names with commas between them, for a cluster of so many nodes.
pub fn parse(spec: &str, nodes: u16) -> Result<Vec<Kind>, String> {
    let possible = |kind: &Kind| kind.nodes_min() <= nodes;
    if spec == "all" {
        return Ok(Kind::ALL.into_iter().filter(possible).collect());
    }
    let known = || Kind::ALL.map(Kind::name).join(", ");
    let mut kinds = Vec::new();
    for name in spec.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| format!("there is no nemesis `{name}`; there are: all, {}", known()))?;
        if !possible(&kind) {
            return Err(format!("{name} needs {} nodes", kind.nodes_min()));
        }
        kinds.push(kind);
    }
    match kinds.is_empty() {
        true => Err(format!("no nemesis is named; there are: all, {}", known())),
        false => Ok(kinds),
    }
}

/// The settings that nodes need for these nemeses.
pub fn settings(kinds: &[Kind]) -> Vec<(String, toml::Value)> {
    let snapshots = kinds.contains(&Snapshots).then(|| ("raft.snapshot_entries".to_owned(), 100.into()));
    snapshots.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_read_back_and_an_unknown_one_is_told_which_there_are() {
        for kind in Kind::ALL {
            assert_eq!(parse(kind.name(), 5), Ok(vec![kind]));
        }
        assert_eq!(parse("kill-one, corrupt", 3), Ok(vec![KillOne, Corrupt]));
        assert!(!parse("all", 3).unwrap().contains(&Bridge) && parse("all", 5).unwrap().contains(&Bridge));
        assert!(parse("bridge", 3).unwrap_err().contains("5 nodes"));
        assert!(parse("kill-two", 3).unwrap_err().contains("kill-one"));
        assert!(parse(" ,", 3).is_err());
    }

    #[test]
    fn whether_two_go_together_does_not_depend_on_which_was_first() {
        for one in Kind::ALL {
            assert!(!one.goes_with(one));
            for two in Kind::ALL {
                assert_eq!(one.goes_with(two), two.goes_with(one), "{one:?} {two:?}");
            }
        }
    }
}
