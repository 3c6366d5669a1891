//! The explicit way out of a log that is damaged in its middle: end it below the damage.
//!
//! Invariants: without `apply` nothing is changed; the log's new end is durable before the manifest
//! lets go of what it proved, so a crash in between leaves a directory that is refused and can be
//! repaired again; before either, the revisions that were handed out are given up, so that readers of
//! changes are told to begin anew; no other byte of the directory is touched.

use std::path::Path;
use std::sync::Arc;

use super::look;
use crate::checkpoint::manifest::{MANIFEST, Manifest, ManifestShard};
use crate::directory;
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{self, read_whole};
use crate::index::decode;
use crate::io::{Disk, LockFile, replace_file};
use crate::options::Options;
use crate::recovery::load_manifest;
use crate::types::{Lsn, Revision};
use crate::wal::{DamagedLog, Dropped};

/// What a repair found, and would do or did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repair {
    /// What an open says of the directory.
    pub damage: String,
    /// The checkpoint holds everything below; the log cannot end before it.
    pub checkpoint_lsn: Lsn,
    /// Every record from there to here can be read: where the log ends if nothing else is asked for.
    pub valid_to: Lsn,
    /// Where the log ends.
    pub to_lsn: Lsn,
    /// What is given up.
    pub dropped: Dropped,
    /// The log ends below what was durable when the checkpoint was committed: some of what is given
    /// up is in the checkpoint all the same, so a batch may be there in part and a key may go back
    /// to a value of before the checkpoint.
    pub mixed: bool,
    /// Whether it was done.
    pub applied: bool,
}

/// Ends the damaged log of a closed directory at `to_lsn` (default: where the damage begins), if
/// `apply`; else says what that would give up.
///
/// # Errors
/// `InvalidArgument` for a log that is well and for an LSN at which it cannot end, with the nearest
/// below at which it can; `Corrupt` when something else than the log is damaged, which this cannot
/// mend. Nothing is changed then.
pub fn repair(dir: impl AsRef<Path>, to_lsn: Option<Lsn>, apply: bool) -> Result<Repair> {
    let (disk, lock) = look(dir.as_ref())?;
    let repaired = run(&disk, to_lsn, apply);
    drop(lock);
    repaired
}

/// The same on any [`Disk`].
pub fn repair_on(disk: &Arc<dyn Disk>, to_lsn: Option<Lsn>, apply: bool) -> Result<Repair> {
    directory::check(&**disk, &Options { create: false, ..Options::default() })?;
    let lock = LockFile::acquire(&**disk)?;
    let repaired = run(disk, to_lsn, apply);
    drop(lock);
    repaired
}

fn run(disk: &Arc<dyn Disk>, to_lsn: Option<Lsn>, apply: bool) -> Result<Repair> {
    identity::load(&**disk)?;
    let manifest = check_the_rest(&**disk)?;
    let (checkpoint_lsn, freeze_lsn) = (manifest.checkpoint_lsn, manifest.freeze_lsn);
    let log = DamagedLog::look(Arc::clone(disk), checkpoint_lsn, freeze_lsn)?;
    let Some(damage) = &log.damage else {
        return Err(Error::invalid(format!(
            "the log of {} is not damaged, so nothing is cut from it",
            disk.root().display()
        )));
    };
    let to = to_lsn.unwrap_or(log.valid_to);
    log.check_end(to)?;
    let repair = Repair {
        damage: damage.to_string(),
        checkpoint_lsn,
        valid_to: log.valid_to,
        to_lsn: to,
        dropped: log.dropped(to, freeze_lsn)?,
        mixed: to < freeze_lsn,
        applied: apply,
    };
    if apply {
        let store =
            |manifest: &Manifest| replace_file(&**disk, Path::new(MANIFEST), &manifest.encode());
        let manifest = Manifest { revision_floor: floor(&manifest), ..manifest };
        store(&manifest)?;
        log.end_at(to)?;
        if repair.mixed {
            store(&Manifest { freeze_lsn: to, ..manifest })?;
        }
        let after = DamagedLog::look(Arc::clone(disk), checkpoint_lsn, freeze_lsn.min(to))?;
        if let Some(damage) = after.damage {
            return Err(Error::new(damage.kind(), format!("still damaged: {damage}")));
        }
    }
    Ok(repair)
}

/// More changes than any log can hold: it may have had segments whose headers are damaged, or that
/// are gone, so what is left of it does not say how many there were. The counter has room for millions
/// of repairs.
const MORE_THAN_LOGGED: u64 = 1 << 40;

/// Above every revision that was ever handed out, by the checkpoint or after it. What is given up had
/// some of them, and its readers may have seen it: what comes now must have others.
fn floor(manifest: &Manifest) -> Revision {
    let known = manifest.shards.iter().map(|shard| shard.revision);
    let known = known.chain([manifest.revision_floor]).max().unwrap_or_default();
    Revision(known.0.saturating_add(MORE_THAN_LOGGED))
}

/// Checks what a cut of the log cannot mend.
fn check_the_rest(disk: &dyn Disk) -> Result<Manifest> {
    let manifest = load_manifest(disk).map_err(|error| {
        cannot(&error, "the manifest says which files belong together, and is not made from them")
    })?;
    for path in manifest.shards.iter().flat_map(ManifestShard::file_paths) {
        let full = disk.root().join(&path);
        read_whole(disk, &path).and_then(|bytes| decode(&full, &bytes)).map_err(|error| {
            let why = "the keys of a shard are in this file only: the log has what came after it";
            cannot(&error, why)
        })?;
    }
    Ok(manifest)
}

fn cannot(error: &Error, why: &str) -> Error {
    let kind = error.kind();
    let message = match kind {
        ErrorKind::Corrupt => {
            format!(
                "{error}; {why}. A repair cannot bring it back: restore the directory from a \
                     backup. Nothing was changed"
            )
        }
        _ => error.to_string(),
    };
    Error::new(kind, message)
}
