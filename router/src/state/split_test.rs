//! Splits in the state machine, step by step, with everything that can come twice or late.

use bytes::Bytes;

use super::operations::MAX_FINISHED;
use super::*;

/// A cluster of one node with one confirmed shard that covers everything.
struct Machine {
    state: ClusterState,
    serial: u64,
}

impl Machine {
    fn new() -> Self {
        let mut machine = Self { state: ClusterState::default(), serial: 0 };
        machine.done(Action::CreateCluster { cluster_id: 9, lease_ms: 5, boundaries: Vec::new() });
        let registration = Registration {
            node_id: 7,
            boot_number: 1,
            nonce: 3,
            address: "here:1".to_owned(),
            ..Registration::default()
        };
        machine.run(Action::RegisterNode(registration));
        machine
    }

    fn confirmed() -> Self {
        let mut machine = Self::new();
        let shard = machine.shard(b"a");
        let incarnation = machine.state.nodes.get(7).unwrap().incarnation;
        let shards = vec![Confirmed { shard_id: shard.shard_id, epoch: shard.epoch }];
        machine.done(Action::ConfirmShards { node_id: 7, incarnation, shards });
        machine
    }

    fn run(&mut self, action: Action) -> Outcome {
        self.serial += 1;
        let before = self.state.clone();
        let command = Command { client: 1, serial: self.serial, ack_below: self.serial, action };
        let (outcome, _) = apply(&mut self.state, &command);
        rules::check(&before, &self.state).unwrap();
        if matches!(outcome, Outcome::Refused(_)) {
            assert_eq!(before.shards, self.state.shards);
            assert_eq!(before.operations, self.state.operations);
        }
        outcome
    }

    fn done(&mut self, action: Action) {
        let outcome = self.run(action);
        assert!(matches!(outcome, Outcome::Done { .. }), "{outcome:?}");
    }

