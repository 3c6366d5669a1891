//! The stores against openraft's own suite, and what a data directory may be.

use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

use super::database::{Database, FORMAT_VERSION, META, keys};
use super::log_store::LogStore;
use super::state_machine::StateMachine;
use super::types::{IoError, StorageError, TypeConfig};
use crate::error::Error;

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, StateMachine), StorageError> {
        let failed = |error: &dyn std::fmt::Display| {
            StorageError::from(IoError::read(openraft::AnyError::error(error.to_string())))
        };
        let dir = tempfile::tempdir().map_err(|error| failed(&error))?;
        let db = Database::open(&dir.path().join("data"), 1).map_err(|error| failed(&error))?;
        let machine = StateMachine::open(db.clone()).map_err(|error| failed(&error))?;
        Ok((dir, LogStore::new(db), machine))
    }
}

#[test]
fn the_stores_pass_the_suite_of_openraft() {
    Suite::test_all(Builder).unwrap();
}

fn open(dir: &TempDir) -> Result<Database, Error> {
    Database::open(dir.path(), 7)
}

#[test]
fn the_id_of_a_data_directory_stays() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(open(&dir).unwrap().router_id(), 7);
    assert_eq!(Database::open(dir.path(), 8).unwrap().router_id(), 7);
}

#[test]
fn a_data_directory_in_use_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _held = open(&dir).unwrap();
    let error = open(&dir).err().unwrap();
    assert!(matches!(&error, Error::DataInUse(path) if path == dir.path()), "{error}");
}

#[test]
fn a_directory_of_something_else_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("MANIFEST"), b"engine").unwrap();
    let error = open(&dir).err().unwrap();
    assert!(matches!(&error, Error::ForeignData { .. }), "{error}");
    assert!(error.to_string().contains("MANIFEST"), "{error}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_is_no_store_is_refused_and_left_alone() {
    for text in [&b"not a store"[..], b"", &[7; 10_000]] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("router.redb");
        std::fs::write(&path, text).unwrap();
        let error = open(&dir).err().unwrap();
        assert!(matches!(&error, Error::ForeignData { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), text);
    }
}

#[test]
fn a_store_of_another_kind_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(redb::Database::create(dir.path().join("router.redb")).unwrap());
    let error = open(&dir).err().unwrap();
    assert!(matches!(&error, Error::ForeignData { .. }), "{error}");
}

#[test]
fn a_newer_format_is_refused_by_number() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir).unwrap());
    let db = redb::Database::open(dir.path().join("router.redb")).unwrap();
    let txn = db.begin_write().unwrap();
    let format = br#"{"kind": "vmemkv-router", "version": 99, "more": true}"#;
    txn.open_table(META).unwrap().insert(keys::FORMAT, &format[..]).unwrap();
    txn.commit().unwrap();
    drop(db);
    let error = open(&dir).err().unwrap();
    let expected = |error: &Error| {
        matches!(error, Error::NewerFormat { found: 99, supported: FORMAT_VERSION, .. })
    };
    assert!(expected(&error), "{error}");
    assert!(error.to_string().contains("99"), "{error}");
}

#[test]
fn what_a_crash_left_of_a_new_store_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    drop(redb::Database::create(dir.path().join("router.redb.new")).unwrap());
    assert_eq!(open(&dir).unwrap().router_id(), 7);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
