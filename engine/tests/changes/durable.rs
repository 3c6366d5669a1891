//! Only what is durable is shown, whole.

use vmemkv_engine::io::testing::{Operation as DiskOperation, PowerCut};
use vmemkv_engine::{ChangeKind, ErrorKind, KeyRange, Operation, Revision};

use crate::support::{Bench, delete, put, put_durable, small};
use crate::{read_all, value};

#[test]
fn a_change_is_shown_only_once_it_is_durable() {
    let bench = Bench::new(small());
    let all = KeyRange::all();
    put_durable(&bench.engine, b"a", b"1");
    let gate = bench.disk.close(DiskOperation::Sync, "wal/");
    let lsn = put(&bench.engine, b"a", b"2");
    gate.reached();
    // It is written, and in the page cache; a power cut would take it.
    let (found, next) = read_all(&bench.engine, &all, Revision(0));
    assert_eq!(found.iter().map(value).collect::<Vec<_>>(), [b"1"]);
    assert_eq!(next, Revision(1));
    gate.open();
    bench.engine.wait_durable(lsn).unwrap();
    let (found, next) = read_all(&bench.engine, &all, next);
    assert_eq!(found.iter().map(value).collect::<Vec<_>>(), [b"2"]);
    assert_eq!(next, Revision(2));
    let after = bench.after(&PowerCut::strict(), "after a cut");
    assert_eq!(read_all(&after, &all, Revision(1)).0, found);
}

#[test]
fn an_answer_ends_behind_a_whole_batch() {
    let bench = Bench::new(small());
    let engine = &bench.engine;
    put(engine, b"a", b"1");
    let operations = [
        Operation::Put { key: b"b".to_vec(), value: vec![1; 500] },
        Operation::Delete { key: b"a".to_vec() },
        Operation::Put { key: b"c".to_vec(), value: b"old".to_vec() },
        Operation::Put { key: b"c".to_vec(), value: b"new".to_vec() },
        Operation::Delete { key: b"missing".to_vec() },
    ];
    engine.write_batch(&operations).unwrap();
    delete(engine, b"missing too");
    let lsn = delete(engine, b"b");
    engine.wait_durable(lsn).unwrap();
    let all = KeyRange::all();
    let read = |after| engine.changes_since(&all, Revision(after), 1).unwrap();
    let first = read(0);
    assert_eq!((first.records.len(), first.next, first.caught_up), (1, Revision(1), false));
    let batch = read(1);
    let keys: Vec<_> = batch.records.iter().map(|c| (c.revision.0, c.key.as_slice())).collect();
    assert_eq!(keys, [(2, b"a".as_slice()), (3, b"b"), (4, b"c")]);
    assert_eq!(batch.records[0].kind, ChangeKind::Delete);
    assert_eq!(value(&batch.records[2]), b"new");
    // A position within it is as good as any.
    assert_eq!(read(3).records, batch.records[2..]);
    let last = read(4);
    assert_eq!(last.records.len(), 1);
    assert_eq!((last.next, last.caught_up), (Revision(5), true));
    let end = read(5);
    assert_eq!((end.records, end.next, end.caught_up), (Vec::new(), Revision(5), true));
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let bench = Bench::new(small());
    put_durable(&bench.engine, b"a", b"1");
    let ask = |range: &KeyRange, after| {
        bench.engine.changes_since(range, Revision(after), 0).unwrap_err().kind()
    };
    assert_eq!(ask(&KeyRange::all(), 2), ErrorKind::InvalidArgument);
    assert_eq!(ask(&KeyRange::new(*b"b", *b"a"), 0), ErrorKind::InvalidArgument);
    let managed = vmemkv_engine::Options { sharding: vmemkv_engine::Sharding::Managed, ..small() };
    let bench = Bench::new(managed);
    let shard = vmemkv_engine::ShardId(7);
    bench.engine.create_shard(shard, &KeyRange::new(*b"b", *b"d"), 1).unwrap();
    let ask = |range: &KeyRange| bench.engine.changes_since(range, Revision(0), 0);
    assert!(ask(&KeyRange::new(*b"b", *b"d")).unwrap().caught_up);
    assert!(ask(&KeyRange::new(*b"c", *b"d")).unwrap().caught_up);
    for range in [KeyRange::all(), KeyRange::new(*b"a", *b"c"), KeyRange::new(*b"c", Vec::new())] {
        assert_eq!(ask(&range).unwrap_err().kind(), ErrorKind::NotServed, "{range:?}");
    }
}

/// The log without a sync is nothing that a new process could rely on either.
#[test]
fn a_failed_log_goes_on_showing_what_was_durable() {
    let dir = crate::support::fast_dir();
    let disk = vmemkv_engine::io::OsDisk::new(dir.path().join("data"));
    let faults = vmemkv_engine::io::testing::FaultDisk::new(std::sync::Arc::new(disk));
    let engine = vmemkv_engine::Engine::open_on(faults.clone(), small()).unwrap();
    put_durable(&engine, b"a", b"1");
    let fault = vmemkv_engine::io::testing::Fault::new(&[DiskOperation::Sync], 5).in_path("wal/");
    faults.inject(fault.forever());
    let lsn = put(&engine, b"a", b"2");
    engine.wait_durable(lsn).unwrap_err();
    let (found, next) = read_all(&engine, &KeyRange::all(), Revision(0));
    assert_eq!((found.len(), next), (1, Revision(1)));
    let wait = engine.wait_changes(&KeyRange::all(), next, std::time::Duration::from_secs(60));
    assert_eq!(wait.unwrap_err().kind(), ErrorKind::ReadOnly);
}
