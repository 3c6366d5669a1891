//! Random commands against the rules. A failure prints its seed; set VMEMKV_SEED to repeat it.

use std::collections::BTreeMap;

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

const RUNS: u64 = 20;
const STEPS: usize = 250;

/// Runs a test with many seeds, or with the one that is asked for.
fn with_seeds(test: impl Fn(&mut StdRng)) {
    let asked = std::env::var("VMEMKV_SEED").ok().and_then(|seed| seed.parse().ok());
    let first: u64 = asked.unwrap_or_else(rand::random);
    let runs = if asked.is_some() { 1 } else { RUNS };
    for run in 0..runs {
        let seed = first.wrapping_add(run);
        println!("VMEMKV_SEED={seed}");
        test(&mut StdRng::seed_from_u64(seed));
    }
}

fn key(rng: &mut StdRng) -> Bytes {
    let length = rng.random_range(1..3);
    (0..length).map(|_| rng.random_range(b'a'..b'f')).collect::<Vec<_>>().into()
}

fn action(rng: &mut StdRng, state: &ClusterState) -> Action {
    let cluster = &state.cluster;
    match rng.random_range(0..20) {
        0 => {
            let mut boundaries: Vec<_> = (0..rng.random_range(0..6)).map(|_| key(rng)).collect();
            if rng.random_bool(0.9) {
                boundaries.sort();
                boundaries.dedup();
            }
            let lease_ms = rng.random_range(0..9);
            Action::CreateCluster { cluster_id: rng.random_range(0..4), lease_ms, boundaries }
        }
        1 => Action::SetLease {
            expected_ms: if rng.random() { cluster.lease_ms } else { 3 },
            lease_ms: rng.random_range(0..9),
        },
        2..6 => Action::RegisterNode(registration(rng, state)),
        6..14 => split_action(rng, state),
        _ => {
            let node_id = rng.random_range(1..5);
            let run = state.nodes.get(node_id).map_or(0, |node| node.incarnation);
            let shards = state.shards.iter().filter(|_| rng.random_bool(0.4));
            let shards: Vec<_> = shards
                .map(|shard| Confirmed { shard_id: shard.shard_id, epoch: shard.epoch })
                .collect();
            let incarnation = run + u64::from(rng.random_bool(0.1));
            Action::ConfirmShards { node_id, incarnation, shards }
        }
    }
}

/// A command of a split, often a late or repeated one.
fn split_action(rng: &mut StdRng, state: &ClusterState) -> Action {
    let operations: Vec<u64> = state.operations.iter().map(|known| known.operation_id).collect();
    let newest = &operations[operations.len().saturating_sub(4)..];
    let operation_id = match newest {
        [] => rng.random_range(0..20),
        some => some[rng.random_range(0..some.len())],
    };
    let attempt = 1 + u64::from(rng.random_bool(0.1));
    match rng.random_range(0..4) {
        0 => Action::FinishSplit { operation_id, attempt },
        1 => Action::AbortSplit { operation_id, attempt, reason: "no".to_owned() },
        _ => {
            let at = rng.random_range(0..state.shards.len().max(1));
            let shard = state.shards.iter().nth(at).map(|shard| Shard::clone(shard));
            let shard = shard.unwrap_or_default();
            let epoch = shard.epoch + u64::from(rng.random_bool(0.1));
            let key = if rng.random_bool(0.1) { shard.end } else { key(rng) };
            Action::BeginSplit(Begin { shard_id: shard.shard_id, epoch, key, started_unix_ms: 5 })
        }
    }
}

fn registration(rng: &mut StdRng, state: &ClusterState) -> Registration {
    let node_id = rng.random_range(0..5);
    let known = state.nodes.get(node_id);
    let (boot, nonce) = known.map_or((0, 0), |node| (node.boot_number, node.nonce));
    Registration {
        node_id,
        cluster_id: if rng.random() { state.cluster.cluster_id } else { rng.random_range(0..4) },
        generation: rng.random_range(0..3),
        boot_number: boot + rng.random_range(0..3),
        nonce: if rng.random_bool(0.2) { nonce } else { rng.random_range(0..100) },
        previous_nonce: if rng.random_bool(0.8) { nonce } else { rng.random_range(0..100) },
        address: format!("host-{}:1", rng.random_range(0..3)),
        ..Registration::default()
    }
}

