//! The codec: there and back, and whatever else the bytes may hold.

use super::record::{HEADER, Record, allocated_len, encode_header};
use crate::io::testing::SeededRandom;
use crate::options::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

fn encode(key: &[u8], value: &[u8], expiry_ms: u64) -> Vec<u8> {
    let allocated = allocated_len(key.len(), value.len());
    let mut bytes = encode_header(key, value, allocated, expiry_ms).to_vec();
    bytes.extend_from_slice(key);
    bytes.extend_from_slice(value);
    bytes.resize(allocated as usize, 0xee);
    bytes
}

#[test]
fn there_and_back() {
    let sizes = [(1, 0), (1, 1), (16, 1024), (15, 1), (MAX_KEY_BYTES, MAX_VALUE_BYTES)];
    for (key_len, value_len) in sizes {
        let (key, value) = (vec![0xff; key_len], vec![7; value_len]);
        let bytes = encode(&key, &value, u64::MAX);
        assert!(bytes.len() < HEADER + key_len + value_len + 16);
        let record = Record::decode(&bytes).unwrap();
        assert_eq!((record.key, record.value), (&*key, &*value));
        assert_eq!(record.expiry_ms, u64::MAX);
        record.verify().unwrap();
    }
}

#[test]
fn every_changed_bit_is_found_but_those_of_sequence_and_slack() {
    let bytes = encode(b"key", b"value", 3);
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let found = Record::decode(&changed).and_then(|record| record.verify()).is_err();
        let byte = bit / 8;
        assert_eq!(found, !(4..8).contains(&byte) && byte < HEADER + 8, "bit {bit}");
    }
}

#[test]
fn a_million_mutations_never_panic() {
    let mut random = SeededRandom(17);
    let originals =
        [encode(b"k", b"", 0), encode(&[9; 40], &[1; 90], 5), encode(b"ab", &[3; 9], 0)];
    let (mut decoded, mut verified) = (0, 0);
    for _ in 0..1_000_000 {
        let mut bytes = originals[random.below(3) as usize].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = match random.below(3) {
                0 => 0,
                1 => 0xff,
                _ => random.next() as u8,
            };
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        if let Ok(record) = Record::decode(&bytes) {
            decoded += 1;
            assert!(record.key.len() + record.value.len() + HEADER <= bytes.len());
            verified += u32::from(record.verify().is_ok());
        }
    }
    assert!(decoded > 10_000 && verified > 1000, "{decoded} {verified}");
}
