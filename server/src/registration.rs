//! Joining a cluster and staying in it: registration, leases by heartbeat, assigned shards.
//!
//! Invariants: nothing is served before a router has answered this start of the server; cluster,
//! generation and map version are stored before what they stand for is served; a router of another
//! cluster, of an older generation or with an older map is not listened to; a shard is made empty
//! only while the map says `born`, and served only once the routers know that it is here. A map that
//! cannot be stored gives nothing and takes away what it does not give; the lease goes on.

mod assign;
pub(crate) mod candidates;
mod loads;
mod nonce;
mod routers;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tonic::Code;
use vmemkv_engine::Identity;
use vmemkv_failpoint::reach;
use vmemkv_proto::Backoff;
use vmemkv_proto::internal::v1::{
    AssignedShard, ConfirmShardsRequest, ConfirmedShard, HeartbeatRequest, RegisterRequest,
    RegisterResponse,
};

use self::loads::Loads;
use self::nonce::NonceChain;
use self::routers::{Failure, Routers};
use crate::disk_usage;
use crate::io_pool::Class;
use crate::node::Node;
use crate::server::Registration;
use crate::service::node_admin::state_name;

/// Bounds of the interval that a router may ask for.
const HEARTBEAT_MS: std::ops::RangeInclusive<u64> = 10..=60_000;

/// The wait after a first failure.
const FIRST_WAIT: Duration = Duration::from_millis(50);

/// Registers and stays registered until it is dropped.
pub(crate) async fn run(node: Arc<Node>) {
    let mut member = Member { routers: Routers::new(&node.config.routers), node };
    let mut backoff = Backoff::new(FIRST_WAIT);
    loop {
        match member.register().await {
            Ok(session) => {
                backoff.reset();
                let failure = member.stay(session).await;
                tracing::warn!(%failure, "registering again");
                member.tell_waiting(&failure);
            }
            Err(failure) => {
                tracing::warn!(%failure, "registration failed");
                member.tell_waiting(&failure);
            }
        }
        tokio::time::sleep(backoff.next(rand::random())).await;
    }
}

/// One run of this server, as a router knows it.
struct Session {
    incarnation: u64,
    heartbeat: Duration,
    identity: Identity,
    /// Every operation with a smaller id has ended, and is forgotten here.
    ended_below: u64,
    /// The newest version of the map that could not be stored or applied at first, and was told of.
    not_taken: u64,
}

struct Member {
    node: Arc<Node>,
    routers: Routers,
}

impl Member {
    fn tell_waiting(&self, failure: &Failure) {
        let reason = failure.to_string();
        self.node.registration.send_replace(match failure {
            Failure::Refused(_) => Registration::Refused { reason },
            Failure::Unreachable(_) => Registration::Waiting { reason },
        });
    }

