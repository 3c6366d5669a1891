//! The data directory as a whole: making a new one, and telling ours from others.
//!
//! Invariants: IDENTITY is written last, so a directory without it was never used and may be made
//! again; a directory that holds anything else is never touched.

use std::path::Path;

use crate::api::Identity;
use crate::checkpoint::manifest::{MANIFEST, Manifest, ManifestShard};
use crate::error::{Error, ErrorKind, Result};
use crate::identity::{self, IDENTITY};
use crate::io::{Disk, replace_file};
use crate::options::Options;
use crate::types::{InstanceId, ShardId};

/// The folders of a data directory.
pub(crate) const FOLDERS: [&str; 3] = ["t1", "t2", "wal"];
const LOCK: &str = "LOCK";

/// Whether the directory is one of ours, complete.
pub(crate) fn is_ours(disk: &dyn Disk) -> Result<bool> {
    exists(disk, IDENTITY)
}

/// Checks, before anything is touched, that the directory may be used: it is ours, or it may be
/// made.
pub(crate) fn check(disk: &dyn Disk, options: &Options) -> Result<()> {
    let root = disk.root();
    if !exists(disk, "")? {
        return if options.create {
            Ok(())
        } else {
            Err(Error::foreign(root, "there is no such directory"))
        };
    }
    if is_ours(disk)? {
        return Ok(());
    }
    let names = disk.list(Path::new("")).map_err(|error| Error::io("list", root, &error))?;
    let started_by_us = |name: &str| {
        FOLDERS.contains(&name)
            || name == LOCK
            || name.starts_with(MANIFEST)
            || name.starts_with(IDENTITY)
    };
    if let Some(other) = names.iter().find(|name| !started_by_us(name)) {
        let what =
            format!("holds \"{other}\" and is no vmemkv directory; give an empty or a new one");
        return Err(Error::foreign(root, what));
    }
    if !options.create {
        return Err(Error::foreign(root, "is no vmemkv directory"));
    }
    Ok(())
}

/// Makes a new directory's files: folders, a first manifest, and the identity last.
pub(crate) fn make(disk: &dyn Disk, options: &Options) -> Result<()> {
    if let Ok(names) = disk.list(Path::new("wal"))
        && !names.is_empty()
    {
        let what =
            format!("{IDENTITY} is missing although a log is there; restore it from a backup");
        return Err(Error::new(ErrorKind::Corrupt, format!("{}: {what}", disk.root().display())));
    }
    let fail = |action: &'static str, name: &str| {
        let path = disk.root().join(name);
        move |error: std::io::Error| Error::io(action, path, &error)
    };
    for folder in FOLDERS {
        disk.create_dir(Path::new(folder)).map_err(fail("create", folder))?;
        disk.sync_dir(Path::new(folder)).map_err(fail("sync", folder))?;
    }
    let mut manifest =
        Manifest { value_segment_bytes: options.value_segment_bytes, ..Manifest::default() };
    for (number, range) in (1..).zip(options.initial_ranges()) {
        manifest.shards.push(ManifestShard {
            id: ShardId(number),
            instance: InstanceId(number),
            epoch: 1,
            revision: Default::default(),
            files: Vec::new(),
            range,
        });
    }
    let next = manifest.shards.len() as u64 + 1;
    manifest.next_instance = InstanceId(next);
    manifest.next_shard = ShardId(next);
    replace_file(disk, Path::new(MANIFEST), &manifest.encode())?;
    let identity = Identity { node_id: identity::new_node_id()?, ..Identity::default() };
    identity::store(disk, &identity)
}

fn exists(disk: &dyn Disk, name: &str) -> Result<bool> {
    disk.exists(Path::new(name))
        .map_err(|error| Error::io("look at", disk.root().join(name), &error))
}
