//! What the fake cluster knows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tonic::Status;
use vmemkv_proto::v1::routing_error::Kind;
use vmemkv_proto::{ApiError, v1};

/// What a server does instead of answering well.
pub enum Fault {
    /// Does nothing and answers this.
    Refuse(Status),
    /// Does it and answers this.
    ApplyThen(Status),
    /// Never answers.
    Hang,
    /// Answers this batch result for every operation of the next frame.
    FailAll(ApiError),
}

pub struct State {
    pub data: BTreeMap<Vec<u8>, Bytes>,
    pub shards: Vec<v1::Shard>,
    pub version: u64,
    pub addresses: BTreeMap<u64, String>,
    pub faults: HashMap<&'static str, VecDeque<Fault>>,
    pub calls: HashMap<&'static str, usize>,
    /// The key of each operation that was applied, in order.
    pub applied: Vec<Bytes>,
    /// The grpc-timeout of the last call.
    pub timeout: Option<String>,
    /// Every so many answers of scans the map changes; 0: never.
    pub churn: u64,
    pub answers: u64,
    /// Redirects name no shards.
    pub mute: bool,
    /// Entries per answer of a scan.
    pub chunk: usize,
    pub versions: watch::Sender<u64>,
    next_shard: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            data: BTreeMap::new(),
            shards: Vec::new(),
            version: 1,
            addresses: BTreeMap::new(),
            faults: HashMap::new(),
            calls: HashMap::new(),
            applied: Vec::new(),
            timeout: None,
            churn: 0,
            answers: 0,
            mute: false,
            chunk: 3,
            versions: watch::Sender::new(1),
            next_shard: 1,
        }
    }
}

impl State {
    pub fn first_shard(&mut self) {
        let address = self.addresses[&1].clone();
        let shard = v1::Shard { shard_id: 1, epoch: 1, node_id: 1, address, ..Default::default() };
        self.shards = vec![shard];
    }

    pub fn shard(&self, key: &[u8]) -> usize {
        self.shards.iter().position(|shard| shard.contains(key)).unwrap()
    }

    pub fn split(&mut self, key: &[u8]) {
        let at = self.shard(key);
        if self.shards[at].start == key || key.is_empty() {
            return;
        }
        let mut left = self.shards[at].clone();
        left.epoch += 1;
        let mut right = left.clone();
        (left.shard_id, right.shard_id) = (self.next_shard + 1, self.next_shard + 2);
        self.next_shard += 2;
        left.end = Bytes::copy_from_slice(key);
        right.start = left.end.clone();
        self.shards.splice(at..=at, [left, right]);
        self.changed();
    }

    pub fn merge(&mut self, key: &[u8]) {
        let at = self.shard(key);
        if at + 1 >= self.shards.len() {
            return;
        }
        let (mut left, right) = (self.shards[at].clone(), self.shards[at + 1].clone());
        self.next_shard += 1;
        left.shard_id = self.next_shard;
        left.end = right.end;
        left.epoch = left.epoch.max(right.epoch) + 1;
        self.shards.splice(at..=at + 1, [left]);
        self.changed();
    }

    pub fn move_shard(&mut self, key: &[u8], node: u64) {
        let at = self.shard(key);
        let address = self.addresses[&node].clone();
        let shard = &mut self.shards[at];
        (shard.node_id, shard.address) = (node, address);
        shard.epoch += 1;
        self.changed();
    }

    pub fn move_node(&mut self, node: u64, address: String) {
        for shard in self.shards.iter_mut().filter(|shard| shard.node_id == node) {
            shard.address.clone_from(&address);
        }
        self.addresses.insert(node, address);
        self.changed();
    }

    fn changed(&mut self) {
        self.version += 1;
        self.versions.send_replace(self.version);
    }

    /// Another answer of a scan: from time to time the map changes.
    pub fn stir(&mut self) {
        self.answers += 1;
        if self.churn == 0 || !self.answers.is_multiple_of(self.churn) {
            return;
        }
        // No generator: a walk that meets every key, and repeats.
        let turn = (self.answers / self.churn).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = usize::try_from(turn >> 40).unwrap() % self.data.len().max(1);
        let Some(key) = self.data.keys().nth(at).cloned() else { return };
        let nodes = self.addresses.len() as u64;
        match (turn >> 32) % 3 {
            0 if self.shards.len() > 6 => self.merge(&key),
            0 | 1 => self.split(&key),
            _ => self.move_shard(&key, (turn >> 16) % nodes + 1),
        }
    }

    pub fn count(&mut self, method: &'static str) -> Option<Fault> {
        *self.calls.entry(method).or_default() += 1;
        self.faults.get_mut(method)?.pop_front()
    }

    /// What a server says about a request for a range that begins at `key`.
    pub fn admit(
        &self,
        node: u64,
        key: &[u8],
        end: Option<&[u8]>,
        hint: Option<&v1::RouteHint>,
    ) -> Result<(), ApiError> {
        let shard = &self.shards[self.shard(key)];
        let within = match end {
            None => true,
            Some(end) => shard.end.is_empty() || (!end.is_empty() && end <= shard.end.as_ref()),
        };
        let hint = hint.filter(|hint| hint.is_set());
        let kind = if hint.is_some_and(|hint| hint.node_id != node) {
            Kind::WrongNode
        } else if shard.node_id != node
            || !within
            || hint.is_some_and(|hint| hint.shard_id != shard.shard_id)
        {
            Kind::WrongShard
        } else if hint.is_some_and(|hint| hint.epoch != shard.epoch) {
            Kind::StaleEpoch
        } else {
            return Ok(());
        };
        let from = self.shard(key).saturating_sub(1);
        let shards = self.shards[from..].iter().take(3).cloned().collect();
        let shards = if self.mute { Vec::new() } else { shards };
        let routing = v1::RoutingError { kind: kind as i32, map_version: self.version, shards };
        Err(ApiError::misrouted("not here", routing))
    }
}

/// How long a hanging server hangs.
pub const FOR_EVER: Duration = Duration::from_secs(3600);
