//! Which writes were attempted and not made, so that nobody waits for them in a feed; in a file
//! that outlives the process.
//!
//! Invariants: only grows; what is in the file is true after a kill; a write is noted before the
//! next one of its key is attempted, so whoever sees the later one finds the note.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};

/// What became of a write that was not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Skip {
    /// It was not made.
    Never,
    /// It may have been made.
    Perhaps,
}

/// Bytes of a note: key, write, what became of it.
const NOTE_BYTES: usize = 16;

/// The notes of all keys.
pub(super) struct Skips {
    inner: Mutex<Inner>,
}

struct Inner {
    file: File,
    notes: HashMap<(usize, u64), Skip>,
}

impl Skips {
    /// Opens the file, or makes an empty one.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).append(true).create(true).open(path);
        let mut file = file.with_context(|| format!("open {}", path.display()))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut notes = HashMap::new();
        let (found, _) = bytes.as_chunks::<NOTE_BYTES>();
        for note in found {
            let (words, _) = note.as_chunks::<8>();
            let [head, n] = [words[0], words[1]].map(u64::from_le_bytes);
            let skip = if head & 1 == 0 { Skip::Never } else { Skip::Perhaps };
            notes.insert(((head >> 1) as usize, n), skip);
        }
        // A kill in the middle of a note leaves a part of it, of a write that is noted again.
        file.set_len((found.len() * NOTE_BYTES) as u64)?;
        Ok(Self { inner: Mutex::new(Inner { file, notes }) })
    }

    /// Says what became of a write.
    pub(super) fn note(&self, key: usize, n: u64, skip: Skip) -> Result<()> {
        let mut inner = self.lock();
        if inner.notes.insert((key, n), skip) == Some(skip) {
            return Ok(());
        }
        let head = (key as u64) << 1 | u64::from(skip == Skip::Perhaps);
        let mut note = [0; NOTE_BYTES];
        note[..8].copy_from_slice(&head.to_le_bytes());
        note[8..].copy_from_slice(&n.to_le_bytes());
        Ok(inner.file.write_all(&note)?)
    }

    /// What is known of a write; `None`: it was made, or is being made.
    pub(super) fn get(&self, key: usize, n: u64) -> Option<Skip> {
        self.lock().notes.get(&(key, n)).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_again() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("skips");
        let skips = Skips::open(&path)?;
        skips.note(7, 3, Skip::Perhaps)?;
        skips.note(7, 3, Skip::Never)?;
        skips.note(8, 1 << 40, Skip::Perhaps)?;
        drop(skips);
        // Half a note.
        File::options().append(true).open(&path)?.write_all(&[1; 5])?;
        for _ in 0..2 {
            let skips = Skips::open(&path)?;
            assert_eq!(skips.get(7, 3), Some(Skip::Never));
            assert_eq!(skips.get(8, 1 << 40), Some(Skip::Perhaps));
            assert_eq!(skips.get(8, 3), None);
            skips.note(9, 1, Skip::Never)?;
        }
        Ok(())
    }
}
