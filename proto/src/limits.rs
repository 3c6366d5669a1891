//! The limits that every process and client shares.
//!
//! Invariants: a key with its value, and a batch, fit into [`MAX_MESSAGE_BYTES`] (two values of the
//! largest size, one as a condition, do not: the transport refuses these); one answer never passes [`ANSWER_MAX_BYTES`] unless a single entry does.

/// Longest key, bytes; a key has at least one.
pub const MAX_KEY_BYTES: usize = 4096;

/// Longest bound of a range: the successor of the longest key is one byte longer.
pub const MAX_BOUND_BYTES: usize = MAX_KEY_BYTES + 1;

/// Longest value, bytes.
pub const MAX_VALUE_BYTES: usize = 8 << 20;

/// Largest gRPC message in either direction, bytes: set it for encoding and decoding, on servers
/// and clients.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// Most keys or operations in one batch frame.
pub const MAX_BATCH_OPERATIONS: usize = 4096;

/// Most bytes of keys and values in one batch frame; a frame of one operation may pass it.
pub const MAX_BATCH_BYTES: usize = 4 << 20;

/// A streamed answer is sent once it holds this much, bytes.
pub const ANSWER_TARGET_BYTES: usize = 1 << 20;

/// One more entry must not take a streamed answer beyond this, bytes: 4 MiB (the default limit of
/// gRPC clients) less room for framing. An answer of one larger entry is allowed.
pub const ANSWER_MAX_BYTES: usize = (4 << 20) - (64 << 10);

/// What an entry or result costs on the wire beyond its key and value, bytes, at most.
pub const ENTRY_OVERHEAD_BYTES: usize = 24;

/// Most bytes of error details in one answer, before their base64 form in a header; with it they
/// stay under 4 KiB.
pub const MAX_DETAIL_BYTES: usize = 3000;

/// Longest text of an error, bytes; what is longer is cut.
pub const MAX_ERROR_TEXT_BYTES: usize = 512;

/// Most entries of one page of a list.
pub const MAX_PAGE_SIZE: u32 = 1000;

const _: () = {
    assert!(MAX_VALUE_BYTES + MAX_KEY_BYTES < MAX_MESSAGE_BYTES);
    assert!(MAX_BATCH_BYTES + MAX_BATCH_OPERATIONS * 64 < MAX_MESSAGE_BYTES);
    assert!(ANSWER_TARGET_BYTES < ANSWER_MAX_BYTES && ANSWER_MAX_BYTES < 4 << 20);
    assert!(MAX_DETAIL_BYTES.div_ceil(3) * 4 < 4096);
};
