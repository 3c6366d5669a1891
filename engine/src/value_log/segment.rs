//! One segment: its file, the header of that file, and its counters.
//!
//! Invariants, in bytes of the segment: `base <= floor`, `synced <= floor`, and `floor <= tail`
//! but for the rounding of the floor up to a page (then the tail goes on from the floor). `base`,
//! `floor` and `synced` are 0 or whole pages. A header never changes once the manifest names the
//! file. All counters start anew when a segment is reused.

use crate::sync::primitives::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::location::Location;
use super::placement::PAGE;
use super::residency::Residency;
use crate::error::{Error, ErrorKind, Result};
use crate::io::File;

/// The folder of the segments.
pub(super) const FOLDER: &str = "t2";
const MAGIC: [u8; 8] = *b"VMKVT2\0\0";
const VERSION: u32 = 1;
/// Magic, version, segment number, segment length, checksum.
const HEADER: usize = 8 + 4 + 4 + 8 + 4;
/// Records start here.
pub(super) const FIRST_RECORD: u32 = PAGE as u32;

/// The path of a segment.
pub(super) fn path_of(number: u32) -> PathBuf {
    Path::new(FOLDER).join(format!("{number}.t2"))
}

/// The number in a file name such as `17.t2`; `None` for any other name.
pub(super) fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".t2")?;
    let number = digits.parse().ok()?;
    (path_of(number).file_name()? == name).then_some(number)
}

/// The first bytes of a segment file.
pub(super) fn encode_header(number: u32, segment_bytes: u64) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&number.to_le_bytes());
    header[16..24].copy_from_slice(&segment_bytes.to_le_bytes());
    let crc = crc32fast::hash(&header[..24]);
    header[24..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Whether a file begins as a segment does, of whatever version. What was never synced does not.
pub(super) fn is_ours(file: &dyn File) -> bool {
    let mut magic = [0; MAGIC.len()];
    file.read_at(0, &mut magic).is_ok() && magic == MAGIC
}

/// Checks the file of a segment that the manifest names, or the log.
pub(super) fn check_file(file: &dyn File, number: u32, segment_bytes: u64) -> Result<()> {
    let path = file.path();
    let wrong = |error| Error::io("read", &path, &error);
    let len = file.len().map_err(wrong)?;
    if len < HEADER as u64 {
        return Err(Error::corrupt(&path, len, "the file ends within its header"));
    }
    let mut header = [0; HEADER];
    file.read_at(0, &mut header).map_err(wrong)?;
    check_header(&path, &header, number, segment_bytes)?;
    if len < segment_bytes {
        let what = format!("the file ends here, not at {segment_bytes}");
        return Err(Error::corrupt(&path, len, what));
    }
    Ok(())
}

fn check_header(path: &Path, header: &[u8; HEADER], number: u32, segment_bytes: u64) -> Result<()> {
    if header[..8] != MAGIC {
        return Err(Error::foreign(path, "not a value-log segment"));
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        let what = format!("format version {version}; this release knows {VERSION}");
        return Err(Error::foreign(path, what));
    }
    if crc32fast::hash(&header[..24]).to_le_bytes() != header[24..] {
        return Err(Error::corrupt(path, 0, "the checksum of the header is wrong"));
    }
    let expected = encode_header(number, segment_bytes);
    if header[12..16] != expected[12..16] {
        return Err(Error::foreign(path, "the segment of another number"));
    }
    if *header != expected {
        let message = format!(
            "{}: its segment size is not value_segment_bytes = {segment_bytes}",
            path.display()
        );
        return Err(Error::new(ErrorKind::InvalidArgument, message));
    }
    Ok(())
}

/// A segment whose file is open and mapped. Stays for as long as the value log.
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) file: Arc<dyn File>,
    /// Where the segment begins in the value log.
    pub(super) start: u64,
    /// Readers take what is below for immutable. Release in `publish_base`, Acquire in readers:
    /// who sees it sees every byte below.
    pub(super) base: AtomicU32,
    /// Writers change nothing below. Ordered by the stripes: the caller passes all of them behind
    /// the store.
    pub(super) floor: AtomicU32,
    /// Next free byte. Changed under the lock of [`super::tail::Tail`] only.
    pub(super) tail: AtomicU32,
    /// Durable up to here. Only the checkpoint uses it.
    pub(super) synced: AtomicU32,
    /// Allocated bytes that the index points to, or soon will.
    live: AtomicU64,
    /// Allocations that are neither written nor abandoned.
    pending: AtomicU32,
    /// Holds records that are written once, since it was last empty. Set under the tail's lock before
    /// any is published, which orders it for whoever has a location in it.
    pub(super) once: AtomicBool,
    /// In no use. Changed under the tail's lock.
    pub(super) free: AtomicBool,
    pub(super) residency: Residency,
}

