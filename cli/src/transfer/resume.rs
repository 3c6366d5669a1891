//! Going on with an interrupted import: a small file beside the input says how much of it is stored.
//!
//! Invariants: everything before `offset` has been acknowledged; the file is replaced whole (written,
//! synced, renamed), so that it is never half written; it counts only for an input with the same
//! bytes, read in the same way, for the same cluster.

use std::fs::{self, File};
use std::io::{self, Read, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::{FormatArgs, Start};

/// Raised when the meaning of a field changes.
const VERSION: u32 = 1;

/// The bytes of an input, as far as one has to know to see that they are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// How many.
    pub bytes: u64,
    /// Their xxh3_64.
    pub hash: u64,
}

/// How far an import has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResumePoint {
    version: u32,
    /// The input that it is about.
    pub input: Fingerprint,
    format: String,
    encoding: String,
    header: bool,
    /// The cluster that stored the entries.
    pub cluster_id: u64,
    /// Everything before this offset is stored.
    pub offset: u64,
    /// Lines before it.
    pub lines: u64,
    /// Entries before it.
    pub entries: u64,
}

impl ResumePoint {
    /// The beginning of an input.
    pub fn new(input: Fingerprint, format: &FormatArgs, cluster_id: u64) -> Self {
        Self {
            version: VERSION,
            input,
            format: format.format.name().to_owned(),
            encoding: format.encoding.name().to_owned(),
            header: format.header,
            cluster_id,
            offset: 0,
            lines: 0,
            entries: 0,
        }
    }

    /// Why this point is not one of the import that `other` begins; none: go on from here.
    pub fn differs_from(&self, other: &Self) -> Option<&'static str> {
        if self.version != other.version {
            return Some("it was written by another release");
        }
        if self.input != other.input {
            return Some("the file has changed since");
        }
        if self.cluster_id != other.cluster_id {
            return Some("it is of an import to another cluster");
        }
        if (&self.format, &self.encoding, self.header)
            != (&other.format, &other.encoding, other.header)
        {
            return Some("it is of an import with another --format, --encoding or --header");
        }
        None
    }

    /// Where reading goes on.
    pub fn start(&self) -> Start {
        Start { offset: self.offset, lines: self.lines }
    }
}

/// The state file.
#[derive(Clone, Debug)]
pub struct ResumeFile(PathBuf);

impl ResumeFile {
    /// The state file at this path.
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// What it says; none: there is no such file.
    pub fn load(&self) -> Result<Option<ResumePoint>, String> {
        let text = match fs::read_to_string(&self.0) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot read {}: {error}", self.0.display())),
        };
        serde_json::from_str(&text)
            .map(Some)
            .map_err(|error| format!("{} is not a state file: {error}", self.0.display()))
    }

    /// Replaces what it says, durably.
    pub fn save(&self, point: &ResumePoint) -> io::Result<()> {
        let mut name = self.0.clone().into_os_string();
        name.push(".tmp");
        let temporary = PathBuf::from(name);
        let mut file = File::create(&temporary)?;
        file.write_all(&serde_json::to_vec(point)?)?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::rename(&temporary, &self.0)?;
        sync_parent(&self.0)
    }

    /// Removes it, durably: there is nothing to go on with.
    pub fn remove(&self) -> io::Result<()> {
        // Looked for first: what is not there needs no right to write beside it.
        match fs::symlink_metadata(&self.0) {
            Ok(_) => {}
            Err(error) if is_absent(&error) => {
                // Whoever removed it may have been killed before that was durable.
                let _ = sync_parent(&self.0);
                return Ok(());
            }
            Err(error) => return Err(error),
        }
        match fs::remove_file(&self.0) {
            Err(error) if !is_absent(&error) => Err(error),
            _ => sync_parent(&self.0),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The state file of an input: beside it.
pub fn default_resume_file(input: &Path) -> PathBuf {
    let mut name = input.as_os_str().to_owned();
    name.push(".vmemkv-import");
    PathBuf::from(name)
}

/// Makes a rename in the directory of `path` durable.
pub fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Passes reads on and takes the fingerprint of everything that was read.
pub(crate) struct Fingerprinting<R> {
    input: R,
    hash: Xxh3,
    bytes: u64,
}

impl<R: Read> Fingerprinting<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, hash: Xxh3::new(), bytes: 0 }
    }

    /// Of what has been read so far.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        Fingerprint { bytes: self.bytes, hash: self.hash.digest() }
    }
}

impl<R: Read> Read for Fingerprinting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.hash.update(&buffer[..read]);
        self.bytes += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfer::Format;

    fn point() -> ResumePoint {
        let input = Fingerprint { bytes: 10, hash: u64::MAX };
        ResumePoint::new(input, &FormatArgs::default(), 7)
    }

    #[test]
    fn a_point_survives_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = ResumeFile::new(default_resume_file(&dir.path().join("in.jsonl")));
        assert_eq!(file.load().unwrap(), None);
        for offset in [3, 7] {
            let saved = ResumePoint { offset, lines: 2, entries: 1, ..point() };
            file.save(&saved).unwrap();
            assert_eq!(file.load().unwrap(), Some(saved));
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load().unwrap(), None);
        ResumeFile::new(dir.path().join("no/such")).remove().unwrap();
        fs::write(file.path(), "{}").unwrap();
        ResumeFile::new(file.path().join("below")).remove().unwrap();
        assert!(file.load().unwrap_err().contains("is not a state file"));
    }

    #[test]
    fn another_input_or_way_of_reading_is_refused() {
        assert_eq!(point().differs_from(&point()), None);
        let moved = ResumePoint { offset: 5, ..point() };
        assert_eq!(moved.differs_from(&point()), None);
        let input = Fingerprint { bytes: 10, hash: 1 };
        let changed = ResumePoint { input, ..point() };
        assert_eq!(changed.differs_from(&point()), Some("the file has changed since"));
        let tsv = FormatArgs { format: Format::Tsv, ..FormatArgs::default() };
        let other = ResumePoint::new(point().input, &tsv, 7);
        assert!(other.differs_from(&point()).unwrap().contains("--format"));
        let elsewhere = ResumePoint::new(point().input, &FormatArgs::default(), 8);
        assert!(elsewhere.differs_from(&point()).unwrap().contains("cluster"));
    }

    #[test]
    fn fingerprints_tell_bytes_apart() {
        let of = |bytes: &[u8]| {
            let mut input = Fingerprinting::new(bytes);
            io::copy(&mut input, &mut io::sink()).unwrap();
            input.fingerprint()
        };
        assert_eq!(of(b"abc"), of(b"abc"));
        assert_ne!(of(b"abc").hash, of(b"abd").hash);
        assert_eq!(of(b"abc").bytes, 3);
    }
}
