//! Deterministic simulation: the product's own code from the HTTP router down, on a simulated network, clock and disk, under
//! the workloads of the partition suite and judged by the same checkers.
//!
//! A seed decides all of a run: what clients do, what is done to the machines, how long each message and each sync takes,
//! which unsynced writes a power cut leaves, when elections begin. So a failing seed fails again, step by step.
//!
//! - [`cluster`]: the loop that lets time pass; [`world`]: time and what is to happen; [`randomness`]: where chance comes from
//! - [`machine`]: a disk, clocks and a process that can end at any moment; [`net`]: connections; [`receivers`]: of webhooks
//! - [`run`]: one seed; [`nemesis`]: what is done; [`gate`]: how clients reach nodes

pub mod clock;
pub mod cluster;
pub mod gate;
pub mod machine;
pub mod nemesis;
pub mod net;
pub mod panics;
pub mod randomness;
pub mod receivers;
pub mod run;
pub mod world;
