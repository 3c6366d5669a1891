//! The gRPC definitions of vmemkv, the code generated from them, and what every process must agree
//! on at that border.
//!
//! Invariants: names in [`v1`] are a published contract and only grow; [`internal`] may change with
//! any release. The `.proto` files in this package are the source; nothing generated is kept in the
//! repository, and no protoc is needed.

pub mod backoff;
pub mod check;
pub mod convert;
pub mod limits;
pub mod peer;
pub mod status;

pub use backoff::Backoff;
pub use status::{ApiError, ErrorKind};

/// The public API, package `vmemkv.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rustdoc::all,
    clippy::all,
    clippy::pedantic,
    clippy::unwrap_used
)]
pub mod v1 {
    tonic::include_proto!("vmemkv.v1");
}

/// What servers and routers say to each other; not for clients.
pub mod internal {
    /// Package `vmemkv.internal.v1`.
    #[allow(
        missing_docs,
        unreachable_pub,
        unused_qualifications,
        rustdoc::all,
        clippy::all,
        clippy::pedantic,
        clippy::unwrap_used
    )]
    pub mod v1 {
        tonic::include_proto!("vmemkv.internal.v1");
    }
}

/// All definitions with their comments as an encoded `FileDescriptorSet`, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptor.bin"));

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn the_descriptors_hold_every_service() {
        let set = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTOR_SET).unwrap();
        let mut names = Vec::new();
        for file in &set.file {
            for service in &file.service {
                names.push(format!("{}.{}", file.package(), service.name()));
            }
        }
        for name in [
            v1::kv_server::SERVICE_NAME,
            v1::router_server::SERVICE_NAME,
            v1::admin_server::SERVICE_NAME,
            v1::node_admin_server::SERVICE_NAME,
            internal::v1::control_server::SERVICE_NAME,
            internal::v1::node_server::SERVICE_NAME,
            internal::v1::raft_server::SERVICE_NAME,
        ] {
            assert!(names.iter().any(|found| found == name), "{name}");
        }
    }

    /// What `HeartbeatResponse.shards` says of how many shards a node may have.
    #[test]
    fn the_shards_of_a_node_fit_into_a_message() {
        for (shards, key_bytes) in [(100_000, 30), (2_000, limits::MAX_KEY_BYTES)] {
            let shard = v1::Shard {
                shard_id: u64::MAX,
                start: vec![7; key_bytes].into(),
                end: vec![8; key_bytes].into(),
                epoch: 1 << 20,
                node_id: u64::MAX,
                address: "server-0.server.namespace.svc:7410".to_owned(),
            };
            let assigned = internal::v1::AssignedShard { shard: Some(shard), born: true };
            let answer = internal::v1::HeartbeatResponse {
                shards: vec![assigned; shards],
                ..Default::default()
            };
            let bytes = answer.encoded_len();
            assert!(bytes < limits::MAX_MESSAGE_BYTES, "{shards} shards: {bytes} bytes");
            assert!(key_bytes > 30 || bytes < 140 * shards, "{shards} shards: {bytes} bytes");
        }
    }
}
