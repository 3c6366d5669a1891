//! A disk that fails when it is told to.

use std::path::Path;
use std::sync::Arc;

use super::{Fault, FaultDisk, Operation};
use crate::io::{Disk, OsDisk};

#[test]
fn fails_what_it_is_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let disk = FaultDisk::new(Arc::new(OsDisk::new(dir.path())));
    let file = disk.create(Path::new("a")).unwrap();
    disk.inject(Fault::new(&[Operation::Write], libc::ENOSPC).at(1).short_writes());
    file.write_at(0, b"12345678").unwrap();
    let error = file.write_at(0, b"abcdefgh").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    file.write_at(0, b"12345678").unwrap();

    disk.inject(Fault::new(&[Operation::Sync], libc::EIO).forever().in_path("a"));
    assert!(file.sync().is_err());
    assert!(file.sync_range(0, 1).is_err());
    disk.create(Path::new("b")).unwrap().sync().unwrap();
    disk.heal();
    file.sync().unwrap();
    assert_eq!(disk.count(Operation::Write), 3);

    disk.set_free_bytes(Some(7));
    assert_eq!(disk.free_bytes().unwrap(), 7);
}