/// Every record of a state, as it would be stored.
fn records(state: &ClusterState) -> BTreeMap<(&'static str, u64), String> {
    fn text(value: &impl serde::Serialize) -> String {
        serde_json::to_string(value).unwrap()
    }
    let mut all = BTreeMap::from([(("cluster", 0), text(&state.cluster))]);
    all.extend(state.nodes.iter().map(|node| (("node", node.node_id), text(node.as_ref()))));
    all.extend(state.shards.iter().map(|shard| (("shard", shard.shard_id), text(shard.as_ref()))));
    let operations = state.operations.iter();
    all.extend(operations.map(|each| (("operation", each.operation_id), text(each.as_ref()))));
    all.extend(state.sessions.iter().map(|session| (("session", session.client), text(session))));
    all
}

/// Stores what the events name, and nothing else.
fn store(stored: &mut BTreeMap<(&'static str, u64), String>, events: &[Event], now: &ClusterState) {
    let all = records(now);
    let mut put = |name: (&'static str, u64)| match all.get(&name) {
        Some(record) => drop(stored.insert(name, record.clone())),
        None => drop(stored.remove(&name)),
    };
    for event in events {
        match event {
            Event::Cluster => put(("cluster", 0)),
            Event::Node(id) => put(("node", *id)),
            Event::Operation(id) => put(("operation", *id)),
            Event::Session(id) | Event::SessionDropped(id) => put(("session", *id)),
            Event::Map { changed, removed, .. } => {
                changed.iter().chain(removed).for_each(|id| put(("shard", *id)));
            }
        }
    }
}

#[test]
fn random_commands_keep_the_rules() {
    with_seeds(|rng| {
        let mut state = ClusterState::default();
        let mut stored = records(&state);
        let mut answered: Vec<(Command, Outcome)> = Vec::new();
        for serial in 1..=STEPS as u64 {
            let before = state.clone();
            let client = rng.random_range(0..3);
            let action = action(rng, &state);
            let command = Command { client, serial, ack_below: 0, action };
            let (outcome, events) = apply(&mut state, &command);
            rules::check(&before, &state).unwrap();
            store(&mut stored, &events, &state);
            assert_eq!(stored, records(&state), "{command:?}");
            if matches!(outcome, Outcome::Refused(_)) {
                assert_eq!((&before.nodes, &before.shards), (&state.nodes, &state.shards));
                assert_eq!(before.operations, state.operations);
                let commands = state.cluster.commands;
                assert_eq!(Cluster { commands, ..before.cluster.clone() }, state.cluster);
            }
            if client != 0 {
                answered.push((command, outcome));
                let again = &answered[rng.random_range(0..answered.len())];
                let now = state.clone();
                assert_eq!(apply(&mut state, &again.0), (again.1.clone(), Vec::new()));
                assert_eq!(state, now, "a retry has changed something");
            }
        }
    });
}

#[test]
fn the_same_commands_give_the_same_state() {
    with_seeds(|rng| {
        let (mut one, mut two) = (ClusterState::default(), ClusterState::default());
        for serial in 1..=50 {
            let command =
                Command { client: 1, serial, ack_below: serial, action: action(rng, &one) };
            // As a follower reads it from the log.
            let text = serde_json::to_string(&command).unwrap();
            let read: Command = serde_json::from_str(&text).unwrap();
            assert_eq!(apply(&mut one, &command), apply(&mut two, &read));
        }
        assert_eq!(one, two);
    });
}

/// A map with an owner for everything.
fn whole(state: &mut ClusterState) {
    state.nodes.put(Node { node_id: 1, incarnation: 1, ..Node::default() });
    state.nodes.put(Node { node_id: 2, incarnation: 2, ..Node::default() });
    state.cluster.next_id = 4;
    let all = Shard { shard_id: 3, epoch: 1, owner: 1, replicas: vec![1], ..Shard::default() };
    state.shards.replace(&[], vec![all]).unwrap();
}

/// A random change of the map as operations will make it: (old ids, new shards).
fn change(rng: &mut StdRng, state: &mut ClusterState) -> (Vec<u64>, Vec<Shard>) {
    let shards: Vec<Shard> = state.shards.iter().map(|shard| Shard::clone(shard)).collect();
    let at = rng.random_range(0..shards.len());
    let (shard, next) = (shards[at].clone(), shards.get(at + 1));
    let mut new_id = || {
        state.cluster.next_id += 1;
        state.cluster.next_id - 1
    };
    match rng.random_range(0..3) {
        0 => {
            let key = key(rng);
            let (mut left, mut right) = (shard.clone(), shard.clone());
            (left.shard_id, right.shard_id) = (new_id(), new_id());
            (left.epoch, right.epoch) = (shard.epoch + 1, shard.epoch + 1);
            (left.end, right.start) = (key.clone(), key);
            (vec![shard.shard_id], vec![left, right])
        }
        1 => {
            let Some(next) = next else { return (vec![shard.shard_id], vec![]) };
            let mut merged = shard.clone();
            merged.shard_id = new_id();
            merged.end.clone_from(&next.end);
            merged.epoch = shard.epoch.max(next.epoch) + 1;
            (vec![next.shard_id, shard.shard_id], vec![merged])
        }
        _ => {
            let owner = rng.random_range(1..3);
            let epoch = shard.epoch + rng.random_range(0..2);
            let moved = Shard { owner, epoch, replicas: vec![owner], ..shard };
            (vec![moved.shard_id], vec![moved])
        }
    }
}

#[test]
fn random_changes_of_the_map_keep_the_rules() {
    with_seeds(|rng| {
        let mut state = ClusterState::default();
        whole(&mut state);
        for _ in 0..STEPS {
            let before = state.clone();
            let (old, new) = change(rng, &mut state);
            match state.shards.replace(&old, new) {
                Ok(()) => state.cluster.map_version += 1,
                Err(_) => assert_eq!(state.shards, before.shards),
            }
            rules::check(&before, &state).unwrap();
            let key = key(rng);
            let found = state.shards.locate(&key).unwrap();
            assert!(found.range().contains(&key));
            assert_eq!(state.shards.get(found.shard_id), Some(found));
        }
    });
}

#[test]
fn changes_that_break_a_rule_are_refused() {
    let mut state = ClusterState::default();
    whole(&mut state);
    let shard = Shard { shard_id: 5, epoch: 2, owner: 1, replicas: vec![1], ..Shard::default() };
    let part = |start: &'static str, end: &'static str, shard_id| Shard {
        shard_id,
        start: start.into(),
        end: end.into(),
        ..shard.clone()
    };
    let mut refused = |old: &[u64], new: Vec<Shard>| state.shards.replace(old, new).unwrap_err();
    assert_eq!(refused(&[9], vec![shard.clone()]), MapError::NoShard(9));
    assert_eq!(refused(&[3], vec![]), MapError::OtherKeys);
    assert_eq!(refused(&[], vec![shard.clone()]), MapError::OtherKeys);
    assert_eq!(refused(&[3], vec![part("", "m", 5)]), MapError::OtherKeys);
    let gap = vec![part("", "m", 5), part("n", "", 6)];
    assert_eq!(refused(&[3], gap), MapError::NotNeighbours);
    let twice = vec![part("", "m", 5), part("m", "", 5)];
    assert_eq!(refused(&[3], twice), MapError::IdInUse(5));
    let other_range = vec![part("", "m", 3), part("m", "", 6)];
    assert_eq!(refused(&[3], other_range), MapError::IdInUse(3));
    let old = Shard { epoch: 1, ..shard };
    assert_eq!(refused(&[3], vec![old]), MapError::Epoch(5));
}

#[test]
fn sessions_are_bounded_and_forget_in_order() {
    let mut state = ClusterState::default();
    let action = Action::SetLease { expected_ms: 1, lease_ms: 1 };
    let command =
        |client, serial, ack_below| Command { client, serial, ack_below, action: action.clone() };
    for serial in 1..=1000 {
        apply(&mut state, &command(1, serial, 0));
    }
    assert_eq!(state.sessions.get(1).unwrap().outcomes.len(), 512);
    let (outcome, _) = apply(&mut state, &command(1, 3, 0));
    assert_eq!(outcome, Outcome::Refused(Refusal::Forgotten { client: 1, serial: 3 }));
    apply(&mut state, &command(1, 1001, 1000));
    assert_eq!(state.sessions.get(1).unwrap().outcomes.len(), 2);
    for client in 2..=64 {
        assert!(!apply(&mut state, &command(client, 1, 0)).1.contains(&Event::SessionDropped(1)));
    }
    apply(&mut state, &command(2, 2, 0));
    let (_, events) = apply(&mut state, &command(65, 1, 0));
    assert!(events.contains(&Event::SessionDropped(1)));
    assert_eq!(state.sessions.iter().count(), 64);
}
