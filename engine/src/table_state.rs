//! What belongs to the shard table besides the shards: the numbers for new ones, and how operations
//! on shards have ended.
//!
//! Invariants: changes under the table lock only, together with the log record that says so, so a
//! checkpoint that takes a copy under that lock has exactly what the log before it has; an operation
//! has one outcome for good; at most [`MAX_DONE`] executions and [`MAX_REFUSED`] refusals are kept.

use std::collections::BTreeMap;

use crate::api::OperationOutcome;
use crate::error::{Error, ErrorKind, Result};
use crate::types::{InstanceId, Lsn, ShardId};

/// Most executions that are remembered; the oldest go first.
pub(crate) const MAX_DONE: usize = 1024;
/// Most refusals that wait to be forgotten.
const MAX_REFUSED: usize = 1 << 16;
/// Longest reason of a refusal in bytes; the rest is cut off.
const MAX_REASON_BYTES: usize = 1024;

/// The state; see the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct TableState {
    /// The next instance that is made here.
    pub(crate) next_instance: InstanceId,
    /// The next shard id that the engine makes by itself.
    pub(crate) next_shard: ShardId,
    /// How operations ended.
    pub(crate) operations: Operations,
}

impl TableState {
    /// These numbers are in use.
    pub(crate) fn saw(&mut self, shard: ShardId, instance: InstanceId) {
        self.next_shard = self.next_shard.max(ShardId(shard.0.saturating_add(1)));
        self.next_instance = self.next_instance.max(InstanceId(instance.0.saturating_add(1)));
    }
}

/// An operation that has ended.
#[derive(Clone, Debug)]
struct Ended {
    /// Counts the operations, to find the oldest.
    order: u64,
    /// A crash can take it back until the log is durable up to here.
    lsn: Lsn,
    outcome: OperationOutcome,
}

/// The outcomes of operations, by their number.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operations {
    ended: BTreeMap<u64, Ended>,
    done: usize,
    next_order: u64,
}

impl Operations {
    /// The outcomes of a checkpoint, oldest first.
    pub(crate) fn restore(outcomes: &[(u64, OperationOutcome)]) -> Self {
        let mut operations = Self::default();
        for (operation, outcome) in outcomes {
            operations.end(*operation, outcome.clone(), Lsn(0));
        }
        operations
    }

    /// All outcomes, oldest first.
    pub(crate) fn list(&self) -> Vec<(u64, OperationOutcome)> {
        let mut all: Vec<_> = self.ended.iter().collect();
        all.sort_unstable_by_key(|(_, ended)| ended.order);
        all.into_iter().map(|(operation, ended)| (*operation, ended.outcome.clone())).collect()
    }

    /// The operations that have ended, ascending.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.ended.keys().copied()
    }

    /// The outcome, and the LSN up to which the log must be durable before anybody may know.
    pub(crate) fn get(&self, operation: u64) -> Option<(&OperationOutcome, Lsn)> {
        self.ended.get(&operation).map(|ended| (&ended.outcome, ended.lsn))
    }

    /// Whether the operation was executed (its LSN) or may be (`None`); an error if it was refused.
    pub(crate) fn may_execute(&self, operation: u64) -> Result<Option<Lsn>> {
        match self.get(operation) {
            None => Ok(None),
            Some((OperationOutcome::Done, lsn)) => Ok(Some(lsn)),
            Some((OperationOutcome::Refused { reason }, _)) => Err(Error::new(
                ErrorKind::Refused,
                format!("operation {operation} was refused: {reason}"),
            )),
        }
    }

    /// Whether the operation was refused (its LSN) or may be (`None`); an error if it was executed,
    /// or if too many are refused.
    pub(crate) fn may_refuse(&self, operation: u64) -> Result<Option<Lsn>> {
        match self.get(operation) {
            Some((OperationOutcome::Refused { .. }, lsn)) => Ok(Some(lsn)),
            Some((OperationOutcome::Done, _)) => Err(Error::new(
                ErrorKind::AlreadyDone,
                format!("operation {operation} was executed; it cannot be refused any more"),
            )),
            None if self.ended.len() - self.done >= MAX_REFUSED => Err(Error::invalid(format!(
                "{MAX_REFUSED} operations are refused and not forgotten; forget some first"
            ))),
            None => Ok(None),
        }
    }

    /// The operation has ended, by the record that ends at `lsn`. The first outcome stays.
    pub(crate) fn end(&mut self, operation: u64, outcome: OperationOutcome, lsn: Lsn) {
        if operation == 0 || self.ended.contains_key(&operation) {
            return;
        }
        self.done += usize::from(outcome == OperationOutcome::Done);
        let order = self.next_order;
        self.next_order += 1;
        self.ended.insert(operation, Ended { order, lsn, outcome });
        if self.done > MAX_DONE {
            let done = self.ended.iter().filter(|(_, e)| e.outcome == OperationOutcome::Done);
            let oldest = done.min_by_key(|(_, ended)| ended.order).map(|(operation, _)| *operation);
            if let Some(oldest) = oldest {
                self.forget(oldest);
            }
        }
    }

    /// Nobody will ask for it again.
    pub(crate) fn forget(&mut self, operation: u64) {
        if let Some(ended) = self.ended.remove(&operation) {
            self.done -= usize::from(ended.outcome == OperationOutcome::Done);
        }
    }
}

/// A reason as it is kept.
pub(crate) fn cut_reason(reason: &str) -> &str {
    let mut lengths = (0..=MAX_REASON_BYTES.min(reason.len())).rev();
    &reason[..lengths.find(|&len| reason.is_char_boundary(len)).unwrap_or(0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> OperationOutcome {
        OperationOutcome::Refused { reason: "no".into() }
    }

    #[test]
    fn the_first_outcome_stays_until_it_is_forgotten() {
        let mut operations = Operations::default();
        operations.end(5, refused(), Lsn(8));
        operations.end(5, OperationOutcome::Done, Lsn(16));
        assert_eq!(operations.may_execute(5).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(operations.may_refuse(5).unwrap(), Some(Lsn(8)));
        operations.end(6, OperationOutcome::Done, Lsn(24));
        assert_eq!(operations.may_execute(6).unwrap(), Some(Lsn(24)));
        assert_eq!(operations.may_refuse(6).unwrap_err().kind(), ErrorKind::AlreadyDone);
        operations.forget(5);
        assert_eq!(operations.may_execute(5).unwrap(), None);
        operations.end(0, OperationOutcome::Done, Lsn(32));
        assert_eq!(operations.list(), [(6, OperationOutcome::Done)]);
    }

    #[test]
    fn the_oldest_executions_go_and_refusals_stay() {
        let mut operations = Operations::default();
        for number in (1..3000).rev() {
            let outcome = if number % 2 == 0 { refused() } else { OperationOutcome::Done };
            operations.end(number, outcome, Lsn(0));
        }
        let list = operations.list();
        assert_eq!(list.len(), 1499 + MAX_DONE);
        assert!(list.contains(&(1, OperationOutcome::Done)), "the newest");
        assert!(!list.contains(&(2999, OperationOutcome::Done)), "the oldest");
        assert!(list.contains(&(2998, refused())));
        assert_eq!(Operations::restore(&list).list(), list);
    }

    #[test]
    fn a_long_reason_is_cut_between_characters() {
        assert_eq!(cut_reason("short"), "short");
        let long = "\u{e9}".repeat(1000);
        assert!(cut_reason(&long).len() <= MAX_REASON_BYTES && long.starts_with(cut_reason(&long)));
    }
}
