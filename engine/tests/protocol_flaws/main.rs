//! The schedules on which earlier drafts of the engine's protocol lost or invented data, F1 to
//! F28, one test each, named after the schedule. Where it can be forced from outside, a gate in
//! the disk forces it; otherwise threads and a seed (`VMEMKV_SEED`) look for it.
//!
//! Elsewhere: F1 with writers that dawdle under their stripe, and F22, need the inside
//! (`src/checkpoint/slow_writer_test.rs`, `src/core_test.rs`); F12 for the log is in
//! `sync_sweep.rs`; F20 and F27 are in `disk_full.rs`; the log alone under F10 and F11 is in
//! `src/wal/crash_test.rs`; F13 and F14 are in `shards_race.rs`, and with F15 forced from the inside
//! in `src/ops/straggler_test.rs`. F28 is in `capacity.rs`.
//! Not yet: F24, for values are still written twice.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod checkpoint;
mod defragment;
mod races;
mod reads;
mod recovery;
mod seeds;
mod shards;
