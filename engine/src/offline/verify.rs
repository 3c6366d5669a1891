//! Checking a closed directory.
//!
//! Invariant: changes nothing; one damaged file does not keep the others from being checked.

use std::path::Path;
use std::sync::Arc;

use super::look;
use crate::api::VerifyReport;
use crate::checkpoint::manifest::{Manifest, ManifestShard};
use crate::error::Result;
use crate::identity::{self, read_whole};
use crate::index::decode;
use crate::io::Disk;
use crate::options::Options;
use crate::recovery::{load_manifest, load_store};
use crate::value_log::check_files;
use crate::wal::Replay;

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
    if values_are_well {
        verify_records(&disk, &manifest, &mut report);
    }
    let log = Replay::open(disk, &Options::default(), log.0, log.1).and_then(|replay| {
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

fn verify_records(disk: &Arc<dyn Disk>, manifest: &Manifest, report: &mut VerifyReport) {
    let store = match load_store(disk, Options::default(), manifest) {
        Ok(store) => store,
        Err(error) => return report.problems.push(error.to_string()),
    };
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
