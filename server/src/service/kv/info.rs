//! GetInfo: what this process is. Answered also by a server that is not registered.

use vmemkv_proto::limits;
use vmemkv_proto::{ApiError, v1};

use crate::node::Node;

/// What this process is.
pub(super) fn get_info(node: &Node) -> Result<v1::GetInfoResponse, ApiError> {
    let identity = node.engine()?.identity();
    Ok(v1::GetInfoResponse {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        role: "server".to_owned(),
        cluster_id: identity.cluster_id,
        node_id: identity.node_id,
        max_key_bytes: limits::MAX_KEY_BYTES as u64,
        max_value_bytes: limits::MAX_VALUE_BYTES as u64,
        max_message_bytes: limits::MAX_MESSAGE_BYTES as u64,
        max_batch_operations: limits::MAX_BATCH_OPERATIONS as u64,
        max_batch_bytes: limits::MAX_BATCH_BYTES as u64,
        durability: "sync".to_owned(),
    })
}
