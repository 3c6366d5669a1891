//! Room on the disk for what is granted: the current segment, and one spare file behind it.
//!
//! A full disk must be met before a write is granted, where it can be refused with nothing
//! changed, and not in the flusher, where it would take the log down. So the file that the flusher
//! rolls to is there, allocated, before anybody is granted bytes that may need it.
//!
//! Invariants: with `T` the bytes granted (permits, reserved, published) and not yet written, `R`
//! the room left in the current segment and `C` the room of the spare (0: none),
//! `T <= limit == min(ring, max(R, C))` at all times. That suffices for any order of the records,
//! although none crosses a segment: if `T <= R`, all fit the current one; if `T <= C`, whatever
//! does not go to the current one fits the spare. Every step keeps it: writing `w` bytes takes `w`
//! off `T` and `R`, and at most `w` off the limit; a roll happens only when the next record is
//! longer than `R`, so `R < T <= C`, and the spare's `C` becomes `R`; a new spare only adds. A
//! request that needs more than the limit makes the spare longer, or gets an error.
//!
//! The limit changes only under `state`, by [`Space::adjust`]. No spare is not an error: the next
//! request that does not fit tries to make one, at most every [`RETRY`] after a failure.

use std::time::{Duration, Instant};

use crate::sync::primitives::Mutex;

use super::Shared;
use super::retention::{NewFile, Segments};
use super::segment::{HEADER_BLOCK_BYTES, MakeError};
use super::space::Space;
use crate::error::{Error, Result};

/// How long after a failure to make a spare the next attempt is made.
const RETRY: Duration = Duration::from_millis(100);

/// The room for records in the current segment and the spare.
pub(super) struct Room {
    ring_bytes: u64,
    state: Mutex<State>,
}

struct State {
    /// Room left in the current segment.
    left: u64,
    spare: Option<NewFile>,
    /// The last attempt to make a spare, or a longer one, if it failed.
    failed: Option<(Instant, Error)>,
}

impl State {
    fn limit(&self, ring_bytes: u64) -> u64 {
        let spare = self.spare.as_ref().map_or(0, NewFile::room);
        self.left.max(spare).min(ring_bytes)
    }
}

impl Room {
    /// With `left` bytes of room in the current segment and no spare.
    pub(super) fn new(ring_bytes: u64, left: u64) -> Self {
        Self { ring_bytes, state: Mutex::new(State { left, spare: None, failed: None }) }
    }

    /// The bytes that may be granted and unwritten.
    pub(super) fn limit(&self) -> u64 {
        self.state.lock().limit(self.ring_bytes)
    }

    /// Whether there is a spare.
    pub(super) fn has_spare(&self) -> bool {
        self.state.lock().spare.is_some()
    }

    /// Bytes of the spare file.
    pub(super) fn spare_bytes(&self) -> u64 {
        self.state.lock().spare.as_ref().map_or(0, |spare| spare.bytes)
    }

    /// Calls `act` while nothing of the ring is granted, if that is so now; whether it was. The
    /// lock that is held keeps the limit as it is, and keeps whoever wants room meanwhile from
    /// taking the ring's shortness for the disk's: it waits for the bell, or for the lock in
    /// [`Shared::make_room`], and then finds everything free.
    pub(super) fn while_all_is_free(&self, space: &Space, act: impl FnOnce()) -> bool {
        let state = self.state.lock();
        let limit = state.limit(self.ring_bytes);
        let is_free = space.try_take_all(limit);
        if is_free {
            act();
            space.give(limit);
        }
        is_free
    }

    /// The flusher has written `bytes` to the current segment and zeroed them in the ring.
    pub(super) fn wrote(&self, space: &Space, bytes: u64) {
        let mut state = self.state.lock();
        debug_assert!(bytes <= state.left, "{bytes} bytes into {}", state.left);
        state.left = state.left.saturating_sub(bytes);
        space.adjust(bytes, state.limit(self.ring_bytes));
    }

    /// The spare becomes the current segment, for a record of `first_bytes` that does not fit the
    /// current one.
    pub(super) fn roll(&self, segments: &Segments, first_bytes: u64) -> Result<NewFile> {
        let mut state = self.state.lock();
        debug_assert!(state.spare.as_ref().is_some_and(|spare| spare.room() >= first_bytes));
        let spare = match state.spare.take() {
            Some(spare) => spare,
            None => segments.make(first_bytes).map_err(MakeError::into_error)?,
        };
        // The limit stays: it was the spare's room.
        state.left = spare.room();
        Ok(spare)
    }

    /// Makes the next spare if there is none. Only a failed sync is an error.
    pub(super) fn refill(&self, segments: &Segments, space: &Space) -> Result<()> {
        let mut state = self.state.lock();
        match self.extend(&mut state, segments, 0) {
            Ok(()) => {
                space.adjust(0, state.limit(self.ring_bytes));
                Ok(())
            }
            Err(MakeError::Sync(error)) => Err(error),
            Err(MakeError::Other(_)) => Ok(()),
        }
    }

    /// Makes the spare as long as `room` needs, or a new one; remembers a failure.
    fn extend(
        &self,
        state: &mut State,
        segments: &Segments,
        room: u64,
    ) -> std::result::Result<(), MakeError> {
        let made = match &mut state.spare {
            Some(spare) => segments.lengthen(spare, room),
            None => segments.make(room).map(|made| state.spare = Some(made)),
        };
        match &made {
            Ok(()) => state.failed = None,
            Err(MakeError::Sync(_)) => {}
            Err(MakeError::Other(error)) => {
                if state.failed.is_none() {
                    tracing::warn!(%error, "no spare log segment: writes that need it are refused");
                }
                state.failed = Some((Instant::now(), error.clone()));
            }
        }
        made
    }
}

impl Shared {
    /// Makes room on the disk for `len` bytes more than are granted now, if the disk is what is
    /// short. `DiskFull` (or what else the disk said) when that fails: nothing has changed then.
    pub(super) fn make_room(&self, len: u64) -> Result<()> {
        let room = &self.room;
        let mut state = room.state.lock();
        let limit = state.limit(room.ring_bytes);
        let free = self.space.free();
        if limit == room.ring_bytes || len <= free || self.commit.is_poisoned() {
            // Somebody else was faster, or it is the ring that is short: ask `space` again.
            return Ok(());
        }
        if let Some((at, error)) = &state.failed
            && at.elapsed() < RETRY
            && !self.segments.has_free()
        {
            return Err(self.no_room(error));
        }
        // `free <= limit`, and others may take from it meanwhile: then the caller comes back.
        let wanted = (limit - free.min(limit) + len).min(room.ring_bytes);
        match room.extend(&mut state, &self.segments, wanted) {
            Ok(()) => {
                self.space.adjust(0, state.limit(room.ring_bytes));
                Ok(())
            }
            Err(MakeError::Other(error)) => Err(self.no_room(&error)),
            Err(MakeError::Sync(error)) => {
                drop(state);
                self.poison(error.message());
                Err(self.refusal())
            }
        }
    }

    fn no_room(&self, error: &Error) -> Error {
        let folder = self.segments.folder();
        Error::new(
            error.kind(),
            format!(
                "no room for the write in the log folder {}, nothing was changed, retry later: {}",
                folder.display(),
                error.message()
            ),
        )
    }
}

impl NewFile {
    /// Room for records.
    fn room(&self) -> u64 {
        self.bytes.saturating_sub(HEADER_BLOCK_BYTES)
    }
}
