//! What a measured process can be told to do. Each task belongs to the module of its subcommand.
//!
//! Invariant: a task carries all that it needs; nothing is read from the environment.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::{amplification, checkpoint, command, jobs, memory, recovery, splits};

/// One task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// `engine`, larger than memory.
    Cell(command::CellTask),
    /// `recovery`, before a clean stop.
    RecoveryLoad(recovery::Load),
    /// `recovery`, after it.
    RecoveryOpen(recovery::Load),
    /// `recovery`, until it is killed.
    RecoveryWrite(recovery::Write),
    /// `recovery`, after the kill.
    RecoveryReplay(recovery::Write),
    /// `memory`, after a load.
    MemoryLoad(memory::Task),
    /// `memory`, after a reopen.
    MemoryReopen(memory::Task),
    /// `checkpoint`, with one number of keys.
    Checkpoint(checkpoint::Task),
    /// `splits`.
    Splits(splits::InsertTask),
    /// `jobs`, one job in one scenario.
    Jobs(jobs::MeasureTask),
    /// `amplification`, one phase.
    Overwrite(amplification::OverwriteTask),
}

impl Task {
    /// Does it; the answers go to standard output.
    pub(crate) fn run(&self) -> Result<()> {
        match self {
            Self::Cell(task) => command::measure_cell(task),
            Self::RecoveryLoad(task) => recovery::load(task),
            Self::RecoveryOpen(task) => recovery::open(task),
            Self::RecoveryWrite(task) => recovery::write(task),
            Self::RecoveryReplay(task) => recovery::replay(task),
            Self::MemoryLoad(task) => memory::load(task),
            Self::MemoryReopen(task) => memory::reopen(task),
            Self::Checkpoint(task) => checkpoint::measure(task),
            Self::Splits(task) => splits::insert(task),
            Self::Jobs(task) => jobs::measure(task),
            Self::Overwrite(task) => amplification::overwrite(task),
        }
    }
}
