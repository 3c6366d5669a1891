//! The command line.
//!
//! Invariant: a flag that is accepted is honoured; what is not built is refused by name.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::amplification::AmplificationArguments;
use crate::checkpoint::CheckpointArguments;
use crate::jobs::JobsArguments;
use crate::memory::MemoryArguments;
use crate::recovery::RecoveryArguments;
use crate::runner::SWAP_FILE_BYTES;
use crate::splits::SplitsArguments;
use crate::store::StoreName;
use crate::workload::{Cell, Flavour, MIN_RECORDS, Scenario, Touch, Workload};

/// Measures vmemkv on this machine.
#[derive(Parser, Debug)]
#[command(name = "vmemkv-bench", version, about, subcommand_required = true)]
pub(crate) struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// One cell of the matrix: one store under one workload
    Engine(EngineArguments),
    Splits(SplitsArguments),
    Jobs(JobsArguments),
    Recovery(RecoveryArguments),
    Memory(MemoryArguments),
    Checkpoint(CheckpointArguments),
    Amplification(AmplificationArguments),
    /// Removes the data of earlier runs
    Clean {
        /// The directory of the data
        #[arg(long, default_value = "./vmemkv-bench-data")]
        dir: PathBuf,
    },
    /// Loads or ages a corpus, in a process of its own: started by `engine`
    #[command(hide = true)]
    Prepare(PrepareArguments),
    /// Does one task in a process of its own: started by the subcommands above
    #[command(hide = true)]
    Measured {
        /// The task, as JSON.
        #[arg(long)]
        task: String,
        /// The cgroup to enter first.
        #[arg(long)]
        cgroup: Option<PathBuf>,
    },
}

/// Flags of `engine`.
#[derive(Args, Debug)]
pub(crate) struct EngineArguments {
    /// Value size, and whether the data fits in memory
    #[arg(long, value_enum)]
    pub(crate) scenario: Scenario,
    /// What is done to the store
    #[arg(long, value_enum)]
    pub(crate) workload: Workload,
    /// The store, with its variant: vmemkv[:baseline|bf|inline|pinrandom|pinseq]
    #[arg(long, default_value = "vmemkv")]
    pub(crate) store: StoreName,
    /// Threads that issue operations
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) threads: u16,
    /// Records of the corpus [default: by scenario]
    #[arg(long, value_parser = clap::value_parser!(u64).range(MIN_RECORDS..=1 << 32))]
    pub(crate) records: Option<u64>,
    /// Length of the timed window [default: 5, ycsb-e 30]
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// The seeds' keys, or those of the field
    #[arg(long, value_enum, default_value = "seed")]
    pub(crate) flavour: Flavour,
    /// How values are read
    #[arg(long, value_enum, default_value = "line")]
    pub(crate) touch: Touch,
    /// Memory limit of the measured process in bytes, page cache included [default: 1 GiB for the
    /// scenarios that are larger than memory, none for the others]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u64).range(16 << 20..))]
    pub(crate) memory_limit: Option<u64>,
    /// Swap file for a run with a memory limit on a machine without swap; 0 = none
    #[arg(long, value_name = "BYTES", default_value_t = SWAP_FILE_BYTES)]
    pub(crate) swap_bytes: u64,
    #[command(flatten)]
    pub(crate) place: Place,
}

/// Where data and result go: flags of every subcommand that measures.
#[derive(Args, Debug)]
pub(crate) struct Place {
    /// Where the data lives: a disk, not a tmpfs
    #[arg(long, default_value = "./vmemkv-bench-data")]
    pub(crate) dir: PathBuf,
    /// Write the result as one JSON object; `-` for standard output
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

impl EngineArguments {
    /// The cell that they name.
    pub(crate) fn cell(&self) -> Cell {
        Cell {
            scenario: self.scenario,
            workload: self.workload,
            flavour: self.flavour,
            threads: usize::from(self.threads),
            records: self.records.unwrap_or_else(|| self.scenario.default_records()),
            seconds: self.seconds.unwrap_or_else(|| self.workload.default_seconds()),
            touch: self.touch,
        }
    }
}

/// Flags of `prepare`.
#[derive(Args, Debug)]
pub(crate) struct PrepareArguments {
    #[arg(long, value_enum)]
    pub(crate) scenario: Scenario,
    #[arg(long, value_enum)]
    pub(crate) flavour: Flavour,
    #[arg(long)]
    pub(crate) records: u64,
    #[arg(long)]
    pub(crate) store: StoreName,
    /// The directory of all data.
    #[arg(long)]
    pub(crate) dir: PathBuf,
    /// Age this copy instead of loading.
    #[arg(long)]
    pub(crate) age: Option<PathBuf>,
}

/// Reads a length of time in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let sensible = (0.01..=86_400.0).contains(&seconds);
    sensible.then_some(seconds).ok_or_else(|| "from 0.01 to 86400".into())
}

/// Reads the command line; help and mistakes end the process as clap does, with 0 and 2.
pub(crate) fn parse() -> Arguments {
    Arguments::parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn engine(more: &[&str]) -> Result<Cell, clap::Error> {
        let base = ["vmemkv-bench", "engine", "--scenario", "1kb-mem", "--workload", "ycsb-e"];
        let parsed = Arguments::try_parse_from(base.iter().chain(more))?;
        match parsed.command {
            Command::Engine(engine) => Ok(engine.cell()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn defaults_follow_scenario_and_workload() {
        let cell = engine(&[]).expect("cell");
        assert_eq!((cell.threads, cell.records, cell.seconds), (1, 2_000_000, 30.0));
        assert_eq!((cell.flavour, cell.touch), (Flavour::Seed, Touch::Line));
    }

    #[test]
    fn values_out_of_range_are_refused() {
        for wrong in [
            ["--threads", "0"],
            ["--records", "10"],
            ["--seconds", "0"],
            ["--seconds", "nan"],
            ["--store", "leveldb"],
            ["--flavour", "sweet"],
        ] {
            assert!(engine(&wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_what_is_built_is_listed() {
        let command = Arguments::command();
        let listed = command.get_subcommands().filter(|command| !command.is_hide_set());
        assert_eq!(
            listed.map(clap::Command::get_name).collect::<Vec<_>>(),
            [
                "engine",
                "splits",
                "jobs",
                "recovery",
                "memory",
                "checkpoint",
                "amplification",
                "clean"
            ]
        );
    }
}
