//! The fake router: Locate, and the watch of the map.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{BoxStream, StreamExt as _, pending, unfold};
use parking_lot::Mutex;
use tonic::{Request, Response, Status};
use vmemkv_proto::v1;
use vmemkv_proto::v1::watch_shard_map_response::Kind;

use super::State;

pub struct FakeRouter {
    pub state: Arc<Mutex<State>>,
    pub locates: Arc<AtomicUsize>,
    pub watched: bool,
}

fn full(state: &State) -> v1::WatchShardMapResponse {
    v1::WatchShardMapResponse {
        kind: Kind::Full as i32,
        map_version: state.version,
        shards: state.shards.clone(),
        done: true,
        cluster_id: 7,
        ..Default::default()
    }
}

#[tonic::async_trait]
impl v1::router_server::Router for FakeRouter {
    type GetShardMapStream = BoxStream<'static, Result<v1::GetShardMapResponse, Status>>;
    type WatchShardMapStream = BoxStream<'static, Result<v1::WatchShardMapResponse, Status>>;

    async fn get_shard_map(
        &self,
        _: Request<v1::GetShardMapRequest>,
    ) -> Result<Response<Self::GetShardMapStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn watch_shard_map(
        &self,
        _: Request<v1::WatchShardMapRequest>,
    ) -> Result<Response<Self::WatchShardMapStream>, Status> {
        if !self.watched {
            return Ok(Response::new(pending().boxed()));
        }
        let state = Arc::clone(&self.state);
        let mut versions = state.lock().versions.subscribe();
        versions.mark_changed();
        let updates = unfold((state, versions), |(state, mut versions)| async move {
            versions.changed().await.ok()?;
            let update = full(&state.lock());
            Some((Ok(update), (state, versions)))
        });
        Ok(Response::new(updates.boxed()))
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        self.locates.fetch_add(1, Ordering::SeqCst);
        // Long enough for others to join.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let state = self.state.lock();
        let shard = state.shards[state.shard(&request.get_ref().key)].clone();
        Ok(Response::new(v1::LocateResponse { shard: Some(shard), map_version: state.version }))
    }
}
