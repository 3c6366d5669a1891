//! Opening: which segments have a base, which files are there for reuse.
//!
//! Invariants: only what the manifest names, or the log ([`adopt`](ValueLog::adopt)), is looked at; any
//! other file in the folder may be torn, empty or foreign, and is initialised anew when its number is
//! needed, never reported. Nothing is
//! written here but blocks for what a base segment has left.

use std::sync::Arc;
use std::sync::OnceLock;

use crate::sync::primitives::Mutex;

use super::ValueLog;
use super::base::SegmentBase;
use super::location::{MAX_ALLOCATED, MAX_OFFSET};
use super::mapping::Mapping;
use super::once::Unsynced;
use super::placement::PAGE;
use super::segment::{self, FOLDER, Segment, check_file, number_of, path_of};
use super::tail::Tail;
use crate::error::{Error, ErrorKind, Result};
use crate::io::{Disk, File, create_dir_durable};
use crate::options::Options;

/// Checks the files of the segments that a manifest names: the headers, and that all is there that
/// is mapped. One error for each that is not right.
pub(crate) fn check_files(disk: &dyn Disk, bases: &[SegmentBase], bytes: u64) -> Vec<Error> {
    let check = |base: &SegmentBase| {
        let path = path_of(base.segment);
        let file = disk.open(&path);
        let file = file.map_err(|error| Error::io("open", disk.root().join(&path), &error))?;
        check_file(&*file, base.segment, bytes)
    };
    bases.iter().filter_map(|base| check(base).err()).collect()
}

impl ValueLog {
    /// Checks the files of all segments, as [`check_files`] does.
    pub(crate) fn check_own_files(&self) -> Vec<Error> {
        let numbers = self.tail.lock().mapped.clone();
        let segments = numbers.iter().filter_map(|number| self.segment(*number));
        let check = |segment: &Segment| {
            // The file of a free segment may be cut, and be filled again meanwhile.
            let is_free = || segment.free.load(std::sync::atomic::Ordering::Relaxed);
            let once = || check_file(&*segment.file, segment.number, self.segment_bytes);
            once().or_else(|error| if is_free() { Ok(()) } else { once().map_err(|_| error) })
        };
        segments.filter_map(|segment| check(segment).err()).collect()
    }

