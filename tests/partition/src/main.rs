//! The command line of the partition suite.

fn main() {}
