//! The shard map for clients that route by themselves.
//!
//! Invariants: a full copy is of one version; a message holds about 1 MiB at most; a watcher that is
//! slow holds a few messages and a list of shards, and no lock; a delta starts at the version that
//! the watcher has, or the watcher gets a full copy.

use std::time::Duration;

use futures::stream::{self, BoxStream, StreamExt as _};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use vmemkv_proto::check::check_bound;
use vmemkv_proto::convert::KeyRange;
use vmemkv_proto::v1::router_server::Router;
use vmemkv_proto::v1::watch_shard_map_response::Kind;
use vmemkv_proto::{ApiError, v1};

use crate::local_state::{Changes, LocalState, MapSlice, chunks};
use crate::map_view::MapView;

/// How long a call waits for the other routers.
const PATIENCE: Duration = Duration::from_secs(5);
/// Messages that wait for a slow watcher.
const QUEUE: usize = 4;
/// When to try again if there is no map.
const RETRY_AFTER_MS: u64 = 200;

/// The service.
pub(crate) struct RouterService {
    state: LocalState,
    map: MapView,
    stopping: watch::Receiver<bool>,
}

impl RouterService {
    pub(crate) fn new(state: LocalState, map: MapView, stopping: watch::Receiver<bool>) -> Self {
        Self { state, map, stopping }
    }
}

#[tonic::async_trait]
impl Router for RouterService {
    type GetShardMapStream = BoxStream<'static, Result<v1::GetShardMapResponse, Status>>;
    type WatchShardMapStream = BoxStream<'static, Result<v1::WatchShardMapResponse, Status>>;

    async fn get_shard_map(
        &self,
        request: Request<v1::GetShardMapRequest>,
    ) -> Result<Response<Self::GetShardMapStream>, Status> {
        let request = request.into_inner();
        let keys = KeyRange::checked(request.start, request.end)?;
        let slice = self.state.slice(&keys);
        if slice.map_is_empty {
            return Err(no_map().into());
        }
        let map_version = slice.map_version;
        let parts = slice
            .into_chunks()
            .map(move |(shards, done)| Ok(v1::GetShardMapResponse { map_version, shards, done }));
        Ok(Response::new(stream::iter(parts).boxed()))
    }

    async fn watch_shard_map(
        &self,
        request: Request<v1::WatchShardMapRequest>,
    ) -> Result<Response<Self::WatchShardMapStream>, Status> {
        let request = request.into_inner();
        let (sender, receiver) = mpsc::channel(QUEUE);
        let cluster_id = self.map.cluster_id();
        let same = request.cluster_id == 0 || request.cluster_id == cluster_id;
        let watcher = Watcher {
            state: self.state.clone(),
            cluster_id,
            version: if same { request.from_version } else { 0 },
            sender,
        };
        tokio::spawn(watcher.run(self.stopping.clone()));
        Ok(Response::new(ReceiverStream::new(receiver).boxed()))
    }

    async fn locate(
        &self,
        request: Request<v1::LocateRequest>,
    ) -> Result<Response<v1::LocateResponse>, Status> {
        let request = request.into_inner();
        check_bound("key", &request.key)?;
        if request.min_version > self.map.version() {
            self.map.at_least(request.min_version, PATIENCE).await?;
        }
        let (shard, map_version) = self.map.locate(&request.key).ok_or_else(no_map)?;
        Ok(Response::new(v1::LocateResponse { shard: Some(shard), map_version }))
    }
}

fn no_map() -> ApiError {
    ApiError::unavailable("no server has registered yet: there is no shard map", RETRY_AFTER_MS)
}

/// One stream of changes.
struct Watcher {
    state: LocalState,
    cluster_id: u64,
    /// The version that the receiver has; 0: none.
    version: u64,
    sender: mpsc::Sender<Result<v1::WatchShardMapResponse, Status>>,
}

/// The receiver has gone.
struct Gone;

impl Watcher {
    async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        let sender = self.sender.clone();
        tokio::select! {
            _ = stopping.wait_for(|stops| *stops) => {
                let error = ApiError::unavailable("this router stops", RETRY_AFTER_MS);
                // A full queue says the same by its end.
                drop(sender.try_send(Err(error.into())));
            }
            () = sender.closed() => {}
            Err(Gone) = self.follow() => {}
        }
    }

    async fn follow(&mut self) -> Result<(), Gone> {
        let mut versions = self.state.subscribe();
        loop {
            versions.borrow_and_update();
            self.catch_up().await?;
            versions.changed().await.map_err(|_| Gone)?;
        }
    }

    async fn catch_up(&mut self) -> Result<(), Gone> {
        let changes = if self.version == 0 { Changes::Forgotten } else { self.since() };
        match changes {
            Changes::Forgotten => {
                let slice = self.state.slice(&KeyRange::all());
                self.send_full(slice).await
            }
            Changes::Shards { map_version, shards, .. } if map_version > self.version => {
                self.send_delta(map_version, shards).await
            }
            Changes::Shards { .. } => Ok(()),
        }
    }

    fn since(&self) -> Changes {
        self.state.since(self.version)
    }

    async fn send_full(&mut self, slice: MapSlice) -> Result<(), Gone> {
        let map_version = slice.map_version;
        for (shards, done) in slice.into_chunks() {
            self.send(Kind::Full, 0, map_version, shards, done).await?;
        }
        self.version = map_version;
        Ok(())
    }

    /// A large delta comes in parts; only the last one raises the receiver's version.
    async fn send_delta(&mut self, to: u64, shards: Vec<v1::Shard>) -> Result<(), Gone> {
        let from = self.version;
        for (shards, last) in chunks(shards.into_iter()) {
            self.send(Kind::Delta, from, if last { to } else { from }, shards, true).await?;
        }
        self.version = to;
        Ok(())
    }

    async fn send(
        &self,
        kind: Kind,
        from_version: u64,
        map_version: u64,
        shards: Vec<v1::Shard>,
        done: bool,
    ) -> Result<(), Gone> {
        let cluster_id = self.cluster_id;
        let kind = kind as i32;
        let message =
            v1::WatchShardMapResponse { kind, map_version, from_version, shards, done, cluster_id };
        self.sender.send(Ok(message)).await.map_err(|_| Gone)
    }
}
