//! [`RemoteRouters`]: the routers of the cluster as a client reaches them.

use tonic::transport::Channel;
use vmemkv_proto::{ErrorKind, v1};

use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct RemoteRouters {}

fn later() -> Error {
    Error::refused(ErrorKind::Unimplemented, "not built yet")
}

impl RemoteRouters {
    pub(crate) fn new(_config: &Config) -> Result<Self> {
        Ok(Self {})
    }
    pub(crate) async fn channel(&self, _deadline: Deadline) -> Result<Channel> {
        Err(later())
    }
    pub(crate) async fn info(&self, _deadline: Deadline) -> Result<v1::GetInfoResponse> {
        Err(later())
    }
    pub(crate) async fn cluster_status(
        &self,
        _deadline: Deadline,
    ) -> Result<v1::GetClusterStatusResponse> {
        Err(later())
    }
}
