//! The worst that a crash leaves of the value log: anything above the base lengths.
//!
//! Invariants: not a byte below a base length that the manifest names is touched, nor one in a page that
//! a log record refers to; all else may be. The same seed writes the same bytes.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use vmemkv_engine::io::testing::{CrashDisk, PowerCut};
use vmemkv_engine::offline;

const PAGE: usize = 4096;

/// What a power cut leaves, in `dir`, with its value log scribbled over.
pub(crate) fn cut_to(
    disk: &CrashDisk,
    point: Option<usize>,
    dir: &Path,
    cut: &PowerCut,
) -> Arc<CrashDisk> {
    disk.materialise(point, dir, cut).unwrap();
    scribble(dir, cut.seed.wrapping_add(point.unwrap_or(0) as u64));
    CrashDisk::new(dir).unwrap()
}

/// What `kill -9` leaves, in `dir`, with its value log scribbled over.
pub(crate) fn killed_to(disk: &CrashDisk, dir: &Path, seed: u64) -> Arc<CrashDisk> {
    let killed = disk.kill(dir).unwrap();
    scribble(dir, seed);
    killed
}

/// Writes over every page with content above the bases of a closed directory, and over some empty
/// ones: random bytes, or a page that holds whole records of another place. How many pages.
pub(crate) fn scribble(dir: &Path, seed: u64) -> usize {
    let folder = dir.join("t2");
    // A crash while the directory was made: nothing was acknowledged yet.
    let is_whole = ["t2", "MANIFEST", "IDENTITY"].iter().all(|name| dir.join(name).exists());
    if !is_whole {
        return 0;
    }
    let found = offline::inspect(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let bases: BTreeMap<_, _> = found.value_segments.into_iter().collect();
    let pages_of = |(segment, range): (u32, Range<u64>)| {
        // With the header: the log names the file.
        let pages = range.start / PAGE as u64..range.end.div_ceil(PAGE as u64);
        pages.chain([0]).map(move |page| (segment, page))
    };
    let referred: HashSet<(u32, u64)> = found.references.into_iter().flat_map(pages_of).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    names.sort();
    let mut stale = vec![0; PAGE];
    let mut scribbled = 0;
    for path in names {
        let number = path.file_stem().and_then(|name| name.to_str()).unwrap().parse();
        let segment: Option<u32> = number.ok();
        let base = segment.and_then(|number| bases.get(&number)).copied().unwrap_or(0);
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let pages = file.metadata().unwrap().len() / PAGE as u64;
        let mut page = vec![0; PAGE];
        for number in 0..pages {
            let offset = number * PAGE as u64;
            file.read_exact_at(&mut page, offset).unwrap();
            let is_empty = page.iter().all(|byte| *byte == 0);
            let is_referred = segment.is_some_and(|segment| referred.contains(&(segment, number)));
            if offset < u64::from(base) || is_referred || (is_empty && !random.random_bool(0.002)) {
                if !is_empty {
                    stale.copy_from_slice(&page);
                }
                continue;
            }
            let kept = page.clone();
            if random.random_bool(0.3) {
                page.copy_from_slice(&stale);
            } else {
                random.fill_bytes(&mut page);
            }
            stale = kept;
            file.write_all_at(&page, offset).unwrap();
            scribbled += 1;
        }
    }
    scribbled
}
