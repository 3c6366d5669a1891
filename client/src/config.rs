//! How a client is set up: [`ClientBuilder`] and its settings.
//!
//! Invariants: every setting has a default that suits a service; zero is never taken for unlimited.

use std::time::Duration;

use crate::client::Client;
use crate::error::Result;

/// What a client works with.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) addresses: Vec<String>,
    pub(crate) deadline: Duration,
    pub(crate) max_in_flight: usize,
    pub(crate) connections_per_node: usize,
    pub(crate) user_agent: String,
    pub(crate) routed: bool,
    pub(crate) seed: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            deadline: Duration::from_secs(10),
            max_in_flight: 1024,
            connections_per_node: 2,
            user_agent: format!("vmemkv-client/{}", env!("CARGO_PKG_VERSION")),
            routed: true,
            seed: None,
        }
    }
}

/// Sets up a [`Client`].
///
/// ```no_run
/// # async fn example() -> vmemkv_client::Result<()> {
/// use std::time::Duration;
///
/// let client = vmemkv_client::Client::builder()
///     .address("router-0:7400")
///     .address("router-1:7400")
///     .deadline(Duration::from_secs(2))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct ClientBuilder {
    config: Config,
}

impl ClientBuilder {
    /// Adds a router, `HOST:PORT`; one that answers is enough.
    #[must_use]
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.config.addresses.push(address.into());
        self
    }

    /// Adds several routers.
    #[must_use]
    pub fn addresses(mut self, addresses: impl Addresses) -> Self {
        self.config.addresses.extend(addresses.into_addresses());
        self
    }

    /// How long a call may take, retries included, unless it says otherwise; 10 s if not set. A
    /// scan or batch stream may take longer as a whole: there it bounds each step.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.config.deadline = deadline;
        self
    }

    /// At most this many requests of this client are under way at once, others wait; 1024 if not
    /// set, at least 1.
    #[must_use]
    pub fn max_in_flight(mut self, requests: usize) -> Self {
        self.config.max_in_flight = requests.max(1);
        self
    }

    /// Connections to each node; 2 if not set, at least 1.
    #[must_use]
    pub fn connections_per_node(mut self, connections: usize) -> Self {
        self.config.connections_per_node = connections.max(1);
        self
    }

    /// What this client calls itself in servers' logs.
    #[must_use]
    pub fn user_agent(mut self, name: impl Into<String>) -> Self {
        self.config.user_agent = name.into();
        self
    }

    /// Sends everything through the addresses given, which pass it on, instead of going to the
    /// servers directly: for callers that reach the routers only.
    #[must_use]
    pub fn through_proxy(mut self) -> Self {
        self.config.routed = false;
        self
    }

    /// Seeds what is random (the jitter of retries), so that a test repeats.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.config.seed = Some(seed);
        self
    }

    /// Connects: fails unless one of the addresses answers within the deadline.
    pub async fn connect(self) -> Result<Client> {
        Client::with_config(self.config).await
    }
}

/// Addresses of routers: one `HOST:PORT`, several with commas between them, or a list.
pub trait Addresses {
    /// The addresses.
    fn into_addresses(self) -> Vec<String>;
}

impl Addresses for &str {
    fn into_addresses(self) -> Vec<String> {
        self.split(',').map(str::trim).filter(|part| !part.is_empty()).map(String::from).collect()
    }
}

impl Addresses for String {
    fn into_addresses(self) -> Vec<String> {
        self.as_str().into_addresses()
    }
}

impl Addresses for &String {
    fn into_addresses(self) -> Vec<String> {
        self.as_str().into_addresses()
    }
}

impl<T: AsRef<str>> Addresses for &[T] {
    fn into_addresses(self) -> Vec<String> {
        self.iter().flat_map(|part| part.as_ref().into_addresses()).collect()
    }
}

impl<T: AsRef<str>> Addresses for Vec<T> {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

impl<T: AsRef<str>, const N: usize> Addresses for [T; N] {
    fn into_addresses(self) -> Vec<String> {
        self.as_slice().into_addresses()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_come_in_many_forms() {
        let two = ["a:1".to_owned(), "b:2".to_owned()];
        assert_eq!("a:1, b:2,".into_addresses(), two);
        assert_eq!(["a:1", "b:2"].into_addresses(), two);
        assert_eq!(vec!["a:1,b:2"].into_addresses(), two);
        assert_eq!(two.as_slice().into_addresses(), two);
    }
}
