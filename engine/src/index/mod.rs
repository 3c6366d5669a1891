//! T1: the index of each shard, in memory. Owns keys and the 64-bit payloads they stand for; what
//! a payload means (a place in the value log) is known to the callers only.
//!
//! A shard's index is a [`Bundle`]: an **active** append region (recent keys), perhaps a
//! **frozen** one that is being merged, and a **sorted** region. A key is looked for in that
//! order; the first hit is the newest.
//!
//! Invariants:
//! - a key is at most once in a region, and identity is the full key, never its hash;
//! - keys are immutable and live as long as their region; entries change through [`CellRef`]s,
//!   payload and tag together for every reader;
//! - **one writer per key**: every insert and store happens under the key's stripe lock, which
//!   the callers own;
//! - while `frozen` is there, nobody changes an entry of the frozen or sorted region.
//!
//! # Why no write is lost over a freeze and a merge
//!
//! A writer, under its stripe, loads the bundle *once*, marks it dirty, and inserts or stores
//! through it ([`Bundle::publish`]). A structural operation (one per shard at a time) does
//! [`Shard::freeze`], then passes every stripe (locks and unlocks each), then merges, then
//! [`Shard::publish_merged`].
//!
//! - *A writer that loaded the bundle before the freeze* may still change the old active and the
//!   sorted region in place. It holds its stripe while it does, so the pass waits for it; the
//!   merge starts after the pass and sees the change.
//! - *A writer that loads the bundle after the freeze* finds `frozen` and only inserts into, or
//!   stores in, the new active region. For one key this is ordered by the stripe.
//! - *A writer that holds the frozen bundle while the merge is published* still only changes the
//!   active region, and the published bundle has the same one: nothing is lost. It does not touch
//!   the old frozen and sorted regions, so the merged copies stay right.
//! - *A writer that loads the merged bundle* may change the new sorted region in place. Blocks of
//!   the old sorted region may be shared with the new one; only readers still hold the old one.
//!
//! The dirty flag belongs to the active region it was set for (it travels with the `Arc`): the
//! freeze brings a fresh flag with the fresh region, a publish keeps flag and region, so that a
//! concurrent set is lost by neither. A flag is never cleared. What is set on the old region by a
//! late writer is seen after the pass, in the frozen region's flag.
//!
//! # What a checkpoint has to write
//!
//! An entry of an append region is in no index file. One of a sorted region is in none while its
//! *changed* bit is set: by the store that changed it (under the stripe, so before the pass), or by
//! the merge that took it from an append region. A checkpoint writes the entries whose bits are
//! set and clears them in the merged region before it is published, while nobody changes a sorted
//! entry of the shard. Tombstones stay until a file has them: see [`merge`].

mod append_region;
mod bundle;
mod cell;
mod chain;
mod cold_scans;
mod entry;
mod filter;
mod index_file;
mod merge;
mod range_iter;
mod revision_counter;
mod shard;
mod shard_table;
mod sorted_region;

#[cfg(test)]
mod chain_test;
#[cfg(all(test, shuttle))]
mod explore_test;
#[cfg(test)]
mod freeze_test;
#[cfg(test)]
mod merge_test;
#[cfg(test)]
mod range_iter_test;
#[cfg(test)]
mod shard_table_test;
#[cfg(test)]
mod test_keys;

pub(crate) use append_region::AppendRegion;
pub(crate) use bundle::Bundle;
pub(crate) use chain::join_chain;
pub(crate) use entry::{Entry, Slot};
pub(crate) use index_file::{Meta, decode, encode, encode_changes};
pub(crate) use range_iter::RangeIter;
pub(crate) use revision_counter::RevisionCounter;
pub(crate) use shard::Shard;
pub(crate) use shard_table::ShardTable;
pub(crate) use sorted_region::{SortedCursor, SortedRegion};

/// The hash of a key that regions and filters use. Compute it once per operation.
#[inline]
pub(crate) fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

/// Marks a place where another thread may come between. Does nothing, except in tests that ask for
/// it, which then switch threads there.
#[inline(always)]
fn race_window() {
    #[cfg(test)]
    test_keys::yield_if_asked();
}
