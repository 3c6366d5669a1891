//! The seeds' benchmark matrix: workloads, stores and what a cell reports; and the measurements
//! beside it, of background jobs, splits, restarts, memory and disk.
//!
//! Invariants: keys, draws and values are prepared outside the timed loop; a write is
//! acknowledged only once it is durable; values are incompressible and really read; `verified` is
//! true only if the store was looked at after the run and held what it should.

mod amplification;
mod args;
mod bulk;
mod checkpoint;
mod command;
mod corpus;
mod driver;
mod foreground;
mod histogram;
mod jobs;
mod keygen;
mod memory;
mod operations;
mod output;
mod plan;
mod progress;
mod random;
mod recovery;
mod runner;
mod shaped_keys;
mod smaps;
mod splits;
mod statistics;
mod store;
mod system;
mod task;
mod values;
mod verify;
mod workload;

use std::process::ExitCode;

/// Parses the command line and runs. Exit status: 0 done, 1 failed, 2 wrong use.
pub fn main() -> ExitCode {
    vmemkv_engine::keep_heap_small();
    match command::run(args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("vmemkv-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
