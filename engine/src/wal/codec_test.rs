//! Records and headers there and back, and what damaged bytes do to the decoders: nothing.

use super::decode::{BadRecord, BodyView, OpView, RecordView};
use super::encode::{Body, Op, Record, Section};
use super::record::{HEADER_BYTES, Header, RequestId, len_of_first_word};
use super::segment::{HeaderState, SegmentHeader, parse_name};
use super::shard_records::{Merge, Split};
use crate::io::testing::SeededRandom;
use crate::types::{InstanceId, Revision, ShardId, ValueAt};

/// A record as it would lie at `lsn` of a segment with this salt.
fn encode(record: &Record<'_>, lsn: u64, base: u64, salt: u64) -> Vec<u8> {
    let len = record.encoded_len();
    let word = record.first_word(len);
    assert_eq!(len_of_first_word(word), len as u64);
    let mut body = Vec::new();
    record.encode_body(&mut body);
    body.resize(len - HEADER_BYTES, 0);
    let header = Header {
        len: len as u32,
        kind: (word >> 32) as u8,
        flags: 0,
        sections: (word >> 48) as u16,
        lsn,
        base,
        body_crc: crc32fast::hash(&body),
        header_crc: 0,
    };
    let mut bytes = header.encode(salt).to_vec();
    assert_eq!(bytes[..8], word.to_le_bytes());
    bytes.append(&mut body);
    bytes
}

