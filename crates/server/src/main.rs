//! The binary `onceward`.

use std::process::ExitCode;

fn main() -> ExitCode {
    onceward_server::cli::run()
}