    /// Registers with any router.
    async fn register(&mut self) -> Result<Session, Failure> {
        let node = Arc::clone(&self.node);
        let (request, chain) = self.on_disk(prepare).await?;
        let mut last = Failure::Unreachable("no router answered".to_owned());
        for previous_nonce in chain.candidates() {
            let request = RegisterRequest { previous_nonce, ..request.clone() };
            let sent = node.ownership.now();
            match self
                .routers
                .call(|mut router| {
                    let request = request.clone();
                    async move { router.register(request).await }
                })
                .await
            {
                Ok(answer) => return self.accept(answer, sent, chain).await,
                // The router knows this server from another start: perhaps one whose answer was
                // lost. What it says about the newest nonce is worth telling.
                Err(failure @ Failure::Refused(_)) => {
                    if !matches!(last, Failure::Refused(_)) {
                        last = failure;
                    }
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(last)
    }

    /// Stores what the router said, then serves.
    async fn accept(
        &mut self,
        answer: RegisterResponse,
        sent: Duration,
        chain: NonceChain,
    ) -> Result<Session, Failure> {
        let before = self.node.engine().map_err(Failure::here)?.identity();
        check_cluster(&before, &answer)?;
        let identity = Identity {
            cluster_id: answer.cluster_id,
            generation: answer.generation,
            map_version: answer.map_version,
            ..before
        };
        self.on_disk(move |node| {
            let engine = node.engine().map_err(Failure::here)?;
            engine.set_identity(identity).map_err(|error| Failure::disk(&error))?;
            chain.confirmed().store(node.data_dir()).map_err(|error| Failure::disk(&error))
        })
        .await?;
        let (shards, version) = (answer.shards, answer.map_version);
        let ended_below = answer.operations_ended_below;
        self.on_disk(move |node| {
            assign::apply(node, shards, version)?;
            node.orders.ended_below(&*node.engine().map_err(Failure::here)?, ended_below);
            Ok(())
        })
        .await?;
        self.node.orders.registered(answer.incarnation);
        self.node.ownership.renew(sent, answer.lease_ms);
        let cluster_id = answer.cluster_id;
        tracing::info!(cluster_id, node_id = identity.node_id, "registered");
        self.node.registration.send_replace(Registration::Registered { cluster_id });
        let heartbeat_ms = answer.heartbeat_ms.clamp(*HEARTBEAT_MS.start(), *HEARTBEAT_MS.end());
        let heartbeat = Duration::from_millis(heartbeat_ms);
        let incarnation = answer.incarnation;
        Ok(Session { incarnation, heartbeat, identity, ended_below, not_taken: 0 })
    }

    /// Confirms shards and sends heartbeats until a router says that this run is not known.
    async fn stay(&mut self, mut session: Session) -> Failure {
        let mut loads = Loads::default();
        let mut backoff = Backoff::new(FIRST_WAIT);
        loop {
            let beat = match self.confirm(&session).await {
                Ok(()) => self.heartbeat(&mut session, &mut loads).await,
                Err(failure) => Err(failure),
            };
            match beat {
                Ok(()) => {
                    backoff.reset();
                    tokio::select! {
                        () = tokio::time::sleep(session.heartbeat) => {}
                        () = self.node.orders.news() => {}
                    }
                }
                Err(failure @ Failure::Refused(_)) => {
                    // Another run of this node may have the lease now: two must not serve.
                    self.node.ownership.end_lease();
                    return failure;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "no router has renewed the lease");
                    // Everything is sent again: the router may be another one.
                    loads = Loads::default();
                    tokio::time::sleep(backoff.next(rand::random()).min(session.heartbeat)).await;
                }
            }
        }
    }

    async fn confirm(&mut self, session: &Session) -> Result<(), Failure> {
        let shards = assign::unconfirmed(&self.node.ownership.table());
        if shards.is_empty() {
            return Ok(());
        }
        let request = ConfirmShardsRequest {
            node_id: session.identity.node_id,
            incarnation: session.incarnation,
            shards: shards.iter().map(confirmed_shard).collect(),
        };
        self.routers
            .call(|mut router| {
                let request = request.clone();
                async move { router.confirm_shards(request).await }
            })
            .await?;
        assign::mark_confirmed(&self.node.ownership, &shards);
        tracing::info!(count = shards.len(), "shards confirmed");
        Ok(())
    }

    async fn heartbeat(&mut self, session: &mut Session, loads: &mut Loads) -> Result<(), Failure> {
        let identity = session.identity;
        let mut next = loads.clone();
        let (request, next) = self
            .on_disk(move |node| {
                let engine = node.engine().map_err(Failure::here)?;
                let stats = engine.stats();
                let disk = disk_usage::measure(&stats);
                let changed = next.changed(&node.ownership.table(), &engine.shards());
                let request = HeartbeatRequest {
                    node_id: identity.node_id,
                    incarnation: 0,
                    cluster_id: identity.cluster_id,
                    generation: identity.generation,
                    loads: changed,
                    map_version: node.ownership.table().map_version(),
                    disk_used_bytes: disk.used_bytes,
                    capacity_bytes: disk.capacity_bytes,
                    engine_state: state_name(&stats.state).to_owned(),
                    split_candidates: node
                        .split_candidates
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .clone(),
                };
                Ok((request, next))
            })
            .await?;
        let request = HeartbeatRequest { incarnation: session.incarnation, ..request };
        let sent = self.node.ownership.now();
        let answer = self
            .routers
            .call(|mut router| {
                let request = request.clone();
                async move { router.heartbeat(request).await }
            })
            .await?;
        *loads = next;
        if answer.shards_included && answer.map_version > request.map_version {
            let identity =
                Identity { map_version: identity.map_version.max(answer.map_version), ..identity };
            let (shards, version) = (answer.shards, answer.map_version);
            let applied = self
                .on_disk(move |node| {
                    let applied = take_map(node, identity, shards.clone(), version);
                    if applied.is_err() {
                        assign::withdraw(node, &shards);
                    }
                    Ok(applied)
                })
                .await?;
            match applied {
                Ok(()) => session.identity = identity,
                // No reason to lose the lease: a read-only server reads on. The table keeps its
                // version, so the next heartbeat brings the map again.
                Err(failure) if session.not_taken < version => {
                    tracing::warn!(%failure, version, "a new map could not be taken; trying again");
                    session.not_taken = version;
                }
                Err(failure) => tracing::debug!(%failure, version, "the new map is not taken yet"),
            }
        }
        if answer.operations_ended_below > session.ended_below {
            let ended_below = answer.operations_ended_below;
            self.on_disk(move |node| {
                node.orders.ended_below(&*node.engine().map_err(Failure::here)?, ended_below);
                Ok(())
            })
            .await?;
            session.ended_below = ended_below;
        }
        self.node.ownership.renew(sent, answer.lease_ms);
        Ok(())
    }

    async fn on_disk<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Node) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let node = Arc::clone(&self.node);
        self.node.pool.run(Class::Control, move || work(&node)).await.map_err(Failure::here)?
    }
}

