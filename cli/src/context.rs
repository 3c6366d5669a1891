//! What a command works with: the global flags, the output, and ways to the service.
//!
//! Invariants: a service that cannot be reached is said at once, with what to do; every call has a
//! deadline unless it is a job or a stream without `--timeout`.

use std::time::Duration;

use tonic::Request;
use tonic::transport::{Channel, Endpoint};
use vmemkv_client::Client;
use vmemkv_proto::limits::MAX_MESSAGE_BYTES;
use vmemkv_proto::v1::admin_client::AdminClient;
use vmemkv_proto::v1::kv_client::KvClient;
use vmemkv_proto::v1::node_admin_client::NodeAdminClient;

use crate::args::Globals;
use crate::failure::{Failure, Result};
use crate::output::Output;

/// How long a call may take unless `--timeout` says otherwise.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Room around the largest message.
const MAX_TRANSPORT_BYTES: usize = MAX_MESSAGE_BYTES + (1 << 20);

/// What a command works with.
#[derive(Clone, Debug)]
pub struct Context {
    /// The global flags.
    pub globals: Globals,
    /// Where results go.
    pub output: Output,
}

impl Context {
    /// The context of a command with these flags.
    pub fn new(globals: Globals) -> Self {
        let output = Output::new(globals.json);
        Self { globals, output }
    }

    /// How long one call may take.
    pub fn call_timeout(&self) -> Duration {
        self.globals.timeout.unwrap_or(CALL_TIMEOUT)
    }

    /// A client for keys and values by the address given, a router's or a server's. Everything goes
    /// through that address: it may be the only one that can be reached from here.
    pub async fn client(&self) -> Result<Client> {
        self.channel().await?;
        Client::builder()
            .address(&self.globals.addr)
            .deadline(self.call_timeout())
            .user_agent(concat!("vmemkv-cli/", env!("CARGO_PKG_VERSION")))
            .through_proxy()
            .connect()
            .await
            .map_err(client_failure)
    }

    /// A connection to the address given.
    pub async fn channel(&self) -> Result<Channel> {
        self.channel_to(&self.globals.addr).await
    }

    /// A connection to `address`.
    pub async fn channel_to(&self, address: &str) -> Result<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| Failure::usage(format!("{address:?} is not HOST:PORT")))?
            .connect_timeout(CONNECT_TIMEOUT.min(self.call_timeout()))
            .tcp_nodelay(true);
        let unreachable = |reason: String| {
            let hint = "is vmemkv running there? `vmemkv dev` starts it on this machine, --addr names another one";
            Failure::failed(format!("cannot reach {address}: {reason}")).with_hint(hint)
        };
        // A peer that accepts and says nothing must not hold the command.
        match tokio::time::timeout(CONNECT_TIMEOUT.min(self.call_timeout()), endpoint.connect())
            .await
        {
            Ok(connected) => connected.map_err(|error| unreachable(root_cause(&error))),
            Err(_) => Err(unreachable("no answer".to_owned())),
        }
    }

    /// The data service at the address given.
    pub async fn kv(&self) -> Result<KvClient<Channel>> {
        Ok(kv_on(self.channel().await?))
    }

    /// The cluster's administration at the address given.
    pub async fn admin(&self) -> Result<AdminClient<Channel>> {
        let channel = self.channel().await?;
        Ok(AdminClient::new(channel)
            .max_decoding_message_size(MAX_TRANSPORT_BYTES)
            .max_encoding_message_size(MAX_TRANSPORT_BYTES))
    }

    /// A request that has to be answered soon.
    pub fn call<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.call_timeout());
        request
    }

    /// A request that may take its time, unless `--timeout` was given.
    pub fn job<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = self.globals.timeout {
            request.set_timeout(timeout);
        }
        request
    }
}

/// The data service on a connection.
pub fn kv_on(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel)
        .max_decoding_message_size(MAX_TRANSPORT_BYTES)
        .max_encoding_message_size(MAX_TRANSPORT_BYTES)
}

/// The engine's administration on a connection to a server.
pub fn node_admin_on(channel: Channel) -> NodeAdminClient<Channel> {
    NodeAdminClient::new(channel)
        .max_decoding_message_size(MAX_TRANSPORT_BYTES)
        .max_encoding_message_size(MAX_TRANSPORT_BYTES)
}

/// An error of the client, which knows whether a write may have happened.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
pub fn client_failure(error: vmemkv_client::Error) -> Failure {
    let mut api = error.api().clone();
    api.not_applied = !error.is_unknown();
    Failure::from(api)
}

/// The innermost reason, which is the one that helps.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
