//! Reading everything and checking it, while the engine serves.
//!
//! Invariants: changes nothing; a record that changes while it is examined is examined again; the
//! work between two questions to `cancelled` is bounded.

use crate::api::VerifyReport;
use crate::checkpoint::manifest::index_path;
use crate::core::Core;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{self, read_whole};
use crate::index::{Slot, decode};
use crate::ops::Walk;
use crate::recovery::load_manifest;
use crate::store::{Store, escape};
use crate::types::KeyRange;
use crate::value_log::Location;
use crate::wal;

/// Keys between two questions to `cancelled`.
const STEP_KEYS: usize = 1024;

impl Core {
    /// Checks every live record, every index file, the log as far as it is needed and durable, the
    /// headers of the value segments, manifest and identity.
    pub(crate) fn verify(&self, cancelled: &dyn Fn() -> bool) -> Result<VerifyReport> {
        let mut report = VerifyReport::default();
        self.verify_files(&mut report);
        let mut rest = KeyRange::all();
        loop {
            if cancelled() {
                return Err(Error::new(ErrorKind::Unavailable, "the verification was cancelled"));
            }
            let mut keys: Vec<Vec<u8>> = Vec::with_capacity(STEP_KEYS);
            let walked = self.walk(&rest, false, &mut |visited| {
                keys.push(visited.key.to_vec());
                Ok(if keys.len() == STEP_KEYS { Walk::Stop } else { Walk::On })
            })?;
            keys.iter().for_each(|key| self.store.verify_key(key, &mut report));
            if walked.done {
                return Ok(report);
            }
            rest.start = walked.covered_to;
        }
    }

    fn verify_files(&self, report: &mut VerifyReport) {
        // Held so that no checkpoint replaces the files meanwhile.
        let committed = self.checkpointing.lock();
        if let Err(error) = load_manifest(&*self.disk) {
            report.problems.push(error.to_string());
        }
        {
            // Held so that nobody stores another one meanwhile.
            let identity = self.identity.lock();
            match identity::load(&*self.disk) {
                Ok(stored) if stored == *identity => {}
                Ok(_) => {
                    let path = self.disk.root().join(identity::IDENTITY);
                    let what = "another identity than that of the open directory";
                    report.problems.push(Error::corrupt(&path, 16, what).to_string());
                }
                Err(error) => report.problems.push(error.to_string()),
            }
        }
        let own = self.store.value_log.check_own_files();
        report.problems.extend(own.iter().map(ToString::to_string));
        let (from, to) = (self.wal.stats().checkpoint_lsn, self.wal.durable_lsn());
        // Not counted: the records of the report are the live ones.
        if let Err(error) = wal::check(&*self.disk, from, to) {
            report.problems.push(error.to_string());
        }
        let files = committed.files.iter().flat_map(|(instance, chain)| {
            chain.files.iter().map(|file| index_path(*instance, file.attempt))
        });
        for path in files {
            let full_path = self.disk.root().join(&path);
            let decoded =
                read_whole(&*self.disk, &path).and_then(|bytes| decode(&full_path, &bytes));
            if let Err(error) = decoded {
                report.problems.push(error.to_string());
            }
        }
    }
}

impl Store {
    /// Checks what the index says of a key and the record that it points to.
    pub(crate) fn verify_key(&self, key: &[u8], report: &mut VerifyReport) {
        loop {
            let guard = crossbeam_epoch::pin();
            let Ok(Some(slot)) = self.slot_of(key) else { return };
            let checked = match slot {
                Slot::Tombstone => return,
                Slot::Inline(_, len) => Ok(len),
                Slot::Value(at) => self.value_log.read_full_verify(Location(at), key, &guard),
            };
            match checked {
                Ok(value_bytes) => {
                    report.records += 1;
                    report.bytes += (key.len() + value_bytes) as u64;
                    return;
                }
                Err(error) => {
                    if self.slot_of(key).ok().flatten() == Some(slot) {
                        report.records += 1;
                        report.problems.push(format!("key \"{}\": {error}", escape(key)));
                        return;
                    }
                    // It moved on while it was read: look again.
                }
            }
        }
    }
}
