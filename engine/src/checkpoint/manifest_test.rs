//! Tests of the manifest: round trip, rules, and a million damaged files.

use std::path::Path;

use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::chain::IndexFile;
use super::manifest::{Manifest, ManifestShard};
use super::manifest_rules;
use crate::api::OperationOutcome;
use crate::error::ErrorKind;
use crate::types::{CheckpointId, InstanceId, KeyRange, Lsn, Revision, ShardId};
use crate::value_log::SegmentBase;

fn sample() -> Manifest {
    let shard = |id: u64, start: &[u8], end: &[u8]| ManifestShard {
        id: ShardId(id),
        instance: InstanceId(id + 10),
        epoch: 3,
        revision: Revision(99),
        files: (1..=id)
            .map(|n| IndexFile { attempt: CheckpointId(n), bytes: 900 + n, entries: n })
            .collect(),
        range: KeyRange::new(start, end),
    };
    Manifest {
        checkpoint: CheckpointId(7),
        checkpoint_lsn: Lsn(4096),
        freeze_lsn: Lsn(8192),
        next_instance: InstanceId(20),
        next_shard: ShardId(9),
        value_segment_bytes: 16 << 20,
        revision_floor: Revision(90),
        segments: vec![
            SegmentBase { segment: 0, base_bytes: 8192 },
            SegmentBase { segment: 4, base_bytes: 4096 },
        ],
        shards: vec![shard(1, b"", b"m"), shard(2, b"m", b"x\xff"), shard(3, b"x\xff", b"")],
        operations: vec![
            (7, OperationOutcome::Done),
            (3, OperationOutcome::Refused { reason: "no".into() }),
        ],
    }
}

#[test]
fn round_trip() {
    let manifest = sample();
    assert_eq!(Manifest::decode(Path::new("M"), &manifest.encode()).unwrap(), manifest);
}

#[test]
fn each_rule_is_checked() {
    let breaks: [fn(&mut Manifest); 11] = [
        |m| m.checkpoint_lsn = Lsn(8193),
        |m| m.shards[1].range.start = b"l".to_vec(),
        |m| m.shards.swap(0, 1),
        |m| m.shards[1].instance = m.shards[0].instance,
        |m| m.next_instance = InstanceId(13),
        |m| m.segments[1].base_bytes = 100,
        |m| m.shards[0].files[0].attempt = CheckpointId(8),
        |m| m.shards[0].files[0].attempt = CheckpointId(0),
        |m| m.shards[2].files.swap(0, 1),
        |m| m.operations[1].0 = 7,
        |m| m.operations[1].0 = 0,
    ];
    for (number, damage) in breaks.iter().enumerate() {
        let mut manifest = sample();
        damage(&mut manifest);
        assert!(manifest_rules::check(&manifest).is_err(), "rule {number} is not checked");
        let error = Manifest::decode(Path::new("M"), &manifest.encode()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}

#[test]
fn a_newer_version_and_another_file_are_foreign() {
    let mut file = sample().encode();
    file[8] = 2;
    let error = Manifest::decode(Path::new("dir/MANIFEST"), &file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.message().contains("dir/MANIFEST") && error.message().contains("version 2"));
    file[0] = b'X';
    assert_eq!(Manifest::decode(Path::new("M"), &file).unwrap_err().kind(), ErrorKind::Foreign);
}

#[test]
fn a_million_mutated_files_are_errors_or_manifests() {
    let seed = 0x5eed_0001;
    let mut random = StdRng::seed_from_u64(seed);
    let original = sample().encode();
    let mut accepted = 0;
    for round in 0..1_000_000 {
        let mut file = original.clone();
        for _ in 0..random.random_range(1..4) {
            let at = random.random_range(0..file.len());
            match random.random_range(0..3) {
                0 => file[at] ^= 1 << random.random_range(0..8),
                1 => file[at] = random.random(),
                _ => file.truncate(at.max(1)),
            }
        }
        if random.random_bool(0.7) && file.len() > 24 {
            // With a right checksum the fields themselves are tried.
            let len = (file.len() - 24) as u32;
            file[12..16].copy_from_slice(&len.to_le_bytes());
            let crc = crc32fast::hash(&file[24..]);
            file[16..20].copy_from_slice(&crc.to_le_bytes());
        }
        if let Ok(manifest) = Manifest::decode(Path::new("M"), &file) {
            accepted += 1;
            assert!(manifest_rules::check(&manifest).is_ok(), "seed {seed:#x} round {round}");
        }
    }
    assert!(accepted > 0, "the mutations reach the fields");
}
