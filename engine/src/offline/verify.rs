//! Checking a closed directory.
//!
//! Invariant: changes nothing; one damaged file does not keep the others from being checked.

use std::path::Path;

use super::look;
use crate::api::VerifyReport;
use crate::checkpoint::manifest::ManifestShard;
use crate::error::Result;
use crate::identity::{self, read_whole};
use crate::index::decode;
use crate::io::Disk;
use crate::options::Options;
use crate::recovery::{load_manifest, load_store};
use crate::store::Store;
use crate::value_log::{ValueLog, check_files};
use crate::wal::{Reference, Replay};

/// Checks a closed directory: identity, manifest, index files, every record of the checkpoint,
/// and the log.
pub fn verify(dir: impl AsRef<Path>) -> Result<VerifyReport> {
    let (disk, _lock) = look(dir.as_ref())?;
    let mut report = VerifyReport::default();
    let mut note = |problems: Vec<String>| report.problems.extend(problems);
    if let Err(error) = identity::load(&*disk) {
        note(vec![error.to_string()]);
    }
    let mut manifest = match load_manifest(&*disk) {
        Ok(manifest) => manifest,
        Err(error) => {
            note(vec![error.to_string()]);
            return Ok(report);
        }
    };
    let log = (manifest.checkpoint_lsn, manifest.freeze_lsn);
    // What cannot be read is left out of what comes next.
    manifest.shards.retain(|shard| match check_index(&*disk, shard) {
        Ok(()) => true,
        Err(error) => {
            report.problems.push(error.to_string());
            false
        }
    });
    let problems = check_files(&*disk, &manifest.segments, manifest.value_segment_bytes);
    let values_are_well = problems.is_empty();
    report.problems.extend(problems.iter().map(ToString::to_string));
    let mut store = None;
    if values_are_well {
        store = load_store(&disk, Options::default(), &manifest)
            .inspect_err(|error| report.problems.push(error.to_string()))
            .ok();
    }
    if let Some(store) = &store {
        verify_records(store, &mut report);
    }
    let log = Replay::open(disk, &Options::default(), log.0, log.1).and_then(|mut replay| {
        if let Some(store) = &store {
            verify_references(&store.value_log, &mut replay, &mut report)?;
        }
        replay.for_each(&mut |_record, _end| {
            report.records += 1;
            Ok(())
        })
    });
    if let Err(error) = log {
        report.problems.push(error.to_string());
    }
    Ok(report)
}

fn check_index(disk: &dyn Disk, shard: &ManifestShard) -> Result<()> {
    shard.file_paths().try_for_each(|path| {
        let bytes = read_whole(disk, &path)?;
        decode(&disk.root().join(path), &bytes).map(drop)
    })
}

/// Checks every value that the log refers to, up to where an open would cut it.
fn verify_references(
    value_log: &ValueLog,
    replay: &mut Replay,
    report: &mut VerifyReport,
) -> Result<()> {
    let is_whole = |reference: &Reference<'_>| {
        Ok(value_log.value_of_reference(reference.key, reference.at)?.is_some())
    };
    replay.cut_torn_references(&mut |reference| is_whole(reference))?;
    replay.for_each_reference(&mut |reference, _| {
        if !is_whole(&reference)? {
            let error = value_log.missing_reference(reference.at).with_key(reference.key);
            report.problems.push(error.to_string());
        }
        Ok(())
    })
}

fn verify_records(store: &Store, report: &mut VerifyReport) {
    for shard in store.table.load().shards() {
        let bundle = shard.load();
        let mut entries = bundle.sorted.cursor();
        entries.seek_first();
        while let Some(key) = entries.key() {
            store.verify_key(key, report);
            entries.next();
        }
    }
}