impl Segment {
    /// A segment with the base `base` (0 for none).
    pub(super) fn new(number: u32, file: Arc<dyn File>, segment_bytes: u64, base: u32) -> Self {
        Self {
            number,
            file,
            start: u64::from(number) * segment_bytes,
            base: base.into(),
            floor: base.into(),
            tail: base.max(FIRST_RECORD).into(),
            synced: base.into(),
            live: 0.into(),
            pending: 0.into(),
            once: false.into(),
            free: false.into(),
            residency: Residency::new(segment_bytes),
        }
    }

    /// As new, for reuse. Nobody holds a location or an allocation in it.
    pub(super) fn reset(&self) {
        self.base.store(0, Ordering::Release);
        self.floor.store(0, Ordering::Relaxed);
        self.tail.store(FIRST_RECORD, Ordering::Relaxed);
        self.synced.store(0, Ordering::Relaxed);
        self.live.store(0, Ordering::Relaxed);
        self.once.store(false, Ordering::Relaxed);
        self.free.store(false, Ordering::Relaxed);
        self.residency.clear();
    }

    /// Everything up to `end` is base, durable, and never changed: under the tail's lock, or before
    /// anybody writes.
    pub(super) fn raise(&self, end: u32) {
        self.tail.store(end, Ordering::Relaxed);
        self.floor.store(end, Ordering::Relaxed);
        self.synced.store(end, Ordering::Relaxed);
        // Release: readers find the records by locations that are published behind this.
        self.base.store(end, Ordering::Release);
    }

    /// The offset of a location in this segment.
    pub(super) fn within(&self, location: Location) -> u32 {
        (location.offset() - self.start) as u32
    }

    pub(super) fn add_live(&self, bytes: u64) {
        // Release: with the Acquire in `is_empty`, through `end_pending`.
        self.live.fetch_add(bytes, Ordering::Release);
    }

    pub(super) fn sub_live(&self, bytes: u64) {
        let before = self.live.fetch_sub(bytes, Ordering::AcqRel);
        // A count that is off in this direction would free live data.
        debug_assert!(before >= bytes, "segment {}: live bytes below zero", self.number);
    }

    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Acquire)
    }

    pub(super) fn begin_pending(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    /// Behind `add_live`, if the allocation was written.
    pub(super) fn end_pending(&self) {
        // Release: who sees no pending allocation sees the live bytes of those that ended.
        self.pending.fetch_sub(1, Ordering::Release);
    }

    /// Whether nothing points or will point into the segment, as long as nothing is allocated.
    pub(super) fn is_empty(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0 && self.live() == 0
    }

    /// Bytes above the floor.
    pub(super) fn tail_bytes(&self) -> u32 {
        let from = self.floor.load(Ordering::Relaxed).max(FIRST_RECORD);
        self.tail.load(Ordering::Relaxed).saturating_sub(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(number_of("17.t2"), Some(17));
        for name in ["017.t2", "+1.t2", "x.t2", ".t2", "1.t1", "1.t2.tmp", "4294967296.t2"] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_header_is_ours_or_the_error_names_the_file() {
        let path = Path::new("t2/3.t2");
        let good = encode_header(3, 1 << 24);
        check_header(path, &good, 3, 1 << 24).unwrap();
        assert_eq!(check_header(path, &good, 4, 1 << 24).unwrap_err().kind(), ErrorKind::Foreign);
        let other_size = check_header(path, &good, 3, 1 << 25).unwrap_err();
        assert_eq!(other_size.kind(), ErrorKind::InvalidArgument);
        for byte in 0..HEADER {
            let mut bad = good;
            bad[byte] ^= 1;
            let error = check_header(path, &bad, 3, 1 << 24).unwrap_err();
            assert!(error.message().contains("t2/3.t2"), "{error}");
        }
    }
}
