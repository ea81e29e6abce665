//! The partition suite: a real cluster under load while networks, clocks, disks and processes fail, everything recorded, and
//! the record judged against every promise. What may be done to a cluster is in `nemesis`, what is asked of it in `workload`;
//! what a history must be like is none of this crate's business: that is `onceward-checkers`.

pub mod arena;
pub mod final_reads;
pub mod load;
pub mod message;
pub mod mutations;
pub mod nemesis;
pub mod options;
pub mod progress;
pub mod receivers;
pub mod recorder;
pub mod run;
pub mod summary;
pub mod wire;
pub mod workload;
