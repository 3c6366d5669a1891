//! Who waited how long at which split: pure functions of what was recorded.
//!
//! Invariants: times are nanoseconds since the start of the run; a thread's calls are in order and
//! do not overlap; a call counts at a split if any moment of it lies in the split's window.

use crate::statistics::{Rate, loss_percent};

/// Seconds of each kind that the loss by seconds needs.
const MIN_SECONDS: usize = 5;
const SECOND_NS: u64 = 1_000_000_000;

/// One insert of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    /// When the put was called.
    pub(crate) start_ns: u64,
    /// When it returned, before the wait for the log.
    pub(crate) end_ns: u64,
    /// When it was acknowledged.
    pub(crate) acknowledged_ns: u64,
}

/// The time in which a split was under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
}

/// The engine's counters when somebody looked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Look {
    pub(crate) at_ns: u64,
    /// Splits that were done.
    pub(crate) splits: u64,
    /// Time that they took, all together.
    pub(crate) took_us: u64,
}

/// The window of each split, from all looks in order. It closes at the first look that saw the split
/// done. It opens before the look before that, by the time that the splits between the two took: never
/// later than the truth. (A look may see a split before it sees its time, so one more look counts.)
pub(crate) fn windows(looks: &[Look]) -> Vec<Window> {
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return Vec::new() };
    (first.splits..last.splits)
        .map(|number| {
            let done = looks.partition_point(|look| look.splits <= number);
            let before = looks[done - 1];
            let after = looks.get(done + 1).unwrap_or(&looks[done]);
            let took_ns = 1000 * (after.took_us - before.took_us);
            let start_ns = before.at_ns.saturating_sub(took_ns);
            Window { start_ns, end_ns: looks[done].at_ns }
        })
        .collect()
}

/// The longest wait of each thread at each split, ascending; 0 for a thread that was not in a put.
pub(crate) fn longest_waits(threads: &[Vec<Call>], windows: &[Window]) -> Vec<u64> {
    let mut waits = Vec::with_capacity(threads.len() * windows.len());
    for calls in threads {
        for window in windows {
            let from = calls.partition_point(|call| call.end_ns < window.start_ns);
            let at = calls[from..].iter().take_while(|call| call.start_ns <= window.end_ns);
            waits.push(at.map(|call| call.end_ns - call.start_ns).max().unwrap_or(0));
        }
    }
    waits.sort_unstable();
    waits
}

/// What the loss is taken from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Loss {
    /// Of the time with a split under way against the time without.
    pub(crate) percent: f64,
    /// Whole seconds of the run with and without, or, if the run has too few of either, just the windows.
    pub(crate) by_seconds: bool,
    /// The rate with.
    pub(crate) during: Rate,
    /// The rate without.
    pub(crate) without: Rate,
}

/// The loss of acknowledged inserts while a split is under way; none if there was no such time, or
/// nothing but.
pub(crate) fn loss(threads: &[Vec<Call>], windows: &[Window], seconds: u64) -> Option<Loss> {
    let busy = union(windows, seconds * SECOND_NS);
    let is_busy = |second: u64| {
        let (start, end) = (second * SECOND_NS, (second + 1) * SECOND_NS);
        let next = busy.partition_point(|window| window.end_ns < start);
        busy.get(next).is_some_and(|window| window.start_ns < end)
    };
    let by_second: Vec<bool> = (0..seconds).map(is_busy).collect();
    let busy_seconds = by_second.iter().filter(|&&busy| busy).count();
    let by_seconds = busy_seconds.min(by_second.len() - busy_seconds) >= MIN_SECONDS;
    let (mut during, mut without) = (Rate::default(), Rate::default());
    if by_seconds {
        during.seconds = busy_seconds as f64;
    } else {
        let busy_ns: u64 = busy.iter().map(|window| window.end_ns - window.start_ns).sum();
        during.seconds = busy_ns as f64 / SECOND_NS as f64;
    }
    without.seconds = seconds as f64 - during.seconds;
    for call in threads.iter().flatten() {
        let at = call.acknowledged_ns;
        let second = usize::try_from(at / SECOND_NS).ok()?;
        let Some(&second_is_busy) = by_second.get(second) else { continue };
        let is_busy = if by_seconds {
            second_is_busy
        } else {
            let next = busy.partition_point(|window| window.end_ns <= at);
            busy.get(next).is_some_and(|window| window.start_ns <= at)
        };
        (if is_busy { &mut during } else { &mut without }).operations += 1;
    }
    if during.seconds <= 0.0 {
        return None;
    }
    let percent = loss_percent(without.per_second(), during.per_second())?;
    Some(Loss { percent, by_seconds, during, without })
}

