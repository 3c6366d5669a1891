//! Values of the largest size, and keys that are easy to mix up.

use vmemkv_engine::{Engine, Options};

use crate::open;
use crate::support::{Model, contents, put, put_durable, small, verify};

#[test]
fn the_largest_values() {
    let (_dir, disk, engine) = open(small());
    let value = |byte: u8, len: usize| vec![byte; len];
    put_durable(&engine, b"a", &value(1, 8 << 20));
    put_durable(&engine, b"b", &value(2, 8 << 20));
    engine.checkpoint().unwrap();
    // Over base: elsewhere. Over tail: in place.
    put_durable(&engine, b"a", &value(3, (8 << 20) - 1));
    put_durable(&engine, b"a", &value(4, 8 << 20));
    put_durable(&engine, b"b", b"small");
    let expected = contents(&engine);
    assert_eq!(expected[&b"a"[..]], value(4, 8 << 20));
    drop(engine);
    let engine = Engine::open_on(disk, small()).unwrap();
    assert!(contents(&engine) == expected);
    verify(&engine, "largest");
}

/// Long prefixes in common, differences late or by length only, zero bytes and 0xff at the end.
#[test]
fn awkward_keys() {
    for inline in [true, false] {
        let (_dir, disk, engine) = open(Options { inline, bloom: inline, ..small() });
        let mut model = Model::new();
        let prefix = vec![b'p'; 220];
        for i in 0..400u32 {
            let mut key = prefix[..200 + (i % 21) as usize].to_vec();
            key.extend_from_slice(&[0, (i / 21) as u8]);
            key.extend(std::iter::repeat_n([0, 0xff][i as usize % 2], (i % 3) as usize));
            let value = vec![i as u8; (i % 12) as usize];
            put(&engine, &key, &value);
            model.insert(key, value);
            if i == 200 {
                engine.reorganize(None).unwrap();
            }
        }
        for len in [1, 2, 3, 4096] {
            for byte in [0, 0xff, b'p'] {
                put(&engine, &vec![byte; len], b"edge");
                model.insert(vec![byte; len], b"edge".to_vec());
            }
        }
        for round in 0..3 {
            assert!(contents(&engine) == model, "round {round}");
            for (key, value) in &model {
                assert_eq!(engine.get(key).unwrap().as_ref(), Some(value));
                let next = [key.as_slice(), b"\0\0\0\0"].concat();
                assert_eq!(engine.get(&next[..next.len().min(4096)]).unwrap().is_some(), {
                    model.contains_key(&next[..next.len().min(4096)])
                });
            }
            if round == 0 {
                engine.reorganize(None).unwrap();
            } else {
                engine.checkpoint().unwrap();
            }
        }
        drop(engine);
        assert!(contents(&Engine::open_on(disk, small()).unwrap()) == model);
    }
}
