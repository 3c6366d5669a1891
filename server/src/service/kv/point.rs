//! Get, Put and Delete: one key each.

use std::sync::Arc;

use bytes::Bytes;
use vmemkv_proto::check::check_key;
use vmemkv_proto::convert::{Delete, Put, Write};
use vmemkv_proto::{ApiError, v1};

use super::read::{self, Now};
use super::{refuse_request_id, refuse_ttl, write};
use crate::node::Node;

/// Reads one key.
pub(super) async fn get(
    node: &Arc<Node>,
    request: v1::GetRequest,
) -> Result<v1::GetResponse, ApiError> {
    check_key("key", &request.key)?;
    let admission = node.ownership.admit_key(&request.key, request.route.as_ref())?;
    let engine = node.engine()?;
    let value = match read::read_now(node, &engine, &request.key)? {
        Now::Ready(value) => value,
        Now::Later => read::read(node, &engine, &request.key).await?,
    };
    drop(admission);
    node.ownership.require_lease()?;
    Ok(v1::GetResponse { value })
}

/// Writes one key.
pub(super) async fn put(
    node: &Arc<Node>,
    request: v1::PutRequest,
) -> Result<v1::PutResponse, ApiError> {
    refuse_request_id(request.request_id.as_ref())?;
    refuse_ttl(request.ttl_ms)?;
    let route = request.route;
    let put = Put::try_from(request)?;
    let admission = node.ownership.admit_key(&put.key, route.as_ref())?;
    let written = write::write(node, Write::Put(put), admission).await?;
    Ok(v1::PutResponse {
        applied: written.applied,
        current: written.current.filter(|_| !written.applied).map(Bytes::from),
    })
}

/// Removes one key.
pub(super) async fn delete(
    node: &Arc<Node>,
    request: v1::DeleteRequest,
) -> Result<v1::DeleteResponse, ApiError> {
    refuse_request_id(request.request_id.as_ref())?;
    let route = request.route;
    let delete = Delete::try_from(request)?;
    let admission = node.ownership.admit_key(&delete.key, route.as_ref())?;
    let written = write::write(node, Write::Delete(delete), admission).await?;
    Ok(v1::DeleteResponse {
        applied: written.applied,
        existed: written.applied && written.existed,
        current: written.current.filter(|_| !written.applied).map(Bytes::from),
    })
}