    /// Opens the value log with the segments that the manifest names. What lies above their base
    /// lengths is forgotten and used again.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        options: &Options,
        bases: &[SegmentBase],
    ) -> Result<ValueLog> {
        let segment_bytes = options.value_segment_bytes;
        let count = (options.value_log_max_bytes.min(MAX_OFFSET) / segment_bytes.max(1)) as usize;
        if segment_bytes > u64::from(u32::MAX) || !segment_bytes.is_multiple_of(PAGE) {
            return Err(Error::invalid("value_segment_bytes must be whole pages below 4 GiB"));
        }
        const { assert!(MAX_ALLOCATED < u32::MAX as u64) };
        create_dir_durable(&*disk, FOLDER.as_ref())?;
        let folder = disk.root().join(FOLDER);
        let mapping = Mapping::reserve(count as u64 * segment_bytes, segment_bytes, &folder)
            .map_err(|error| Error::io("reserve addresses for", folder, &error))?;
        let log = ValueLog {
            segment_bytes,
            read_policy: options.read_policy,
            mapping,
            segments: (0..count).map(|_| OnceLock::new()).collect(),
            tail: Mutex::new(Tail::default()),
            freed: Arc::default(),
            freeing: 0.into(),
            folder_changed: false.into(),
            full: false.into(),
            unsynced: Arc::new(Unsynced::new(Arc::clone(&disk))),
            // What is replayed is in the log.
            once_from: usize::MAX.into(),
            allocated: 0.into(),
            settled: 0.into(),
            #[cfg(test)]
            all_cold: false.into(),
            disk,
        };
        for base in bases {
            log.open_base(base)?;
        }
        log.find_files()?;
        Ok(log)
    }

    fn open_base(&self, base: &SegmentBase) -> Result<()> {
        let path = path_of(base.segment);
        let full_path = self.disk.root().join(&path);
        let Some(slot) = self.segments.get(base.segment as usize) else {
            let message =
                format!("{}: value_log_max_bytes is too small for it", full_path.display());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        };
        let len = u64::from(base.base_bytes);
        if len < PAGE || !len.is_multiple_of(PAGE) || len > self.segment_bytes {
            return Err(Error::corrupt(&full_path, len, "no possible base length"));
        }
        let file = self.disk.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::corrupt(&full_path, 0, "the manifest names it, but there is no such file")
            }
            _ => Error::io("open", &full_path, &error),
        })?;
        check_file(&*file, base.segment, self.segment_bytes)?;
        // A copy of the directory may have lost the blocks above the base. If they cannot be had,
        // nothing is allocated there.
        let has_blocks = self.has_blocks(&*file)?;
        let start = u64::from(base.segment) * self.segment_bytes;
        self.mapping
            .map(start, self.segment_bytes, &*file)
            .map_err(|error| Error::io("map", &full_path, &error))?;
        let segment = Segment::new(base.segment, file, self.segment_bytes, base.base_bytes);
        if slot.set(Box::new(segment)).is_err() {
            return Err(Error::corrupt(&full_path, 0, "the manifest names it twice"));
        }
        let mut tail = self.tail.lock();
        tail.mapped.push(base.segment);
        if has_blocks {
            tail.records.add_room(base.segment, self.segment_bytes - len);
        }
        Ok(())
    }

    /// Sees to it that all of a segment has blocks; false when the disk is full.
    pub(super) fn has_blocks(&self, file: &dyn File) -> Result<bool> {
        match file.allocate(self.segment_bytes) {
            Ok(()) => Ok(true),
            Err(error) => {
                let error = Error::io("allocate", file.path(), &error);
                if error.kind() == ErrorKind::DiskFull { Ok(false) } else { Err(error) }
            }
        }
    }

    fn find_files(&self) -> Result<()> {
        let names = self
            .disk
            .list(FOLDER.as_ref())
            .map_err(|error| Error::io("list", self.disk.root().join(FOLDER), &error))?;
        let mut tail = self.tail.lock();
        for number in names.iter().filter_map(|name| number_of(name)) {
            let known = self.segments.get(number as usize).is_some_and(|slot| slot.get().is_none());
            if !known {
                continue;
            }
            // Found files count as space that needs no asking: not one whose blocks were given
            // back, or that was never finished.
            let path = path_of(number);
            let len = self.disk.open(&path).and_then(|file| file.len());
            if len.is_ok_and(|len| len == self.segment_bytes) {
                tail.files.push(number);
            } else {
                tail.unfinished.push(number);
            }
        }
        // The lowest number is taken first, from the end.
        tail.files.sort_unstable_by(|a, b| b.cmp(a));
        Ok(())
    }

    /// Removes files that are in no use and have no whole segment's length. Behind
    /// [`adopt`](Self::adopt): the log may name one, which is damage then.
    pub(crate) fn remove_unfinished(&self) {
        let unfinished = std::mem::take(&mut self.tail.lock().unfinished);
        for number in unfinished {
            if let Err(error) = self.disk.remove(&path_of(number)) {
                tracing::warn!(segment = number, %error, "cannot remove an empty value segment");
            }
        }
    }

    /// Makes segment `number` usable: its file in full length, its header, its mapping. A failure
    /// leaves no new file.
    pub(super) fn make_segment(&self, number: u32) -> Result<()> {
        let path = path_of(number);
        let full_path = self.disk.root().join(&path);
        let wrong = |error| Error::io("make", &full_path, &error);
        let (file, created) = match self.disk.create(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                (self.disk.open(&path).map_err(wrong)?, false)
            }
            other => (other.map_err(wrong)?, true),
        };
        // Also a file that was found: a kill may have left its name in the cache only.
        self.folder_changed.store(true, std::sync::atomic::Ordering::Release);
        let fill = || {
            self.fill_file(&*file, number)?;
            let start = u64::from(number) * self.segment_bytes;
            self.mapping.map(start, self.segment_bytes, &*file)
        };
        if let Err(error) = fill() {
            if created {
                // Best effort: a file that nobody names is only reused.
                let _ = self.disk.remove(&path);
            }
            return Err(wrong(error));
        }
        let segment = Segment::new(number, file, self.segment_bytes, 0);
        let set = self.segments[number as usize].set(Box::new(segment));
        debug_assert!(set.is_ok(), "segment {number} made twice");
        Ok(())
    }
    /// Gives the file of a segment without content its full length and its header. A failure
    /// leaves a file that nobody reads.
    pub(super) fn fill_file(&self, file: &dyn File, number: u32) -> std::io::Result<()> {
        let fill = || {
            file.allocate(self.segment_bytes)?;
            if file.len()? > self.segment_bytes {
                file.set_len(self.segment_bytes)?;
            }
            file.write_at(0, &segment::encode_header(number, self.segment_bytes))
        };
        fill().inspect_err(|_| {
            // Best effort: what was allocated is what others lack.
            let _ = file.set_len(0);
        })
    }
}
