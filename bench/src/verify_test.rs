//! Whole cells on a store in memory: every workload in both flavours passes on a right store and
//! is caught on a wrong one.

use std::time::Duration;

use clap::ValueEnum;

use super::verify;
use crate::corpus::{AGED, is_aged_delete, is_aged_update};
use crate::keygen::{KeyKind, Keys};
use crate::operations::Bench;
use crate::plan::Plan;
use crate::random::Stream;
use crate::store::Store;
use crate::store::memory::{Fault, MemoryStore};
use crate::system::Device;
use crate::values::Values;
use crate::workload::{Cell, Flavour, Scenario, Touch, Workload};

const RECORDS: u64 = 2000;

fn problems(workload: Workload, flavour: Flavour, fault: Fault) -> Vec<String> {
    let cell = Cell {
        scenario: Scenario::Mem1Kb,
        workload,
        flavour,
        threads: 3,
        records: RECORDS,
        seconds: 0.05,
        touch: Touch::Line,
    };
    let (store, values) = (MemoryStore::new(fault), Values::new(cell.scenario, flavour));
    load(&cell, &store, &values);
    let plans: Vec<_> =
        (0..3).map(|thread| Plan::new(&cell, Stream::Window, thread).expect("plan")).collect();
    let device = Device::default();
    let bench = Bench { cell, store: &store, values: &values, device: &device };
    let ran = bench.run(&plans, Duration::from_secs_f64(cell.seconds)).expect("run");
    verify(&bench, &plans, &ran).expect("verify")
}

fn load(cell: &Cell, store: &MemoryStore, values: &Values) {
    let keys = Keys::new(cell.flavour, RECORDS);
    let pairs = (0..cell.loaded_records()).filter_map(|record| {
        let value = match cell.is_aged() {
            true if is_aged_delete(record) => return None,
            true if is_aged_update(record) => values.updated(record, AGED).to_vec(),
            _ => values.loaded(record),
        };
        Some((keys.key(KeyKind::Existing, record), value))
    });
    store.load(pairs.collect()).expect("load");
}

fn all_cells() -> impl Iterator<Item = (Workload, Flavour)> {
    let workloads = Workload::value_variants().iter();
    workloads.flat_map(|&workload| [(workload, Flavour::Seed), (workload, Flavour::Field)])
}

#[test]
fn every_workload_passes_on_a_right_store() {
    for (workload, flavour) in all_cells() {
        let found = problems(workload, flavour, Fault::None);
        assert!(found.is_empty(), "{workload:?} {flavour:?}: {found:?}");
    }
}

#[test]
fn a_lost_write_is_found() {
    for workload in [Workload::Insert, Workload::UpdateZipf, Workload::Delete, Workload::YcsbE] {
        for flavour in [Flavour::Seed, Flavour::Field] {
            let found = problems(workload, flavour, Fault::LosesWrites);
            assert!(!found.is_empty(), "{workload:?} {flavour:?}");
        }
    }
}

#[test]
fn wrong_bytes_are_found() {
    for workload in [Workload::GetHitZipf, Workload::GetHitUniform, Workload::UpdateZipf] {
        let found = problems(workload, Flavour::Seed, Fault::WrongBytes);
        assert!(!found.is_empty(), "{workload:?}");
    }
}

#[test]
fn entries_missing_from_scans_are_found() {
    for workload in [Workload::ScanZipf, Workload::ScanUniform, Workload::YcsbE] {
        for flavour in [Flavour::Seed, Flavour::Field] {
            let found = problems(workload, flavour, Fault::ShortScans);
            assert!(!found.is_empty(), "{workload:?} {flavour:?}");
        }
    }
}
