//! The binary `onceward-faults`: `onceward`, with a mistake built in and a clock and a disk that misbehave when told to.
//! The tests of Onceward run it; nobody else should.
//!
//! `ONCEWARD_FAULT` names the mistake (`onceward_core::faults`), `ONCEWARD_FAILPOINTS` the file that tells clock and disk
//! (`onceward_server::failpoints`). Without either it is `onceward`.

use std::{env, process::ExitCode};

use onceward_core::faults::{self, Fault};
use onceward_server::{cli, failpoints};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match choose() {
        Ok(()) => cli::run(),
        Err(wrong) => {
            eprintln!("onceward-faults: {wrong}");
            ExitCode::from(cli::EXIT_USAGE)
        }
    }
}

fn choose() -> Result<(), String> {
    if let Some(name) = env::var_os("ONCEWARD_FAULT") {
        let fault: Fault = name.to_string_lossy().parse().map_err(|error| format!("ONCEWARD_FAULT: {error}"))?;
        faults::choose(fault);
        eprintln!("onceward-faults: this node makes a mistake on purpose: {}", fault.name());
    }
    if let Some(file) = env::var_os("ONCEWARD_FAILPOINTS") {
        failpoints::follow(file.into()).map_err(|error| format!("ONCEWARD_FAILPOINTS: {error}"))?;
    }
    Ok(())
}
