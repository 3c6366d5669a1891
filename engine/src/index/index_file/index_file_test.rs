//! The T1 file comes back as written, and no damaged one is taken for whole.

use std::path::Path;

use super::{FOOTER_LEN, HEADER_FIXED, Meta, decode, encode, encode_changes, part_crc};
use crate::error::{Error, ErrorKind, Result};
use crate::index::entry::Entry;
use crate::index::sorted_region::{SortedBuilder, SortedRegion};
use crate::index::test_keys::{Random, nasty_keys};
use crate::types::{CheckpointId, InstanceId, KeyRange, ShardId};

fn meta(range: KeyRange) -> Meta {
    Meta {
        shard: ShardId(7),
        instance: InstanceId(8),
        epoch: 9,
        checkpoint: CheckpointId(10),
        previous: CheckpointId(0),
        range,
    }
}

fn entry(n: usize) -> Entry {
    match n % 11 {
        0 => Entry::tombstone(),
        at @ 1..=9 => Entry::inline(&[0xff; 8][..at - 1]).unwrap(),
        _ => Entry::value(u64::MAX - n as u64),
    }
}

fn build(keys: &[Vec<u8>], bloom: bool) -> SortedRegion {
    let mut builder = SortedBuilder::new(keys.len(), bloom);
    keys.iter().enumerate().for_each(|(n, key)| builder.push(key, entry(n), n % 3 == 0));
    builder.finish()
}

fn file(region: &SortedRegion, meta: &Meta) -> Vec<u8> {
    let mut file = Vec::new();
    encode(region, meta, &mut |piece| {
        file.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    file
}

fn open(bytes: &[u8]) -> Result<(Meta, SortedRegion)> {
    decode(Path::new("t1/8-10.t1"), bytes)
}

fn keys_of(region: &SortedRegion) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    let mut cursor = region.cursor();
    cursor.seek_first();
    while let Some(key) = cursor.key() {
        keys.push(key.to_vec());
        cursor.next();
    }
    keys
}

fn small(bloom: bool) -> Vec<u8> {
    let keys: Vec<_> = (0..70).map(|n| format!("k/{n:03}").into_bytes()).collect();
    file(&build(&keys, bloom), &meta(KeyRange::new("k/", "k0")))
}

/// The delta that a region's changes make, after a file of attempt 9.
fn delta(region: &SortedRegion, range: KeyRange) -> Vec<u8> {
    let meta = Meta { previous: CheckpointId(9), ..meta(range) };
    let mut file = Vec::new();
    encode_changes(region, &meta, &mut |piece| {
        file.extend_from_slice(piece);
        Ok(())
    })
    .unwrap();
    file
}

fn small_delta() -> Vec<u8> {
    let keys: Vec<_> = (0..200).map(|n| format!("k/{n:03}").into_bytes()).collect();
    delta(&build(&keys, true), KeyRange::new("k/", "k0"))
}

#[test]
fn a_delta_has_the_changed_entries_and_no_others() {
    let keys = nasty_keys();
    for count in [0, 1, 64, 200, keys.len()] {
        let region = build(&keys[..count], true);
        let (read, changes) = open(&delta(&region, KeyRange::all())).unwrap();
        assert_eq!((read.checkpoint, read.previous), (CheckpointId(10), CheckpointId(9)));
        assert!(changes.filter().is_none() && changes.changed() == 0);
        let expected: Vec<_> = keys[..count].iter().cloned().step_by(3).collect();
        assert_eq!(keys_of(&changes), expected);
        for n in (0..count).step_by(3) {
            assert_eq!(changes.find(&keys[n]).unwrap().load(), entry(n));
        }
    }
}

#[test]
fn what_was_written_comes_back() {
    let keys = nasty_keys();
    for (count, bloom) in [(0, false), (0, true), (1, true), (64, false), (keys.len(), true)] {
        let region = build(&keys[..count], bloom);
        let meta = meta(KeyRange::all());
        let bytes = file(&region, &meta);
        let (read_meta, read) = open(&bytes).unwrap();
        assert_eq!(read_meta, meta);
        assert_eq!((read.len(), read.live()), (region.len(), region.live()));
        assert!(read.filter() == region.filter() || read.filter().is_some() == bloom);
        assert_eq!(keys_of(&read), &keys[..count]);
        for (n, key) in keys.iter().enumerate() {
            let found = read.find(key).map(|cell| cell.load());
            assert_eq!(found, (n < count).then(|| entry(n)));
        }
        assert!(file(&read, &meta) == bytes, "the same region makes the same file");
    }
}

#[test]
fn the_sinks_error_is_handed_on() {
    let region = build(&nasty_keys(), true);
    let full = || Error::new(ErrorKind::DiskFull, "no space");
    let error = encode(&region, &meta(KeyRange::all()), &mut |_| Err(full())).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::DiskFull);
}

