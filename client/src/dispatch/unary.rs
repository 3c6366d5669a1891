//! Single calls: one key, or a part of a range that one shard holds.
//!
//! Invariants: an attempt says whom it means (`RouteHint`) and how much time is left; a read whose
//! connection stays silent is tried on another one, a write never is.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};
use vmemkv_proto::v1;
use vmemkv_proto::v1::kv_client::KvClient;

use super::core::Core;
use super::failure::Failure;
use super::plan::Plan;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::limited;
use crate::remote_routers::timed;
use crate::routes::Route;

/// A connection that says nothing for this long is not used for other calls.
const SILENCE: Duration = Duration::from_secs(2);

/// A request that one shard answers with one message.
pub(crate) trait Unary: Clone + Send + Sync {
    type Answer: Send;
    /// For messages.
    const NAME: &'static str;
    /// It may change something.
    const WRITE: bool;
    /// It is answered at once, unless something is wrong.
    const QUICK: bool;
    /// A key of the shard that it is for.
    fn key(&self) -> &Bytes;
    fn set_route(&mut self, route: Option<v1::RouteHint>);
    fn send(
        client: KvClient<Channel>,
        request: Request<Self>,
    ) -> impl Future<Output = Result<Response<Self::Answer>, Status>> + Send;
}

/// Sends a request to whom it belongs. `prepare` fits it to the route of each attempt.
pub(crate) async fn call<U: Unary>(
    core: &Arc<Core>,
    request: U,
    deadline: Deadline,
    prepare: impl Fn(&mut U, &Route) + Send + Sync,
) -> Result<U::Answer> {
    let permit = deadline.bound(core.in_flight.acquire()).await;
    let Some(Ok(_permit)) = permit else { return Err(Deadline::passed(U::NAME)) };
    let mut plan = Plan::new(core, deadline, U::WRITE);
    let key = request.key().clone();
    loop {
        let route = plan.route(&key).await?;
        let mut attempt = request.clone();
        attempt.set_route(route.hint());
        prepare(&mut attempt, &route);
        match once(&plan, &route, attempt).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => plan.after(&key, &route, &failure).await?,
        }
    }
}

async fn once<U: Unary>(plan: &Plan, route: &Route, request: U) -> Result<U::Answer, Failure> {
    let connection = plan.connect(route).await?;
    let deadline = plan.deadline();
    if deadline.has_passed() {
        return Err(Failure::not_sent(Deadline::passed(U::NAME)));
    }
    let client = limited!(KvClient::new(connection.channel()));
    let mut answer = std::pin::pin!(U::send(client, timed(request, deadline)));
    let mut early = None;
    if U::QUICK {
        let silence = deadline.min(Deadline::within(SILENCE));
        early = silence.bound(&mut answer).await;
        if early.is_none() {
            connection.broken();
            if !U::WRITE && !deadline.has_passed() {
                let silent = Status::from_error(format!("{}: no answer", U::NAME).into());
                return Err(Failure::of_status(&silent, false));
            }
        }
    }
    let answered = match early {
        Some(answered) => Some(answered),
        None => deadline.bound(answer).await,
    };
    let failure = match answered {
        Some(Ok(answer)) => return Ok(answer.into_inner()),
        Some(Err(status)) => Failure::of_status(&status, U::WRITE),
        None => Failure::timed_out(U::NAME, U::WRITE),
    };
    if failure.is_broken() {
        connection.broken();
    }
    Err(failure)
}

macro_rules! unary {
    ($request:ident, $answer:ident, $method:ident, $key:ident, write: $write:expr, quick: $quick:expr) => {
        impl Unary for v1::$request {
            type Answer = v1::$answer;
            const NAME: &'static str = stringify!($method);
            const WRITE: bool = $write;
            const QUICK: bool = $quick;
            fn key(&self) -> &Bytes {
                &self.$key
            }
            fn set_route(&mut self, route: Option<v1::RouteHint>) {
                self.route = route;
            }
            async fn send(
                mut client: KvClient<Channel>,
                request: Request<Self>,
            ) -> Result<Response<Self::Answer>, Status> {
                client.$method(request).await
            }
        }
    };
}

unary!(GetRequest, GetResponse, get, key, write: false, quick: true);
unary!(PutRequest, PutResponse, put, key, write: true, quick: true);
unary!(DeleteRequest, DeleteResponse, delete, key, write: true, quick: true);
unary!(IncrementRequest, IncrementResponse, increment, key, write: true, quick: true);
unary!(DeleteRangeRequest, DeleteRangeResponse, delete_range, start, write: true, quick: false);
unary!(ChecksumRequest, ChecksumResponse, checksum, start, write: false, quick: false);
