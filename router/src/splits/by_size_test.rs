//! Which shards are chosen, and which are left alone.

use super::*;
use crate::state::{Action, Begin, Command, Node, Outcome, Shard, apply};

const S: Duration = Duration::from_secs(1);

/// Node 1 owns shards 10 [..c) and 11 [c..m), node 2 owns 12 [m..).
fn state() -> ClusterState {
    let mut state = ClusterState::default();
    state.cluster.cluster_id = 5;
    state.cluster.next_id = 100;
    for node_id in [1, 2] {
        state.nodes.put(Node { node_id, incarnation: node_id, ..Node::default() });
    }
    let shards = [(10, "", "c", 1), (11, "c", "m", 1), (12, "m", "", 2)];
    let shards = shards.map(|(shard_id, start, end, owner)| Shard {
        shard_id,
        start: start.into(),
        end: end.into(),
        epoch: 1,
        owner,
        replicas: vec![owner],
        born: false,
    });
    state.shards.replace(&[], shards.into()).unwrap();
    state
}

fn candidate(shard_id: u64, bytes: u64, key: &'static str) -> SplitCandidate {
    let key = Some(Bytes::from(key)).filter(|key| !key.is_empty());
    SplitCandidate { shard_id, epoch: 1, bytes, entries: 1, key }
}

fn report(node_id: u64, candidates: Vec<SplitCandidate>) -> Report {
    Report { node_id, can_split: true, candidates }
}

fn ids(chosen: &[Chosen]) -> Vec<u64> {
    chosen.iter().map(|chosen| chosen.shard_id).collect()
}

fn run(state: &mut ClusterState, action: Action) -> Outcome {
    apply(state, &Command { client: 0, serial: 0, ack_below: 0, action }).0
}

fn begin(state: &mut ClusterState, chosen: &Chosen) -> u64 {
    let Chosen { shard_id, epoch, key } = chosen.clone();
    let begin = Begin { shard_id, epoch, key, started_unix_ms: 0 };
    match run(state, Action::BeginSplit(begin)) {
        Outcome::Begun { operation_id } => operation_id,
        outcome => panic!("{outcome:?}"),
    }
}

#[test]
fn the_largest_of_each_node_is_chosen() {
    let mut policy = BySize::default();
    let reported = [
        report(1, vec![candidate(10, 5, "b"), candidate(11, 9, "d")]),
        report(2, vec![candidate(12, 1, "x")]),
        report(3, vec![]),
    ];
    assert_eq!(ids(&policy.choose(&state(), &reported, S)), [11, 12]);
}

#[test]
fn what_the_map_does_not_bear_out_is_not_chosen() {
    let mut policy = BySize::default();
    let stale = SplitCandidate { epoch: 2, ..candidate(10, 5, "b") };
    for odd in [
        candidate(99, 5, "b"),
        candidate(12, 5, "x"),
        candidate(10, 5, "c"),
        candidate(10, 5, "x"),
        stale,
    ] {
        assert_eq!(policy.choose(&state(), &[report(1, vec![odd.clone()])], S), [], "{odd:?}");
    }
}

#[test]
fn a_node_splits_one_shard_at_a_time() {
    let (mut policy, mut state) = (BySize::default(), state());
    let reported = [report(1, vec![candidate(10, 5, "b"), candidate(11, 9, "d")])];
    let chosen = policy.choose(&state, &reported, S);
    let operation_id = begin(&mut state, &chosen[0]);
    policy.begun(11, true, S);
    assert_eq!(policy.choose(&state, &reported, S), []);
    run(&mut state, Action::FinishSplit { operation_id, attempt: 1 });
    // The report of shard 11 is of before; it is gone.
    assert_eq!(ids(&policy.choose(&state, &reported, S)), [10]);
}

#[test]
fn a_shard_whose_split_failed_rests() {
    let (mut policy, mut state) = (BySize::default(), state());
    let reported = [report(2, vec![candidate(12, 5, "x")])];
    let chosen = policy.choose(&state, &reported, S);
    let operation_id = begin(&mut state, &chosen[0]);
    policy.begun(12, true, S);
    let reason = String::new();
    run(&mut state, Action::AbortSplit { operation_id, attempt: 1, reason });
    assert_eq!(policy.choose(&state, &reported, 2 * S), []);
    assert!(policy.note(12, 2 * S).contains("has failed"), "{}", policy.note(12, 2 * S));
    assert_eq!(policy.choose(&state, &reported, REST), []);
    assert_eq!(ids(&policy.choose(&state, &reported, REST + 2 * S)), [12]);
    assert_eq!(policy.note(12, REST + 2 * S), "");
    // One that could not even begin rests too.
    policy.begun(12, false, REST + 2 * S);
    assert_eq!(policy.choose(&state, &reported, REST + 3 * S), []);
}

#[test]
fn a_shard_that_no_key_splits_is_reported_and_left_alone() {
    let (mut policy, state) = (BySize::default(), state());
    let reported = [report(2, vec![candidate(12, 77, "")])];
    for second in 1..100 {
        assert_eq!(policy.choose(&state, &reported, S * second), []);
    }
    assert_eq!(policy.note(12, S), "too large (77 bytes), and no key splits it");
    // Once it has a key, that is over.
    assert_eq!(ids(&policy.choose(&state, &[report(2, vec![candidate(12, 80, "x")])], S)), [12]);
    assert_eq!(policy.note(12, S), "");
}

#[test]
fn a_node_that_cannot_split_is_left_alone() {
    let candidates = || vec![candidate(12, 5, "x")];
    let choose =
        |state: &ClusterState, report: Report| BySize::default().choose(state, &[report], S).len();
    assert_eq!(choose(&state(), report(2, candidates())), 1);
    assert_eq!(choose(&state(), Report { can_split: false, ..report(2, candidates()) }), 0);
    for node_state in
        [NodeState::Draining, NodeState::Down, NodeState::Removing, NodeState::Removed]
    {
        let mut state = state();
        let node = Node { state: node_state, ..Node::clone(state.nodes.get(2).unwrap()) };
        state.nodes.put(node);
        assert_eq!(choose(&state, report(2, candidates())), 0, "{node_state:?}");
    }
}

#[test]
fn a_note_goes_when_what_it_says_is_reported_no_more() {
    let (mut policy, state) = (BySize::default(), state());
    policy.choose(&state, &[report(2, vec![candidate(12, 77, "")])], S);
    assert_ne!(policy.note(12, S), "");
    // It has become smaller, or its regions are being merged.
    policy.choose(&state, &[report(2, vec![])], S);
    assert_eq!(policy.note(12, S), "");
}