/// Stores the version of a newer map, then serves what it gives.
fn take_map(
    node: &Node,
    identity: Identity,
    shards: Vec<AssignedShard>,
    version: u64,
) -> Result<(), Failure> {
    let engine = node.engine().map_err(Failure::here)?;
    // For tests: a map that comes while there are halves that none has named.
    let halves = node.ownership.table().shards().iter().any(|owned| !owned.halves.is_empty());
    let reach_if = |name| {
        if halves {
            reach(name);
        }
    };
    reach_if("split.map");
    engine.set_identity(identity).map_err(|error| Failure::disk(&error))?;
    reach_if("split.map.stored");
    assign::apply(node, shards, version)?;
    reach_if("split.map.served");
    Ok(())
}

/// The request of this start, and the nonces that a router may know.
fn prepare(node: &Node) -> Result<(RegisterRequest, NonceChain), Failure> {
    let engine = node.engine().map_err(Failure::here)?;
    let identity = engine.identity();
    let chain = NonceChain::of_start(node.data_dir(), identity.boot)
        .map_err(|error| Failure::disk(&error))?;
    let disk = disk_usage::measure(&engine.stats());
    let request = RegisterRequest {
        node_id: identity.node_id,
        cluster_id: identity.cluster_id,
        generation: identity.generation,
        boot_number: identity.boot,
        nonce: chain.nonce(),
        previous_nonce: 0,
        address: node.address.clone(),
        http_address: node.http_address.clone(),
        labels: node.config.labels.clone().into_iter().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        map_version: identity.map_version,
        instances: engine.shards().iter().map(assign::instance).collect(),
        capacity_bytes: disk.capacity_bytes,
    };
    Ok((request, chain))
}

fn check_cluster(stored: &Identity, answer: &RegisterResponse) -> Result<(), Failure> {
    if answer.cluster_id == 0 {
        return Err(Failure::Unreachable("the router has no cluster yet".to_owned()));
    }
    if stored.cluster_id != 0 && stored.cluster_id != answer.cluster_id {
        return Err(Failure::Refused(format!(
            "the data directory belongs to cluster {}, the router to cluster {}; point `routers` \
             at the right cluster or use an empty data directory",
            stored.cluster_id, answer.cluster_id
        )));
    }
    if answer.generation < stored.generation {
        return Err(Failure::Refused(format!(
            "the router is of generation {}, older than {} of the data directory",
            answer.generation, stored.generation
        )));
    }
    // A new generation may have gone back to an older map; within one a router only lags.
    if answer.generation == stored.generation && answer.map_version < stored.map_version {
        return Err(Failure::Unreachable(format!(
            "the router's map is of version {}, older than {} which this server has applied",
            answer.map_version, stored.map_version
        )));
    }
    Ok(())
}

fn confirmed_shard((shard_id, epoch): &(u64, u64)) -> ConfirmedShard {
    ConfirmedShard { shard_id: *shard_id, epoch: *epoch }
}

/// Whether a router's answer means that trying again in the same way is of no use.
fn is_refusal(code: Code) -> bool {
    matches!(code, Code::FailedPrecondition | Code::InvalidArgument | Code::PermissionDenied)
}
