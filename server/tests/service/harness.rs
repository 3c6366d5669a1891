//! A server under test, and clients of it.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use vmemkv_proto::ApiError;
use vmemkv_proto::v1;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_server::{Config, Server};

use crate::fake_router::FakeRouter;

/// A server with a directory and a router of its own.
pub(crate) struct Fixture {
    pub(crate) router: FakeRouter,
    pub(crate) server: Server,
    pub(crate) dir: TempDir,
}

/// The configuration of a small server.
pub(crate) fn config(dir: &Path, router: &FakeRouter) -> Config {
    let mut config = Config {
        listen: "127.0.0.1:0".parse().unwrap(),
        http_listen: "127.0.0.1:0".parse().unwrap(),
        routers: vec![router.address.to_string()],
        data: dir.join("data"),
        grace_ms: 3000,
        io_threads: 4,
        ..Config::default()
    };
    config.engine.wal_segment_bytes = 16 << 20;
    config.engine.value_segment_bytes = 16 << 20;
    config.engine.value_log_max_bytes = 4 << 30;
    config
}

impl Fixture {
    /// A server that owns everything as shard 1, registered.
    pub(crate) async fn start() -> Self {
        Self::with_shards(&[(1, "", "")]).await
    }

    /// A server that owns these shards, registered.
    pub(crate) async fn with_shards(shards: &[(u64, &str, &str)]) -> Self {
        let dir = TempDir::new().unwrap();
        let router = FakeRouter::start(shards).await;
        let server = Server::start(config(dir.path(), &router)).await.unwrap();
        let fixture = Self { router, server, dir };
        ready(&fixture.server).await;
        fixture
    }

    /// A client of its own connection, with the default limits of tonic.
    pub(crate) async fn client(&self) -> KvClient<Channel> {
        KvClient::new(channel(&self.server).await)
    }

    /// The text of `/metrics` for one name, as a number.
    pub(crate) async fn metric(&self, name: &str) -> u64 {
        let text = http(&self.server, "/metrics").await.1;
        let line = text.lines().find(|line| line.starts_with(&format!("{name} ")));
        line.and_then(|line| line.split(' ').nth(1)).map_or(0, |value| value.parse().unwrap())
    }
}

/// Waits until the server serves data.
pub(crate) async fn ready(server: &Server) {
    eventually(async || http(server, "/readyz").await.0 == 200).await;
    // `/readyz` says that there is a lease; a new shard is served once it is confirmed.
    let mut client = KvClient::new(channel(server).await);
    eventually(async || {
        let answer = client.clone().get(get("\u{1}probe")).await;
        !matches!(answer, Err(status) if status.code() == Code::Unavailable)
    })
    .await;
    client.get_info(v1::GetInfoRequest {}).await.unwrap();
}

/// A new connection.
pub(crate) async fn channel(server: &Server) -> Channel {
    let uri = format!("http://{}", server.grpc_addr());
    Endpoint::from_shared(uri).unwrap().tcp_nodelay(true).connect().await.unwrap()
}

/// Waits for a condition, not too long.
pub(crate) async fn eventually(condition: impl AsyncFn() -> bool) {
    for _ in 0..500 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("a condition was not met in 10 s");
}

/// Status and body of a page of the HTTP port.
pub(crate) async fn http(server: &Server, path: &str) -> (u16, String) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(server.http_addr()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let code = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let body = answer.split_once("\r\n\r\n").unwrap().1.to_owned();
    (code, body)
}

pub(crate) fn get(key: &str) -> v1::GetRequest {
    v1::GetRequest { key: Bytes::copy_from_slice(key.as_bytes()), route: None }
}

pub(crate) fn put(key: &str, value: impl Into<Bytes>) -> v1::PutRequest {
    v1::PutRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: value.into(),
        ..v1::PutRequest::default()
    }
}

pub(crate) fn put_operation(key: &str, value: impl Into<Bytes>) -> v1::BatchOperation {
    v1::BatchOperation {
        operation: Some(v1::batch_operation::Operation::Put(v1::PutOperation {
            key: Bytes::copy_from_slice(key.as_bytes()),
            value: value.into(),
            ..v1::PutOperation::default()
        })),
    }
}

/// The value of a key.
pub(crate) async fn value(client: &mut KvClient<Channel>, key: &str) -> Option<Bytes> {
    client.get(get(key)).await.unwrap().into_inner().value
}

/// Writes `count` values of `bytes` each, in frames; keys are `prefix` and five digits.
pub(crate) async fn fill(client: &mut KvClient<Channel>, prefix: &str, count: usize, bytes: usize) {
    let per_frame = ((2 << 20) / (bytes + 64)).clamp(1, 4096);
    let indexes: Vec<usize> = (0..count).collect();
    let mut frames = Vec::new();
    for (id, indexes) in indexes.chunks(per_frame).enumerate() {
        let operation = |index: &usize| {
            put_operation(&format!("{prefix}{index:05}"), vec![*index as u8; bytes])
        };
        frames.push(v1::BatchPutRequest {
            id: id as u64,
            operations: indexes.iter().map(operation).collect(),
            ..v1::BatchPutRequest::default()
        });
    }
    let mut answers = client.batch_put(tokio_stream::iter(frames)).await.unwrap().into_inner();
    let mut applied = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        applied += answer.results.len();
        for result in answer.results {
            assert_eq!(result.result, Some(v1::batch_put_result::Result::Applied(true)));
        }
    }
    assert_eq!(applied, count);
}

/// The error that a call answered.
pub(crate) fn error<T: std::fmt::Debug>(result: Result<T, Status>) -> ApiError {
    ApiError::from(result.unwrap_err())
}

/// From now on the engine cannot store its identity: the next attempt makes it read-only.
pub(crate) fn cannot_store_identity(fixture: &Fixture) {
    let identity = fixture.dir.path().join("data/IDENTITY");
    std::fs::remove_file(&identity).unwrap();
    // No file can be renamed to a directory, not even by root.
    std::fs::create_dir(&identity).unwrap();
}
