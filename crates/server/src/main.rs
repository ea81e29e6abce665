//! The binary `onceward`.

use std::process::ExitCode;

/// A fifth of the time of a busy node went into the system's allocator: every hop of a check makes small, short-lived
/// objects on one thread and drops them on another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    onceward_server::cli::run()
}