/// The windows without overlaps, in order, up to `end_ns`.
fn union(windows: &[Window], end_ns: u64) -> Vec<Window> {
    let mut sorted: Vec<_> = windows.iter().filter(|w| w.start_ns < end_ns).copied().collect();
    sorted.sort_by_key(|window| window.start_ns);
    let mut all: Vec<Window> = Vec::new();
    for window in sorted {
        let window = Window { end_ns: window.end_ns.min(end_ns), ..window };
        match all.last_mut() {
            Some(last) if window.start_ns <= last.end_ns => {
                last.end_ns = last.end_ns.max(window.end_ns);
            }
            _ => all.push(window),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(start_ns: u64, end_ns: u64) -> Call {
        Call { start_ns, end_ns, acknowledged_ns: end_ns + 5 }
    }

    fn window(start_ns: u64, end_ns: u64) -> Window {
        Window { start_ns, end_ns }
    }

    #[test]
    fn windows_open_before_and_close_after_the_truth() {
        let look = |at_us: u64, splits, took_us| Look { at_ns: 1000 * at_us, splits, took_us };
        assert_eq!(windows(&[]), []);
        assert_eq!(windows(&[look(0, 3, 9), look(10, 3, 9)]), []);
        let looks = [
            look(5, 3, 9),
            look(10, 3, 9),
            look(20, 4, 13), // one that took 4 us
            look(30, 4, 13),
            look(40, 6, 20), // two that took 7 us together
            look(50, 6, 20),
            look(60, 7, 20), // its 100 us are seen only with the next look
            look(70, 7, 120),
            look(80, 8, 121), // the last look
        ];
        let windows: Vec<_> =
            windows(&looks).iter().map(|w| (w.start_ns / 1000, w.end_ns / 1000)).collect();
        assert_eq!(windows, [(6, 20), (23, 40), (23, 40), (0, 60), (69, 80)]);
    }

    #[test]
    fn the_longest_call_that_touches_the_window_counts() {
        let calls =
            vec![call(0, 10), call(20, 100), call(110, 111), call(120, 150), call(160, 900)];
        let at = |start, end| longest_waits(std::slice::from_ref(&calls), &[window(start, end)]);
        assert_eq!(at(5, 15), [10]);
        assert_eq!(at(12, 18), [0], "between calls");
        assert_eq!(at(100, 115), [80], "it ended as the split began");
        assert_eq!(at(101, 115), [1]);
        assert_eq!(at(30, 130), [80]);
        assert_eq!(at(130, 160), [740], "it began as the split ended");
        let pairs = longest_waits(&[calls.clone(), Vec::new()], &[window(5, 15), window(30, 130)]);
        assert_eq!(pairs, [0, 0, 10, 80]);
    }

    #[test]
    fn the_loss_is_by_seconds_when_there_are_enough() {
        // 20 s; splits in seconds 2 to 7 take half of the rate, 10 acknowledgements a second.
        let windows: Vec<_> =
            (2..8).map(|s| window(s * SECOND_NS + 10, s * SECOND_NS + 20)).collect();
        let acknowledged = |count: u64, second: u64| {
            (0..count).map(move |i| {
                let at = second * SECOND_NS + 100 + i;
                Call { start_ns: at, end_ns: at, acknowledged_ns: at }
            })
        };
        let calls: Vec<_> = (0..20)
            .flat_map(|second| acknowledged(if (2..8).contains(&second) { 5 } else { 10 }, second))
            .collect();
        let loss = loss(&[calls], &windows, 20).expect("loss");
        assert!(loss.by_seconds);
        assert_eq!(loss.percent, 50.0);
        assert_eq!((loss.during.operations, loss.without.operations), (30, 140));
        assert_eq!((loss.during.seconds, loss.without.seconds), (6.0, 14.0));
    }

    #[test]
    fn the_loss_is_by_windows_when_there_are_too_few_seconds() {
        // 2 s, one split for half a second, in which nothing is acknowledged.
        let half = SECOND_NS / 2;
        let calls: Vec<_> = (0..200)
            .map(|i| i * SECOND_NS / 100)
            .filter(|at| !(half..=SECOND_NS).contains(at))
            .map(|at| Call { start_ns: at, end_ns: at, acknowledged_ns: at })
            .collect();
        let found =
            loss(std::slice::from_ref(&calls), &[window(half, SECOND_NS)], 2).expect("loss");
        assert!(!found.by_seconds);
        assert_eq!((found.percent, found.during.seconds), (100.0, 0.5));
        assert_eq!(loss(&[calls], &[], 2), None, "no split");
    }

    #[test]
    fn overlapping_windows_count_once() {
        let windows =
            [window(5, 10), window(0, 3), window(8, 20), window(19, 99), window(200, 300)];
        assert_eq!(union(&windows, 50), [window(0, 3), window(5, 50)]);
    }
}
