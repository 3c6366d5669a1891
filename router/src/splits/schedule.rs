//! Which operations are worked at now: a slot is held while the owner is asked, never while an
//! operation waits to ask again.
//!
//! Invariants: at most [`MAX_WORKING`] are worked at, [`MAX_PER_NODE`] of one node, and
//! [`MAX_RETRYING`] whose last round has failed, so that neither a server that does not answer nor
//! many of them keep the others waiting; an operation is worked at once at a time; no clock and no
//! randomness of its own.

use std::collections::HashMap;
use std::time::Duration;

use vmemkv_proto::Backoff;

/// The most operations that are worked at.
const MAX_WORKING: usize = 256;
/// The most of them that have failed before.
const MAX_RETRYING: usize = 128;
/// The most of them of one node.
const MAX_PER_NODE: usize = 4;
/// The wait after a first failure.
const FIRST_WAIT: Duration = Duration::from_millis(20);

/// The operations that are known to run.
#[derive(Default)]
pub(super) struct Schedule {
    known: HashMap<u64, Known>,
}

struct Known {
    node_id: u64,
    failures: u64,
    backoff: Backoff,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Working,
    /// Asks again then.
    Waiting(Duration),
}

impl Schedule {
    /// Gives slots: the operations to begin a round of, of all that run (id and owner). Those that
    /// run no more are forgotten, and returned as well, in the second place.
    pub(super) fn begin(&mut self, active: &[(u64, u64)], now: Duration) -> (Vec<u64>, Vec<u64>) {
        let nodes: HashMap<u64, u64> = active.iter().copied().collect();
        let ended =
            |id: &u64, known: &Known| known.state != State::Working && !nodes.contains_key(id);
        let gone: Vec<u64> =
            self.known.iter().filter(|(id, known)| ended(id, known)).map(|(id, _)| *id).collect();
        self.known.retain(|id, _| !gone.contains(id));

        let (mut working, mut retrying) = (0, 0);
        let mut of_node: HashMap<u64, usize> = HashMap::new();
        for known in self.known.values().filter(|known| known.state == State::Working) {
            working += 1;
            retrying += usize::from(known.failures > 0);
            *of_node.entry(known.node_id).or_default() += 1;
        }
        // First tries first; of the others the ones that have waited the longest, however often they
        // have failed: one whose server is back must not wait for others to fail as often.
        let mut ready: Vec<(u64, Duration, u64, u64)> = Vec::new();
        for &(id, node_id) in active {
            match self.known.get(&id).map(|known| (&known.state, known.failures)) {
                None => ready.push((0, Duration::ZERO, id, node_id)),
                Some((State::Waiting(until), failures)) if *until <= now => {
                    ready.push((failures.min(1), *until, id, node_id));
                }
                Some(_) => {}
            }
        }
        ready.sort_unstable();
        let mut begun = Vec::new();
        for (failures, _, id, node_id) in ready {
            let here = of_node.entry(node_id).or_default();
            let no_retry = failures > 0 && retrying >= MAX_RETRYING;
            if working >= MAX_WORKING || no_retry || *here >= MAX_PER_NODE {
                continue;
            }
            working += 1;
            retrying += usize::from(failures > 0);
            *here += 1;
            let known = self.known.entry(id).or_insert_with(|| Known {
                node_id,
                failures: 0,
                backoff: Backoff::new(FIRST_WAIT),
                state: State::Working,
            });
            known.node_id = node_id;
            known.state = State::Working;
            begun.push(id);
        }
        (begun, gone)
    }

    /// A round is over, and its operation with it.
    pub(super) fn ended(&mut self, operation_id: u64) {
        self.known.remove(&operation_id);
    }

    /// A round is over, and another is needed. `random`: see [`Backoff::next`].
    pub(super) fn failed(&mut self, operation_id: u64, now: Duration, random: f64) {
        if let Some(known) = self.known.get_mut(&operation_id) {
            known.failures += 1;
            known.state = State::Waiting(now + known.backoff.next(random));
        }
    }

