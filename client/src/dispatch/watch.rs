//! Watch: passed on to the owner of the range's start.

use std::sync::Arc;

use futures::stream::{BoxStream, StreamExt as _};
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1;
use vmemkv_proto::v1::kv_client::KvClient;

use super::core::Core;
use super::failure::Failure;
use super::plan::Plan;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::limited;
use crate::remote_routers::timed;

/// Changes as they come.
pub type WatchEvents = BoxStream<'static, Result<v1::WatchResponse>>;

pub(super) async fn start(
    core: &Arc<Core>,
    mut request: v1::WatchRequest,
    deadline: Deadline,
) -> Result<WatchEvents> {
    KeyRange::checked(request.start.clone(), request.end.clone())?;
    let mut plan = Plan::new(core, deadline, false);
    let key = request.start.clone();
    loop {
        let route = plan.route(&key).await?;
        request.route = route.hint();
        let failure = match plan.connect(&route).await {
            Ok(connection) => {
                let mut client = limited!(KvClient::new(connection.channel()));
                match deadline.bound(client.watch(timed(request.clone(), deadline))).await {
                    Some(Ok(events)) => {
                        let events = events.into_inner().map(|event| {
                            event.map_err(|status| Failure::of_status(&status, false).into_error())
                        });
                        return Ok(events.boxed());
                    }
                    Some(Err(status)) => Failure::of_status(&status, false),
                    None => Failure::timed_out("watch", false),
                }
            }
            Err(failure) => failure,
        };
        plan.after(&key, &route, &failure).await?;
    }
}