#[test]
fn errors_say_what_and_where() {
    let whole = small(true);
    assert!(open(&whole).is_ok());
    let check = |bytes: &[u8], kind, what: &str| {
        let error = open(bytes).err().unwrap();
        assert_eq!(error.kind(), kind, "{error}");
        let message = error.message();
        assert!(message.contains("t1/8-10.t1") && message.contains(what), "{message}");
        assert!(kind == ErrorKind::Foreign || message.contains("offset"), "{message}");
    };
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 4;
        bytes
    };
    check(&changed(0), ErrorKind::Foreign, "magic");
    check(&changed(8), ErrorKind::Foreign, "version 5");
    check(&changed(20), ErrorKind::Corrupt, "header checksum");
    check(&changed(HEADER_FIXED + 40), ErrorKind::Corrupt, "block checksum");
    check(&changed(whole.len() - FOOTER_LEN - 1), ErrorKind::Corrupt, "filter checksum");
    check(&changed(whole.len() - 1), ErrorKind::Corrupt, "footer checksum");
    check(&[&whole[..], b"x"].concat(), ErrorKind::Corrupt, "behind the footer");
    // A delta to itself or to a later file, and a delta to the attempt that no file has.
    for previous in [10, 11, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[48..56].copy_from_slice(&u64::to_le_bytes(previous));
        seal(&mut bytes).unwrap();
        check(&bytes, ErrorKind::Corrupt, "malformed header");
    }
    for len in 0..whole.len() {
        assert_eq!(open(&whole[..len]).err().unwrap().kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_key_outside_the_range_is_damage() {
    let keys = [b"b".to_vec(), b"c".to_vec()];
    let region = build(&keys, false);
    assert!(open(&file(&region, &meta(KeyRange::new("b", "d")))).is_ok());
    for range in [KeyRange::new("c", "d"), KeyRange::new("b", "c")] {
        let error = open(&file(&region, &meta(range))).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().contains("outside"), "{error}");
    }
}

/// Blocks of another file, or in another order, do not fit.
#[test]
fn parts_do_not_move_between_files() {
    let keys: Vec<_> = (0..70).map(|n| format!("k/{n:03}").into_bytes()).collect();
    let region = build(&keys, true);
    let mine = file(&region, &meta(KeyRange::new("k/", "k0")));
    let mut other = meta(KeyRange::new("k/", "k0"));
    other.checkpoint = CheckpointId(11);
    let other = file(&region, &other);
    let header = HEADER_FIXED + 4 + 4;
    assert_eq!(mine.len(), other.len());
    let mixed = [&mine[..header], &other[header..]].concat();
    assert_eq!(open(&mixed).err().unwrap().kind(), ErrorKind::Corrupt);
}

/// One random change of a file.
fn mutate(random: &mut Random, bytes: &mut Vec<u8>, from: usize) {
    let at = from + random.below(bytes.len() - from);
    match random.below(8) {
        0 => bytes.truncate(at),
        1 => bytes.insert(at, random.next() as u8),
        2 => {
            bytes.remove(at);
        }
        3 => {
            let extreme = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            let end = bytes.len().min(at + 1 + random.below(8));
            bytes[at..end].fill(extreme);
        }
        4 => {
            let other = from + random.below(bytes.len() - from);
            let len = random.below(16).min(bytes.len() - at.max(other));
            bytes.copy_within(other..other + len, at);
        }
        _ => bytes[at] ^= 1 << random.below(8),
    }
}

#[test]
fn a_million_damaged_files_are_refused() {
    let empty = file(&SortedRegion::empty(), &meta(KeyRange::all()));
    let files = [small(true), small(false), small_delta(), empty];
    let mut random = Random(2026);
    for _ in 0..1_000_000 {
        let whole = &files[random.below(files.len())];
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            if !bytes.is_empty() {
                mutate(&mut random, &mut bytes, 0);
            }
        }
        match open(&bytes) {
            Ok(_) => assert!(bytes == *whole, "a damaged file was accepted"),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Foreign));
            }
        }
    }
}

/// Puts right checksums on whatever parts can be told apart, so that what is behind them is tried.
fn seal(bytes: &mut [u8]) -> Option<()> {
    let number = |bytes: &[u8], at: usize| -> Option<usize> {
        Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize)
    };
    let put = |bytes: &mut [u8], at: usize, crc: u32| -> Option<()> {
        bytes.get_mut(at..at + 4)?.copy_from_slice(&crc.to_le_bytes());
        Some(())
    };
    let header = HEADER_FIXED + number(bytes, HEADER_FIXED - 8)? + number(bytes, HEADER_FIXED - 4)?;
    let header_crc = crc32fast::hash(bytes.get(..header)?);
    put(bytes, header, header_crc)?;
    let (mut at, mut part) = (header + 4, 0);
    loop {
        let len = number(bytes, at)?;
        if len == 0 {
            break;
        }
        let crc = part_crc(header_crc, part, bytes.get(at + 8..at + 8 + len)?);
        put(bytes, at + 4, crc)?;
        at += 8 + len;
        part += 1;
    }
    let filter = number(bytes, at + 4)?;
    let crc = part_crc(header_crc, part, bytes.get(at + 16..at + 16 + filter)?);
    put(bytes, at + 12, crc)?;
    let footer = at + 16 + filter;
    let crc = part_crc(header_crc, part + 1, bytes.get(footer..footer + FOOTER_LEN - 4)?);
    put(bytes, footer + FOOTER_LEN - 4, crc)
}

#[test]
fn damage_with_right_checksums_never_breaks_an_invariant() {
    let files = [small(true), small(false), small_delta()];
    assert!(files.iter().all(|whole| {
        let mut sealed = whole.clone();
        seal(&mut sealed).is_some() && sealed == *whole
    }));
    let mut random = Random(2027);
    let (mut accepted, mut sealed) = (0, 0);
    for _ in 0..400_000 {
        let mut bytes = files[random.below(files.len())].clone();
        mutate(&mut random, &mut bytes, 12);
        sealed += usize::from(seal(&mut bytes).is_some());
        let Ok((meta, region)) = open(&bytes) else { continue };
        accepted += 1;
        let keys = keys_of(&region);
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]) && keys.len() == region.len());
        assert!(keys.iter().all(|key| !key.is_empty() && meta.range.contains(key)));
        if region.filter().is_none() {
            assert!(keys.iter().all(|key| region.find(key).is_some()));
        }
    }
    assert!(accepted > 1000 && sealed > 100_000, "{accepted} accepted, {sealed} sealed");
}
