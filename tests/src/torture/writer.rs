//! One of those that write.
//!
//! Invariants: a key has one writer, which waits for a write of it before it tries the next; an
//! attempt goes to the ledger before it is made, what was not made to the notes before the next.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Result;
use rand::{RngExt, rngs::StdRng};
use vmemkv_engine::{Condition, ErrorKind, KeyRange, Lsn, Operation};

use super::child::{Work, violation};
use super::keys::{Kind, Unit};
use super::skips::Skip;

/// One writer: its units, and which of them wait for the log.
pub(super) struct Writer<'a> {
    work: &'a Work<'a>,
    random: StdRng,
    waiting: VecDeque<(usize, u64, Lsn)>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(work: &'a Work<'a>, random: StdRng) -> Self {
        Self { work, random, waiting: VecDeque::new() }
    }

    /// Writes until the work stops.
    pub(super) fn run(&mut self, writer: usize) -> Result<()> {
        let units = &self.work.keys.units[writer];
        let depth = self.random.random_range(1..12);
        while !self.work.is_stopped() {
            let number = self.random.random_range(0..units.len());
            if self.waiting.iter().any(|waiting| waiting.0 == number) {
                continue;
            }
            let unit = &units[number];
            let n = unit.keys.iter().map(|key| self.work.ledger.attempted(*key)).max();
            let n = n.unwrap_or(0) + 1;
            for key in &unit.keys {
                self.work.ledger.attempt(*key, n)?;
            }
            let skip = self.work.plant && self.random.random_bool(0.01);
            let written = if skip { Ok(Lsn(0)) } else { self.write(unit, n) };
            match written {
                Ok(lsn) => self.waiting.push_back((number, n, lsn)),
                Err(error) if is_full(&error) => {
                    // Nothing was changed, but perhaps a part of a range. Reads and jobs go on.
                    self.skip(unit, n)?;
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(error) => return Err(error),
            }
            self.work.operations.fetch_add(1, Ordering::Relaxed);
            while self.waiting.len() >= depth {
                self.acknowledge(units)?;
            }
        }
        Ok(())
    }

    fn acknowledge(&mut self, units: &[Unit]) -> Result<()> {
        let Some((number, n, lsn)) = self.waiting.pop_front() else { return Ok(()) };
        self.work.engine.wait_durable(lsn)?;
        for key in &units[number].keys {
            self.work.ledger.acknowledge(*key, n)?;
        }
        // Its own write, at once.
        let key = units[number].keys[self.random.random_range(0..units[number].keys.len())];
        let value = self.work.engine.get(self.work.keys.name(key))?;
        self.work.saw(key, n, value.as_deref(), "the writer's own get")
    }

    fn skip(&self, unit: &Unit, n: u64) -> Result<()> {
        for key in &unit.keys {
            let in_parts = unit.kind == Kind::Range && self.work.keys.written(*key, n).is_none();
            let skip = if in_parts { Skip::Perhaps } else { Skip::Never };
            self.work.skips.note(*key, n, skip)?;
        }
        Ok(())
    }

    /// Makes write `n` of a unit.
    fn write(&mut self, unit: &Unit, n: u64) -> Result<Lsn> {
        let (keys, engine) = (self.work.keys, self.work.engine);
        let operation = |key: &usize| {
            let name = keys.name(*key).to_vec();
            match keys.written(*key, n) {
                Some(value) => Operation::Put { key: name, value },
                None => Operation::Delete { key: name },
            }
        };
        match unit.kind {
            Kind::Single => self.write_one(unit.keys[0], n),
            Kind::Range if keys.written(unit.keys[0], n).is_none() => {
                let (start, end) = keys.range_of(unit.keys[0]);
                let mut range = KeyRange::new(start, end);
                loop {
                    let deleted = engine.delete_range(&range, 10)?;
                    if deleted.done {
                        return Ok(deleted.lsn);
                    }
                    range.start = deleted.covered_to;
                }
            }
            _ => {
                let operations: Vec<_> = unit.keys.iter().map(operation).collect();
                Ok(engine.write_batch(&operations)?)
            }
        }
    }

    /// With the condition that must hold, now and then: the writer knows what is there.
    fn write_one(&mut self, key: usize, n: u64) -> Result<Lsn> {
        let (keys, engine) = (self.work.keys, self.work.engine);
        // Known as the only writer, whose last write of this key was acknowledged or found.
        let there = keys.written(key, self.work.ledger.known(key));
        let condition = match (self.random.random_range(0..6), &there) {
            (0, None) => Condition::IfAbsent,
            (0, Some(_)) => Condition::IfPresent,
            (1, Some(value)) => Condition::IfValueEquals(value.clone()),
            _ => Condition::None,
        };
        let name = keys.name(key);
        let written = match keys.written(key, n) {
            Some(value) => engine.put(name, &value, &condition)?,
            None => engine.delete(name, &condition)?,
        };
        if !written.applied || written.existed != there.is_some() {
            let name = name.escape_ascii();
            let (applied, existed) = (written.applied, written.existed);
            violation(&format!(
                "write {n} of key \"{name}\" with {condition:.40?}: applied {applied}, existed {existed}"
            ));
        }
        Ok(written.lsn)
    }
}

fn is_full(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<vmemkv_engine::Error>().map(vmemkv_engine::Error::kind);
    matches!(kind, Some(ErrorKind::DiskFull | ErrorKind::MemoryFull))
}
