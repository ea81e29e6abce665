//! The state machine of a shard: dispatches a command to its mechanism, keeps the shard clock and its counters.
