//! Values that a record of the log refers to: they are written to the value log only.
//!
//! Protocol: whoever writes such a value stores it in the value log before it reserves its place in
//! the log; the flusher makes it durable ([`SyncValues`]) before it says that the record is. So
//! a record is worth what its values are: behind a crash, one whose value is not whole is as torn as
//! one whose own bytes are not, and the log is cut there, unless something proves that it was
//! durable. Then only the read of that value fails.
//!
//! Invariant: nothing that the log below the cut refers to is written to by recovery, but with the
//! bytes that it has.

use super::decode::{BodyView, RecordView};
use crate::error::Result;
use crate::types::{Lsn, ValueAt};

/// Makes every value durable that a published record refers to. An error is for good.
pub(crate) type SyncValues = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// A reference in a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reference<'a> {
    /// The record.
    pub(crate) lsn: Lsn,
    /// The key whose value it is.
    pub(crate) key: &'a [u8],
    /// Where it is.
    pub(crate) at: ValueAt,
}

/// The references of a record.
pub(super) fn references_of(record: &RecordView<'_>, see: &mut dyn FnMut(Reference<'_>)) {
    let BodyView::Write(sections) = record.body() else { return };
    for op in sections.flat_map(|section| section.ops()) {
        if let Some(at) = op.at {
            see(Reference { lsn: record.start_lsn(), key: op.key, at });
        }
    }
}

/// Of a log that refers to nothing.
#[cfg(test)]
pub(crate) fn no_values() -> SyncValues {
    Box::new(|| Ok(()))
}
