//! The gRPC services.
//!
//! Invariant: generated types stop here; what lies behind works with checked types.

pub(crate) mod kv;
pub(crate) mod node;
pub(crate) mod node_admin;

/// Largest message that is decoded or encoded: the limit of the API, and room for framing and for
/// the fields around key and value.
pub(crate) const TRANSPORT_MESSAGE_BYTES: usize =
    vmemkv_proto::limits::MAX_MESSAGE_BYTES + (1 << 16);
