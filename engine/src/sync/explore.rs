//! Running a piece of the engine under many thread schedules (`--cfg shuttle`).
//!
//! Invariant: [`explore`] fails, with the seed, if any schedule that it tries panics or leaves all
//! threads waiting. Half of the schedules are random, half favour few switches at odd places
//! (PCT), which finds what needs two or three unlucky moments.

use std::cell::Cell;

thread_local! {
    static RUNNING: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is the explorer's.
pub(crate) fn is_running() -> bool {
    RUNNING.get()
}

/// Runs `body` under `schedules` schedules, times `VMEMKV_SHUTTLE_TIMES`; `VMEMKV_SEED` runs the
/// schedules of a failure again.
#[cfg(test)]
pub(crate) fn explore(name: &str, schedules: usize, body: impl Fn() + Send + Sync + 'static) {
    use shuttle::scheduler::{PctScheduler, RandomScheduler};

    struct Running;
    impl Drop for Running {
        fn drop(&mut self) {
            RUNNING.set(false);
        }
    }

    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = number("VMEMKV_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    let half = (schedules * number("VMEMKV_SHUTTLE_TIMES").unwrap_or(1) as usize).div_ceil(2);
    println!("{name}: VMEMKV_SEED={seed}");
    let mut config = shuttle::Config::new();
    // An engine is opened in it.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    // The seed says it all, and is shorter.
    config.failure_persistence = shuttle::FailurePersistence::None;
    let body = std::sync::Arc::new(body);
    let again = std::sync::Arc::clone(&body);
    let _running = Running;
    RUNNING.set(true);
    let random = RandomScheduler::new_from_seed(seed, half);
    shuttle::Runner::new(random, config.clone()).run(move || body());
    let unlucky = PctScheduler::new_from_seed(seed, 3, half);
    shuttle::Runner::new(unlucky, config).run(move || again());
}