    fn refused(&mut self, action: Action) -> Refusal {
        match self.run(action) {
            Outcome::Refused(refusal) => refusal,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn shard(&self, key: &[u8]) -> Shard {
        Shard::clone(self.state.shards.locate(key).unwrap())
    }

    fn begin(&mut self, shard: &Shard, key: &'static str) -> u64 {
        match self.run(begin(shard, key)) {
            Outcome::Begun { operation_id } => operation_id,
            outcome => panic!("{outcome:?}"),
        }
    }

    fn map(&self) -> Vec<(Bytes, Bytes, u64, u64)> {
        let shards = self.state.shards.iter();
        let shards = shards.map(|s| (s.start.clone(), s.end.clone(), s.epoch, s.owner));
        shards.collect()
    }
}

fn begin(shard: &Shard, key: &'static str) -> Action {
    let (shard_id, epoch) = (shard.shard_id, shard.epoch);
    Action::BeginSplit(Begin { shard_id, epoch, key: key.into(), started_unix_ms: 1 })
}

fn finish(operation_id: u64) -> Action {
    Action::FinishSplit { operation_id, attempt: 1 }
}

fn abort(operation_id: u64) -> Action {
    Action::AbortSplit { operation_id, attempt: 1, reason: "no room".to_owned() }
}

#[test]
fn a_split_changes_the_map_at_its_end_and_at_once() {
    let mut machine = Machine::confirmed();
    let shard = machine.shard(b"a");
    let before = (machine.map(), machine.state.cluster.map_version);
    let operation = machine.begin(&shard, "m");
    assert_eq!(before, (machine.map(), machine.state.cluster.map_version));
    assert_eq!(machine.state.operations.holder(shard.shard_id), operation);
    machine.done(finish(operation));
    let (none, m) = (Bytes::new(), Bytes::from("m"));
    assert_eq!(machine.map(), [(none.clone(), m.clone(), 2, 7), (m, none, 2, 7)]);
    assert_eq!(machine.state.cluster.map_version, before.1 + 1);
    let ids = [machine.shard(b"a").shard_id, machine.shard(b"z").shard_id];
    assert_eq!(machine.state.operations.get(operation).unwrap().new_shards, ids);
    assert_eq!(machine.state.operations.holder(shard.shard_id), 0);
    // What comes twice changes nothing.
    let version = machine.state.cluster.map_version;
    machine.done(finish(operation));
    assert_eq!(machine.state.cluster.map_version, version);
}

#[test]
fn m11_an_end_of_a_split_excludes_the_other() {
    let mut machine = Machine::confirmed();
    let shard = machine.shard(b"a");
    let operation = machine.begin(&shard, "m");
    machine.done(finish(operation));
    let refusal = machine.refused(abort(operation));
    assert!(refusal.to_string().contains("ended before: done"), "{refusal}");

    let shard = machine.shard(b"a");
    let operation = machine.begin(&shard, "c");
    machine.done(abort(operation));
    machine.done(abort(operation));
    let refusal = machine.refused(finish(operation));
    assert!(refusal.to_string().contains("ended before: failed"), "{refusal}");
    assert_eq!(machine.state.operations.get(operation).unwrap().reason, "no room");
    // The shard is free again, under its old name.
    assert_eq!(machine.shard(b"a"), shard);
    machine.begin(&shard, "c");
}

#[test]
fn m14_a_shard_has_one_operation_of_any_kind() {
    let mut machine = Machine::confirmed();
    let shard = machine.shard(b"a");
    let first = machine.begin(&shard, "m");
    let refusal = machine.refused(begin(&shard, "c"));
    assert!(matches!(refusal, Refusal::Precondition(_)), "{refusal:?}");
    assert!(refusal.to_string().contains(&format!("operation {first} holds")), "{refusal}");
    machine.done(finish(first));
    // The dead id does not come back.
    let refusal = machine.refused(begin(&shard, "c"));
    assert!(matches!(refusal, Refusal::NotFound(_)), "{refusal:?}");
}

#[test]
fn what_cannot_be_split_is_refused() {
    let mut machine = Machine::new();
    let shard = machine.shard(b"a");
    let refusal = machine.refused(begin(&shard, "m"));
    assert!(refusal.to_string().contains("still making"), "{refusal}");

    let mut machine = Machine::confirmed();
    let shard = machine.shard(b"a");
    let operation = machine.begin(&shard, "m");
    machine.done(finish(operation));
    let (left, right) = (machine.shard(b"a"), machine.shard(b"z"));
    for (shard, key) in [(&left, ""), (&left, "m"), (&left, "n"), (&right, "m"), (&right, "b")] {
        let refusal = machine.refused(begin(shard, key));
        assert!(matches!(refusal, Refusal::Invalid(_)), "{key}: {refusal:?}");
    }
    let long = vec![b'n'; vmemkv_proto::limits::MAX_KEY_BYTES + 1].into();
    let long = Begin { shard_id: right.shard_id, epoch: 2, key: long, started_unix_ms: 0 };
    assert!(matches!(machine.refused(Action::BeginSplit(long)), Refusal::Invalid(_)));
    let old = Shard { epoch: 1, ..left.clone() };
    assert!(matches!(machine.refused(begin(&old, "c")), Refusal::Precondition(_)));
    assert!(matches!(machine.refused(finish(99)), Refusal::NotFound(_)));
    let operation = machine.begin(&left, "c");
    let late = Action::FinishSplit { operation_id: operation, attempt: 2 };
    assert!(matches!(machine.refused(late), Refusal::Precondition(_)));
}

#[test]
fn operations_that_have_ended_are_kept_for_a_while() {
    let mut machine = Machine::confirmed();
    let shard = machine.shard(b"a");
    let first = machine.begin(&shard, "m");
    machine.done(finish(first));
    let right = machine.shard(b"z");
    let running = machine.begin(&right, "x");
    for _ in 0..MAX_FINISHED + 3 {
        let left = machine.shard(b"a");
        let operation = machine.begin(&left, "c");
        machine.done(abort(operation));
    }
    assert!(machine.state.operations.get(first).is_none());
    assert!(machine.state.operations.get(running).is_some());
    assert_eq!(machine.state.operations.oldest_active(), Some(running));
    assert_eq!(machine.state.operations.iter().count(), MAX_FINISHED + 1);
    machine.done(finish(running));
    assert_eq!(machine.state.operations.oldest_active(), None);
}
