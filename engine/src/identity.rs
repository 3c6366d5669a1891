//! The IDENTITY file: whose directory this is. Written when a directory is complete, so a
//! directory without it was never used.
//!
//! Layout, little-endian: magic (8 bytes), format version u32, crc32 of the rest u32, then node
//! id, cluster id, generation, boot, map version (u64 each).
//!
//! Invariant: the node id never changes; the boot number grows with every open.

use std::path::Path;

use crate::api::Identity;
use crate::error::{Error, Result};
use crate::io::{Disk, read_file, replace_file};

/// Where the identity is.
pub(crate) const IDENTITY: &str = "IDENTITY";
const MAGIC: [u8; 8] = *b"VMKVID\0\0";
/// The version of the directory as a whole; each file has its own besides.
const VERSION: u32 = 1;
const FILE_BYTES: usize = 56;

/// Reads the directory's identity.
pub(crate) fn load(disk: &dyn Disk) -> Result<Identity> {
    let path = disk.root().join(IDENTITY);
    let bytes = read_whole(disk, Path::new(IDENTITY))?;
    if bytes.len() < 12 || bytes[..8] != MAGIC {
        return Err(Error::foreign(&path, "not the identity of a vmemkv directory"));
    }
    let version = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    if version != VERSION {
        let what = format!(
            "directory format {version} is not known to this release, which knows {VERSION}; \
             open it with the release that wrote it"
        );
        return Err(Error::foreign(&path, what));
    }
    let Ok(bytes): std::result::Result<[u8; FILE_BYTES], _> = bytes.as_slice().try_into() else {
        return Err(Error::corrupt(
            &path,
            0,
            format!("{} bytes long, not {FILE_BYTES}", bytes.len()),
        ));
    };
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    if crc32fast::hash(&bytes[16..]).to_le_bytes() != bytes[12..16] {
        return Err(Error::corrupt(&path, 12, "wrong checksum"));
    }
    Ok(Identity {
        node_id: word(16),
        cluster_id: word(24),
        generation: word(32),
        boot: word(40),
        map_version: word(48),
    })
}

/// Stores the directory's identity durably.
pub(crate) fn store(disk: &dyn Disk, identity: &Identity) -> Result<()> {
    let mut fields = Vec::with_capacity(FILE_BYTES - 16);
    let Identity { node_id, cluster_id, generation, boot, map_version } = *identity;
    for number in [node_id, cluster_id, generation, boot, map_version] {
        fields.extend(number.to_le_bytes());
    }
    let mut file = Vec::with_capacity(FILE_BYTES);
    file.extend(MAGIC);
    file.extend(VERSION.to_le_bytes());
    file.extend(crc32fast::hash(&fields).to_le_bytes());
    file.extend(fields);
    replace_file(disk, Path::new(IDENTITY), &file)
}

/// A node id from the operating system's randomness: 1 to 2^53 - 1, so that every JSON reader
/// keeps it exact.
pub(crate) fn new_node_id() -> Result<u64> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Error::io("read randomness from", "the system", &error.into()))?;
    Ok((u64::from_le_bytes(bytes) >> 11).max(1))
}

/// Reads a file that must be there.
pub(crate) fn read_whole(disk: &dyn Disk, path: &Path) -> Result<Vec<u8>> {
    read_file(disk, path)?.ok_or_else(|| {
        Error::corrupt(&disk.root().join(path), 0, "the file is missing; restore it from a backup")
    })
}
