//! What the log's tests share: small options, and writing and reading back simple records.

use std::sync::Arc;

use super::reference::no_values;
use super::{Body, BodyView, Op, Record, RecordView, Replay, RequestId, Section, Wal};
use crate::error::Result;
use crate::io::{Disk, OsDisk};
use crate::options::Options;
use crate::types::{InstanceId, Lsn, Revision};

pub(super) fn options() -> Options {
    Options {
        wal_segment_bytes: 16 << 10,
        checkpoint_wal_bytes: 64 << 10,
        wal_keep_bytes: 16 << 10,
        ..Options::for_tests()
    }
}

pub(super) fn os_disk(dir: &tempfile::TempDir) -> Arc<dyn Disk> {
    Arc::new(OsDisk::new(dir.path()))
}

pub(super) fn replay(disk: &Arc<dyn Disk>, checkpoint: u64, freeze: u64) -> Result<Replay> {
    Replay::open(Arc::clone(disk), &options(), Lsn(checkpoint), Lsn(freeze))
}

/// Opens and starts the log, with everything read back before.
pub(super) fn open(disk: &Arc<dyn Disk>) -> (Wal, Vec<(u64, Vec<u8>)>) {
    let replay = replay(disk, 0, 0).unwrap();
    let found = contents(&replay);
    (replay.start(&options(), no_values()).unwrap(), found)
}

/// End and value of each one-put record.
pub(super) fn contents(replay: &Replay) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    replay
        .for_each(&mut |record, end| {
            found.push((end.0, value_of(&record)));
            Ok(())
        })
        .unwrap();
    assert_eq!(found.len() as u64, replay.records_seen());
    found
}

/// The value of a record of one put.
pub(super) fn value_of(record: &RecordView<'_>) -> Vec<u8> {
    let BodyView::Write(mut sections) = record.body() else { panic!("{record:?}") };
    let section = sections.next().unwrap();
    section.ops().next().unwrap().value.to_vec()
}

/// Appends a record of one put without waiting; its ticket.
pub(super) fn append(wal: &Wal, value: &[u8]) -> Result<Lsn> {
    let ops = [Op::put(b"key", value)];
    let sections = [Section { instance: InstanceId(1), first_revision: Revision(1), ops: &ops }];
    let record = Record { body: Body::Write(&sections), request: RequestId::default() };
    let permit = wal.acquire(record.encoded_len())?;
    Ok(wal.reserve(permit).publish(&record))
}

/// Appends a record of one put and waits until it is durable.
pub(super) fn write(wal: &Wal, value: &[u8]) -> Result<Lsn> {
    let lsn = append(wal, value)?;
    wal.wait(lsn)?;
    Ok(lsn)
}