fn section<'a>(instance: u64, first: u64, ops: &'a [Op<'a>]) -> Section<'a> {
    Section { instance: InstanceId(instance), first_revision: Revision(first), ops }
}

const AT: ValueAt = ValueAt { location: 0x10_0005, crc: 0x0a0b_0c0d };

fn check_round_trip(sections: &[Section<'_>]) {
    let request = RequestId { session: 1, serial: 2, ack_below: 3 };
    let record = Record { body: Body::Write(sections), request };
    let bytes = encode(&record, 64, 8, 77);
    let header = Header::decode(&bytes).unwrap();
    assert!(header.is_valid_at(64, 77, &bytes) && header.covers(&bytes));
    assert!(!header.is_valid_at(64, 78, &bytes), "another salt");
    assert!(!header.is_valid_at(72, 77, &bytes), "another place");
    let view = RecordView::parse(&bytes).unwrap();
    assert_eq!((view.start_lsn().0, view.base().0, view.request()), (64, 8, request));
    let BodyView::Write(views) = view.body() else { panic!("{view:?}") };
    assert_eq!(views.count(), sections.len());
    for (view, section) in views.zip(sections) {
        assert_eq!(view.instance, section.instance);
        assert_eq!(view.first_revision, section.first_revision);
        let ops: Vec<_> = view.ops().collect();
        assert_eq!(ops.len(), section.ops.len());
        for (view, op) in ops.iter().zip(section.ops) {
            let OpView { kind, key, value, at, value_len, expiry_ms } = *view;
            assert_eq!(value_len, op.value.len());
            let value = if at.is_some() { op.value } else { value };
            assert_eq!(Op { kind, key, value, at, expiry_ms }, *op);
        }
    }
}

#[test]
fn writes_come_back_as_they_were() {
    let long = vec![0xff; 100_000];
    let ops = [
        Op::put(b"a", b""),
        Op::delete(b"a\0"),
        Op { expiry_ms: Some(u64::MAX), ..Op::put(b"b", &long) },
        Op::put(&long[..4096], &[0xff; 8]),
        Op::put(&long[..77], &long).refer(AT),
        Op { expiry_ms: Some(3), ..Op::put(b"c", &long).refer(AT) },
    ];
    check_round_trip(&[]);
    check_round_trip(&[section(1, 2, &[])]);
    check_round_trip(&[section(1, 2, &ops), section(u64::MAX, u64::MAX, &ops[..1])]);
    for len in 0..20 {
        check_round_trip(&[section(1, 1, &[Op::put(&long[..1], &long[..len])])]);
    }
}

#[test]
fn shards_and_fillers_come_back_as_they_were() {
    let body = Body::CreateShard {
        shard: ShardId(1),
        instance: InstanceId(2),
        epoch: 3,
        revision: Revision(4),
        start: b"from",
        end: b"",
    };
    let record = Record { body, request: RequestId::default() };
    let bytes = encode(&record, 0, 0, 1);
    let BodyView::CreateShard(view) = RecordView::parse(&bytes).unwrap().body() else { panic!() };
    assert_eq!((view.shard, view.instance, view.epoch), (ShardId(1), InstanceId(2), 3));
    assert_eq!((view.revision, view.start, view.end), (Revision(4), &b"from"[..], &b""[..]));
    let filler = Record { body: Body::Filler, request: RequestId::default() };
    let bytes = encode(&filler, 0, 0, 1);
    assert_eq!(bytes.len(), 56);
    assert!(matches!(RecordView::parse(&bytes).unwrap().body(), BodyView::Filler));
}

fn shard_bodies() -> [Body<'static>; 4] {
    let copied = |n| (ShardId(n), InstanceId(n + 100));
    let (left, right, epoch, revision) = (copied(2), copied(3), 4, Revision(5));
    let split =
        Split { operation: 9, parent: copied(1), left, right, epoch, revision, key: b"key" };
    let merge =
        Merge { operation: 9, left, right, merged: copied(1), epoch, revision, seam: b"seam" };
    [
        Body::Split(split),
        Body::Merge(merge),
        Body::RefuseOperation { operation: 9, reason: "not now" },
        Body::ForgetOperation { operation: 9 },
    ]
}

#[test]
fn changes_of_shards_come_back_as_they_were() {
    for body in shard_bodies() {
        let bytes = encode(&Record { body, request: RequestId::default() }, 0, 0, 1);
        let view = RecordView::parse(&bytes).unwrap();
        let read = match view.body() {
            BodyView::Split(split) => Body::Split(split),
            BodyView::Merge(merge) => Body::Merge(merge),
            BodyView::RefuseOperation { operation, reason } => {
                Body::RefuseOperation { operation, reason }
            }
            BodyView::ForgetOperation { operation } => Body::ForgetOperation { operation },
            other => panic!("{other:?}"),
        };
        assert_eq!(read, body);
        assert!(RecordView::knows_kind(bytes[4]));
    }
}

/// The format may never change without a new version: these bytes are what version 1 writes.
#[test]
fn the_format_is_what_it_was() {
    let ops = [Op::put(b"key", b"value"), Op::delete(b"k")];
    let sections = [section(5, 6, &ops)];
    let request = RequestId { session: 7, serial: 8, ack_below: 9 };
    let bytes = encode(&Record { body: Body::Write(&sections), request }, 4096, 1024, 0xabcd);
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let body_crc = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
    assert_eq!(body_crc, crc32fast::hash(&bytes[32..]));
    assert_eq!(&hex[..48], "700000000100010000100000000000000004000000000000");
    let rest = concat!(
        "070000000000000008000000000000000900000000000000",
        "050000000000000006000000000000000200000000000000",
        "01000300050000006b657976616c7565",
        "02000100000000006b",
        "00000000000000",
    );
    assert_eq!(&hex[64..], rest);
}

/// What names a value elsewhere is of a kind of its own, which older releases refuse.
#[test]
fn the_format_of_references_is_what_it_was() {
    let ops = [Op::put(b"key", b"value").refer(AT)];
    let sections = [section(5, 6, &ops)];
    let request = RequestId::default();
    let bytes = encode(&Record { body: Body::Write(&sections), request }, 0, 0, 1);
    assert_eq!((bytes[4], bytes.len()), (4, 56 + 24 + 8 + 16 + 8));
    let hex: String = bytes[80..].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "030003000500000005001000000000000d0c0b0a000000006b65790000000000");
    // Of a later release.
    let mut later = bytes.clone();
    later[100] = 1;
    assert!(matches!(RecordView::parse(&later), Err(BadRecord::Newer(_))));
}

#[test]
fn mutated_records_neither_panic_nor_lie_about_lengths() {
    let mut random = SeededRandom(1);
    let value = vec![7; 300];
    let ops = [
        Op::put(b"key", &value),
        Op::delete(b"k"),
        Op { expiry_ms: Some(9), ..Op::put(b"q", b"") },
        Op::put(b"r", &value).refer(AT),
    ];
    let sections = [section(1, 2, &ops), section(3, 4, &ops[..2])];
    let write = Record { body: Body::Write(&sections), request: RequestId::default() };
    let create = Body::CreateShard {
        shard: ShardId(1),
        instance: InstanceId(2),
        epoch: 3,
        revision: Revision(4),
        start: b"from",
        end: b"to",
    };
    let create = Record { body: create, request: RequestId::default() };
    let mut originals = vec![encode(&write, 0, 0, 1), encode(&create, 0, 0, 1)];
    originals.extend(
        shard_bodies().map(|body| encode(&Record { body, request: RequestId::default() }, 0, 0, 1)),
    );
    let (mut good, mut bad) = (0_u64, 0_u64);
    let mut bytes = Vec::new();
    for _ in 0..1_000_000 {
        let which = if random.below(2) == 0 { 0 } else { random.below(originals.len() as u64) };
        bytes.clone_from(&originals[which as usize]);
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(4) {
                0 => bytes[at] = random.next() as u8,
                1 => bytes[at] ^= 1 << random.below(8),
                2 => bytes.truncate(at.max(1)),
                _ => bytes[at] = 0xff,
            }
        }
        match RecordView::parse(&bytes) {
            Ok(view) => {
                good += 1;
                if let BodyView::Write(sections) = view.body() {
                    let total: usize = sections
                        .flat_map(|s| s.ops())
                        .map(|op| op.key.len() + op.value.len())
                        .sum();
                    assert!(total <= bytes.len());
                }
            }
            Err(_) => bad += 1,
        }
        if let Some(header) = Header::decode(&bytes) {
            header.is_valid_at(0, 1, &bytes);
            header.covers(&bytes);
        }
    }
    assert!(good > 1000 && bad > 1000, "{good} good, {bad} bad");
}

#[test]
fn mutated_segment_headers_are_not_valid() {
    let header = SegmentHeader::new(3, 4096, 1 << 16, true);
    let block = header.encode();
    assert_eq!(block.len(), 4096);
    assert_eq!(SegmentHeader::decode(&block), HeaderState::Valid(header));
    for bit in 0..52 * 8 {
        let mut block = block.clone();
        block[bit / 8] ^= 1 << (bit % 8);
        assert!(!matches!(SegmentHeader::decode(&block), HeaderState::Valid(_)), "bit {bit}");
    }
    for len in 0..52 {
        assert_eq!(SegmentHeader::decode(&block[..len.min(51)]), HeaderState::Invalid);
    }
    let mut newer = block;
    newer[8] = 2;
    assert_eq!(SegmentHeader::decode(&newer), HeaderState::Newer);
}

#[test]
fn only_our_names_are_ours() {
    assert_eq!(parse_name("12.wal"), Some(12));
    for name in ["012.wal", "+1.wal", "-1.wal", "1.WAL", ".wal", "1.wal.tmp", "x.wal", "1"] {
        assert_eq!(parse_name(name), None, "{name}");
    }
}