    /// How long until one of those that wait may ask again. None: nobody waits, but for a slot.
    pub(super) fn next_due(&self, now: Duration) -> Option<Duration> {
        let waits = self.known.values().filter_map(|known| match known.state {
            State::Waiting(until) if until > now => Some(until - now),
            _ => None,
        });
        waits.min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn begin(schedule: &mut Schedule, active: &[(u64, u64)], now: Duration) -> Vec<u64> {
        schedule.begin(active, now).0
    }

    #[test]
    fn who_waits_holds_no_slot() {
        let mut schedule = Schedule::default();
        // As many as there may be at all, each on a dead server of its own.
        let mut active: Vec<_> = (1..=1023).map(|id| (id, 1000 + id)).collect();
        let mut seen = 0;
        for _ in 0..1023 {
            let begun = begin(&mut schedule, &active, S);
            seen += begun.len();
            begun.iter().for_each(|id| schedule.failed(*id, S, 0.0));
            if begun.is_empty() {
                break;
            }
        }
        assert_eq!(seen, 1023, "each has been asked once");
        active.push((2000, 1));
        assert_eq!(begin(&mut schedule, &active, S), [2000]);
    }

    #[test]
    fn servers_that_do_not_answer_leave_slots_to_others() {
        let mut schedule = Schedule::default();
        let mut active: Vec<_> = (1..=1022).map(|id| (id, 1000 + id)).collect();
        let mut now = S;
        // All have failed, and are asked again: these calls never come back.
        loop {
            let begun = begin(&mut schedule, &active, now);
            if begun.is_empty() {
                break;
            }
            begun.iter().for_each(|id| schedule.failed(*id, now, 0.0));
        }
        now += S;
        assert_eq!(begin(&mut schedule, &active, now).len(), MAX_RETRYING);
        active.push((2000, 1));
        assert_eq!(begin(&mut schedule, &active, now), [2000]);
        // One that has failed once comes before those that have failed often.
        schedule.failed(2000, now, 0.0);
        now += 10 * S;
        schedule.failed(1, now, 0.0);
        assert_eq!(begin(&mut schedule, &active, now).len(), 1);
    }

    #[test]
    fn a_node_has_its_share() {
        let mut schedule = Schedule::default();
        let active: Vec<_> = (1..=20).map(|id| (id, 7)).chain([(21, 8)]).collect();
        assert_eq!(begin(&mut schedule, &active, S), [1, 2, 3, 4, 21]);
        assert!(begin(&mut schedule, &active, S).is_empty());
        schedule.ended(2);
        let active: Vec<_> = active.into_iter().filter(|(id, _)| *id != 2).collect();
        assert_eq!(begin(&mut schedule, &active, S), [5]);
    }

    #[test]
    fn a_failure_waits_longer_each_time_and_what_is_gone_is_forgotten() {
        let mut schedule = Schedule::default();
        let active = [(1, 7)];
        assert_eq!(begin(&mut schedule, &active, S), [1]);
        assert_eq!(schedule.next_due(S), None);
        schedule.failed(1, S, 0.0);
        assert_eq!(schedule.next_due(S), Some(FIRST_WAIT));
        assert!(begin(&mut schedule, &active, S).is_empty());
        assert_eq!(begin(&mut schedule, &active, S + FIRST_WAIT), [1]);
        schedule.failed(1, S, 0.0);
        assert_eq!(schedule.next_due(S), Some(2 * FIRST_WAIT));
        assert_eq!(schedule.begin(&[], S), (vec![], vec![1]));
        assert_eq!(schedule.next_due(S), None);
        // A round that runs is not forgotten: it still says how it has ended.
        assert_eq!(begin(&mut schedule, &active, S), [1]);
        assert_eq!(schedule.begin(&[], S), (vec![], vec![]));
    }
}
