//! What may and what must not be left after a cut.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use super::{CrashDisk, Keep, PowerCut};
use crate::io::{Disk, create_dir_durable, create_durable, replace_file};

struct Bench {
    dir: tempfile::TempDir,
    disk: Arc<CrashDisk>,
    images: std::cell::Cell<u32>,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk = CrashDisk::new(dir.path().join("live")).unwrap();
        Self { dir, disk, images: 0.into() }
    }

    fn cut(&self, point: Option<usize>, cut: PowerCut) -> std::path::PathBuf {
        self.images.set(self.images.get() + 1);
        let target = self.dir.path().join(format!("image{}", self.images.get()));
        self.disk.materialise(point, &target, &cut).unwrap();
        target
    }
}

#[test]
fn keeps_what_was_synced_and_nothing_else() {
    let bench = Bench::new();
    let file = create_durable(&*bench.disk, Path::new("a")).unwrap();
    file.write_at(0, &[1; 10_000]).unwrap();
    file.sync_range(0, 5000).unwrap();
    file.write_at(0, &[2; 10_000]).unwrap();
    let image = bench.cut(None, PowerCut::strict());
    let content = std::fs::read(image.join("a")).unwrap();
    assert_eq!(content.len(), 10_000);
    assert!(content[..5000].iter().all(|byte| *byte == 1));
    assert!(content[5000..].iter().all(|byte| *byte == 0));
    file.sync().unwrap();
    let image = bench.cut(None, PowerCut::strict());
    assert_eq!(std::fs::read(image.join("a")).unwrap(), [2; 10_000]);
    let image = bench.cut(Some(2), PowerCut::strict());
    assert_eq!(std::fs::read(image.join("a")).unwrap()[..5000], [1; 5000]);
}

#[test]
fn an_older_write_never_comes_back_over_a_synced_one() {
    let bench = Bench::new();
    let file = create_durable(&*bench.disk, Path::new("a")).unwrap();
    file.write_at(0, &[1; 8192]).unwrap();
    file.write_at(1000, &[2; 1000]).unwrap();
    file.sync_range(1000, 1000).unwrap();
    let mut seen = HashSet::new();
    for seed in 0..200 {
        let content = std::fs::read(bench.cut(None, PowerCut::random(seed)).join("a")).unwrap();
        assert!(content[1000..2000].iter().all(|byte| *byte == 2), "seed {seed}");
        seen.insert((content[0], content[8191], content[4000]));
    }
    assert!(seen.len() >= 6, "{seen:?}");
}

#[test]
fn names_are_old_or_new_until_the_folder_is_synced() {
    let bench = Bench::new();
    replace_file(&*bench.disk, Path::new("M"), b"old").unwrap();
    let file = bench.disk.create(Path::new("M.tmp")).unwrap();
    file.write_at(0, b"new").unwrap();
    file.sync().unwrap();
    bench.disk.rename(Path::new("M.tmp"), Path::new("M")).unwrap();
    let mut seen = HashSet::new();
    for seed in 0..100 {
        let image = bench.cut(None, PowerCut::random(seed));
        seen.insert(std::fs::read(image.join("M")).unwrap());
    }
    assert_eq!(seen, HashSet::from([b"old".to_vec(), b"new".to_vec()]));
    bench.disk.sync_dir(Path::new("")).unwrap();
    let image = bench.cut(None, PowerCut::strict());
    assert_eq!(std::fs::read(image.join("M")).unwrap(), b"new");
}

#[test]
fn a_file_needs_its_folder_too() {
    let bench = Bench::new();
    bench.disk.create_dir(Path::new("d")).unwrap();
    create_durable(&*bench.disk, Path::new("d/f")).unwrap();
    assert!(!bench.cut(None, PowerCut::strict()).join("d").exists());
    create_dir_durable(&*bench.disk, Path::new("d")).unwrap();
    assert!(bench.cut(None, PowerCut::strict()).join("d/f").exists());
}

#[test]
fn mapped_stores_are_lost_torn_or_kept_until_they_are_synced() {
    let bench = Bench::new();
    let file = create_durable(&*bench.disk, Path::new("a")).unwrap();
    file.allocate(1 << 16).unwrap();
    file.sync().unwrap();
    let mapping = map(&*file, 1 << 16);
    mapping.store(0, &[7; 1 << 16]);
    let lost = std::fs::read(bench.cut(None, PowerCut::strict()).join("a")).unwrap();
    assert_eq!(lost, [0; 1 << 16]);
    let everything = PowerCut { seed: 0, keep: Keep::Everything, unit: 512 };
    let kept = std::fs::read(bench.cut(None, everything).join("a")).unwrap();
    assert_eq!(kept, [7; 1 << 16]);
    let torn = (0..20).any(|seed| {
        let some = std::fs::read(bench.cut(None, PowerCut::random(seed)).join("a")).unwrap();
        some.contains(&7) && some.contains(&0)
    });
    assert!(torn);
    file.sync_range(4096, 4096).unwrap();
    let image = std::fs::read(bench.cut(None, PowerCut::strict()).join("a")).unwrap();
    assert_eq!(image[4096..8192], [7; 4096]);
    assert_eq!(image[..4096], [0; 4096]);
}

#[test]
fn a_kill_loses_nothing_and_remembers_what_a_cut_may_take() {
    let bench = Bench::new();
    let file = create_durable(&*bench.disk, Path::new("a")).unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync().unwrap();
    file.write_at(0, b"cached").unwrap();
    let killed = bench.disk.kill(&bench.dir.path().join("killed")).unwrap();
    assert_eq!(std::fs::read(killed.root().join("a")).unwrap(), b"cached");
    let image = bench.dir.path().join("after");
    killed.materialise(None, &image, &PowerCut::strict()).unwrap();
    assert_eq!(std::fs::read(image.join("a")).unwrap(), b"synced");
    let image = bench.dir.path().join("later");
    killed.open(Path::new("a")).unwrap().sync().unwrap();
    killed.materialise(None, &image, &PowerCut::strict()).unwrap();
    assert_eq!(std::fs::read(image.join("a")).unwrap(), b"cached");
}

/// A mapping for this test only.
struct TestMapping(*mut libc::c_void, usize);

fn map(file: &dyn crate::io::File, len: usize) -> TestMapping {
    use std::os::fd::AsRawFd;
    // SAFETY: a new mapping of a file that is `len` long, at an address the kernel chooses.
    let address = unsafe {
        let flags = libc::PROT_READ | libc::PROT_WRITE;
        libc::mmap(std::ptr::null_mut(), len, flags, libc::MAP_SHARED, file.as_fd().as_raw_fd(), 0)
    };
    assert_ne!(address, libc::MAP_FAILED);
    TestMapping(address, len)
}

impl TestMapping {
    fn store(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.1);
        // SAFETY: in bounds; nobody else uses the mapping.
        unsafe {
            let to = self.0.cast::<u8>().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
    }
}

impl Drop for TestMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and not used any more.
        unsafe { libc::munmap(self.0, self.1) };
    }
}
