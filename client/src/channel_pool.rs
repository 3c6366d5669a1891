//! [`ChannelPool`]: connections to nodes, by address.
//!
//! Owns the connections. Invariants: an address is resolved anew for every new connection; a
//! connection that failed is not handed out again; who waits for a connection that cannot be made
//! learns so together with the others; nodes that nobody has asked for lately are forgotten.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use vmemkv_proto::ErrorKind;

use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::{Error, Result};

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// What one answer that nobody reads may hold.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
/// Room for a thousand such answers, so that they do not stall the others on their connection.
const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
/// A node that was not asked for this long is forgotten.
const IDLE: Duration = Duration::from_secs(600);

/// Connections to nodes; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct ChannelPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    connections_per_node: usize,
    user_agent: String,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
}

#[derive(Debug)]
struct Node {
    address: String,
    slots: Vec<Slot>,
    next: AtomicUsize,
    last_used: Mutex<Instant>,
}

/// A place for one connection.
#[derive(Debug, Default)]
struct Slot {
    state: Mutex<SlotState>,
    /// Held while a connection is made.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct SlotState {
    channel: Option<Channel>,
    /// Counts connections made and attempts that failed.
    generation: u64,
    /// Why the last attempt failed.
    failure: Option<Error>,
}

/// A connection that was handed out.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    node: Arc<Node>,
    slot: usize,
    generation: u64,
    channel: Channel,
}

impl ChannelPool {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            shared: Arc::new(Shared {
                connections_per_node: config.connections_per_node.max(1),
                user_agent: config.user_agent.clone(),
                nodes: Mutex::default(),
            }),
        }
    }

    /// A connection to an address, made if need be. An error means that nothing was sent.
    pub(crate) async fn get(&self, address: &str, deadline: Deadline) -> Result<Connection> {
        let node = self.node(address);
        let index = node.next.fetch_add(1, Ordering::Relaxed) % node.slots.len();
        let slot = &node.slots[index];
        let seen = match slot.current() {
            Ok((channel, generation)) => {
                return Ok(Connection {
                    node: Arc::clone(&node),
                    slot: index,
                    generation,
                    channel,
                });
            }
            Err(generation) => generation,
        };
        let connected = deadline.read("connect", self.connect(&node, slot, seen)).await;
        let (channel, generation) = connected.map_err(|error| error.context(address))?;
        Ok(Connection { node: Arc::clone(&node), slot: index, generation, channel })
    }

    fn node(&self, address: &str) -> Arc<Node> {
        let now = Instant::now();
        let mut nodes = self.shared.nodes.lock();
        if let Some(node) = nodes.get(address) {
            *node.last_used.lock() = now;
            return Arc::clone(node);
        }
        nodes.retain(|_, node| now.duration_since(*node.last_used.lock()) < IDLE);
        let node = Arc::new(Node {
            address: address.to_owned(),
            slots: (0..self.shared.connections_per_node).map(|_| Slot::default()).collect(),
            next: AtomicUsize::new(0),
            last_used: Mutex::new(now),
        });
        nodes.insert(address.to_owned(), Arc::clone(&node));
        node
    }

    /// Makes a connection, or waits for the one who does; `seen` is the generation that had none.
    async fn connect(&self, node: &Node, slot: &Slot, seen: u64) -> Result<(Channel, u64)> {
        let _alone = slot.connecting.lock().await;
        {
            let state = slot.state.lock();
            match (&state.channel, &state.failure) {
                (Some(channel), _) => return Ok((channel.clone(), state.generation)),
                // Somebody has tried since.
                (None, Some(failure)) if state.generation > seen => return Err(failure.clone()),
                _ => {}
            }
        }
        let made = self.dial(&node.address).await;
        let mut state = slot.state.lock();
        state.generation += 1;
        match made {
            Ok(channel) => {
                state.channel = Some(channel.clone());
                state.failure = None;
                Ok((channel, state.generation))
            }
            Err(error) => {
                state.failure = Some(error.clone());
                Err(error)
            }
        }
    }

    async fn dial(&self, address: &str) -> Result<Channel> {
        let bad = |error: tonic::transport::Error| {
            Error::refused(ErrorKind::InvalidArgument, format!("address: {}", chain(&error)))
        };
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .and_then(|endpoint| endpoint.user_agent(self.shared.user_agent.clone()))
            .map_err(bad)?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        // The connect timeout covers the connection alone, not what may hang before it.
        match tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(error)) => {
                let message = format!("cannot connect: {}", chain(&error));
                Err(Error::refused(ErrorKind::Unavailable, message))
            }
            Err(_) => Err(Error::refused(ErrorKind::Unavailable, "cannot connect: no answer")),
        }
    }
}

impl Slot {
    /// The connection, or the generation that has none.
    fn current(&self) -> Result<(Channel, u64), u64> {
        let state = self.state.lock();
        state.channel.clone().map(|channel| (channel, state.generation)).ok_or(state.generation)
    }
}

impl Connection {
    /// The channel, for generated clients.
    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// It has failed: nobody gets it any more.
    pub(crate) fn broken(&self) {
        let mut state = self.node.slots[self.slot].state.lock();
        if state.generation == self.generation {
            state.channel = None;
            state.failure = None;
        }
    }
}

/// An error with all its causes; the transport's own text says little.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.ends_with(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
