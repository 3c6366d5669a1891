//! What the allocator keeps, in a process where nothing else allocates.

#![cfg(all(target_os = "linux", target_env = "gnu"))]

use std::fs::File;
use std::io::Read;

use vmemkv_engine::keep_heap_small;

const MIB: usize = 1 << 20;

/// Without an allocation, which would lie behind the pieces.
fn resident_bytes() -> usize {
    let mut statm = [0; 256];
    let mut file = File::open("/proc/self/statm").expect("statm");
    let len = file.read(&mut statm).expect("read statm");
    let statm = std::str::from_utf8(&statm[..len]).expect("text");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    4096 * pages.expect("a number of pages")
}

/// A large piece that comes and goes does not make every heap keep as much.
#[test]
fn little_stays_of_what_was_freed() {
    keep_heap_small();
    let large = std::hint::black_box(vec![1u8; 30 * MIB]);
    drop(large);
    let before = resident_bytes();
    std::thread::spawn(move || {
        let piece = || std::hint::black_box(vec![1u8; 1000]);
        let pieces: Vec<Vec<u8>> = (0..40_000).map(|_| piece()).collect();
        assert!(resident_bytes() >= before + 35 * MIB);
        drop(pieces);
        let after = resident_bytes();
        assert!(after <= before + 8 * MIB, "{} MiB stay", (after - before) / MIB);
    })
    .join()
    .expect("the pieces' thread");
}
