//! What the next checkpoint starts from, and which files it leaves to nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use super::Committed;
use super::chain::{Chain, IndexFile};
use super::manifest::index_path;
use crate::api::Condition;
use crate::core::Core;
use crate::io::Disk;
use crate::io::testing::{Fault, FaultDisk, Operation};
use crate::options::Options;
use crate::recovery::{self, load_manifest};
use crate::types::{CheckpointId, InstanceId};

fn chain(attempts: &[u64]) -> Chain {
    let file = |&attempt: &u64| IndexFile { attempt: CheckpointId(attempt), bytes: 1, entries: 1 };
    Chain::new(attempts.iter().map(file).collect())
}

fn chains(all: &[(u64, &[u64])]) -> BTreeMap<InstanceId, Chain> {
    all.iter().map(|(instance, attempts)| (InstanceId(*instance), chain(attempts))).collect()
}

/// Replaces, and checks that exactly the files go that nothing names.
fn replace(before: &[(u64, &[u64])], changed: &[(u64, &[u64])], left: &[u64]) {
    let mut committed = Committed { files: chains(before), ..Committed::default() };
    let paths = |committed: &Committed| -> BTreeSet<PathBuf> {
        let files = |(instance, chain): (&InstanceId, &Chain)| -> Vec<PathBuf> {
            chain.files.iter().map(|file| index_path(*instance, file.attempt)).collect()
        };
        committed.files.iter().flat_map(files).collect()
    };
    let old = paths(&committed);
    let unnamed = committed.replace(chains(changed), left.iter().copied().map(InstanceId));
    let named: BTreeSet<u64> = committed.files.keys().map(|instance| instance.0).collect();
    assert_eq!(named, left.iter().copied().collect());
    for (instance, attempts) in changed {
        assert_eq!(committed.files[&InstanceId(*instance)], chain(attempts));
    }
    let gone: BTreeSet<PathBuf> = old.difference(&paths(&committed)).cloned().collect();
    assert_eq!(unnamed.len(), gone.len());
    assert_eq!(BTreeSet::from_iter(unnamed), gone);
}

#[test]
fn files_go_with_their_chain_or_their_shard() {
    let before: &[(u64, &[u64])] = &[(1, &[1, 4]), (2, &[2]), (3, &[1, 2, 3])];
    replace(before, &[], &[1, 2, 3]);
    replace(before, &[(1, &[1, 4, 5])], &[1, 2, 3]);
    replace(before, &[(1, &[5])], &[1, 2, 3]);
    replace(before, &[(4, &[5])], &[1, 2, 3, 4]);
    // A split: the new ones are whole.
    replace(before, &[(4, &[5]), (5, &[5])], &[1, 2, 4, 5]);
    // A merge, and one more chain begun anew.
    replace(before, &[(3, &[5]), (4, &[5])], &[3, 4]);
}

/// The checkpoint waits for the log.
fn put(core: &Core, key: &[u8], value: &[u8]) {
    core.put(key, value, &Condition::None).unwrap();
}

/// The files that are there, and those that the manifest names.
fn files(disk: &dyn Disk) -> (BTreeSet<String>, BTreeSet<String>) {
    let there = disk.list("t1".as_ref()).unwrap().into_iter().collect();
    let manifest = load_manifest(disk).unwrap();
    let name = |path: PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
    let named = manifest.shards.iter().flat_map(|shard| shard.file_paths().map(name)).collect();
    (there, named)
}

/// Chains grow and begin anew, a shard is split, removals fail for a while: afterwards, nothing is
/// left that nobody names.
#[test]
fn what_could_not_be_removed_is_removed_later() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new(Arc::new(crate::io::OsDisk::new(dir.path())));
    let as_disk: Arc<dyn Disk> = disk.clone();
    let core = recovery::open(Arc::clone(&as_disk), Options::for_tests()).unwrap();
    let mut most = 0;
    let mut round = |from: u16, to: u16| {
        (from..to).for_each(|n| put(&core, format!("{n:05}").as_bytes(), &n.to_le_bytes()));
        core.checkpoint().unwrap();
        let (there, named) = files(&*as_disk);
        assert!(named.is_subset(&there), "{named:?} are not all of {there:?}");
        most = most.max(named.len());
        there.len() - named.len()
    };
    for n in 0..40 {
        assert_eq!(round(n, n + 100), 0, "round {n}");
    }
    disk.inject(Fault::new(&[Operation::Remove], libc::EIO).in_path("t1/").forever());
    let left: Vec<usize> = (0..40).map(|n| round(n, n + 100)).collect();
    assert!(left.iter().any(|&left| left > 0), "nothing was to be removed");
    assert!(left.is_sorted(), "nothing can go: {left:?}");
    disk.heal();
    assert_eq!(round(0, 1), 0);
    assert!(most > 1, "no chain grew");
}
