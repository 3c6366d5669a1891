//! Jobs that an operator starts and waits for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use vmemkv_engine::{
    Continue, DefragmentOptions, DefragmentProgress, DefragmentStep, Engine, ShardId,
};
use vmemkv_proto::check::invalid;
use vmemkv_proto::{ApiError, ErrorKind, v1};

use super::stats::phases;
use crate::engine_error::{self, Effect};
use crate::io_pool::{CancelOnDrop, Class};
use crate::metrics::Metrics;
use crate::node::Node;

/// Most problems that a verification lists.
const PROBLEMS_MAX: usize = 1000;
/// Longest text of one problem, bytes; with it an answer stays below the limit of stock clients.
const PROBLEM_BYTES_MAX: usize = 1024;

/// The jobs, each with whether it runs.
pub(super) struct Jobs {
    node: Arc<Node>,
    checkpoint: Arc<AtomicBool>,
    reorganize: Arc<AtomicBool>,
    verify: Arc<AtomicBool>,
    defragment: Arc<AtomicBool>,
}

/// Says that a job runs, until it is dropped.
struct Running(Arc<AtomicBool>);

impl Running {
    fn begin(job: &Arc<AtomicBool>, name: &str) -> Result<Self, ApiError> {
        // Acquire pairs with the release of the end, so jobs of a kind follow one another.
        if job.swap(true, Ordering::Acquire) {
            let message = format!("{name} runs already; wait for it and try again");
            return Err(ApiError::new(ErrorKind::Aborted, message).with_not_applied());
        }
        Ok(Self(Arc::clone(job)))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Jobs {
    /// No job runs.
    pub(super) fn new(node: Arc<Node>) -> Self {
        let idle = || Arc::new(AtomicBool::new(false));
        Self { node, checkpoint: idle(), reorganize: idle(), verify: idle(), defragment: idle() }
    }

    /// Makes a checkpoint.
    pub(super) async fn checkpoint(&self) -> Result<v1::CheckpointResponse, ApiError> {
        let running = Running::begin(&self.checkpoint, "a checkpoint")?;
        let (report, took) = self.run(running, Engine::checkpoint).await?;
        Ok(v1::CheckpointResponse {
            checkpoint_id: report.id.0,
            checkpoint_lsn: report.lsn.0,
            duration_us: micros(took),
            phases: Some(phases(&report)),
        })
    }

    /// Reorganizes one shard, or all for 0.
    pub(super) async fn reorganize(&self, id: u64) -> Result<v1::ReorganizeResponse, ApiError> {
        let engine = self.node.engine()?;
        let known = engine.shards();
        if id != 0 && !known.iter().any(|shard| shard.id == ShardId(id)) {
            let message = format!("shard_id: shard {id} is not on this node");
            return Err(ApiError::new(ErrorKind::NotFound, message).with_not_applied());
        }
        let running = Running::begin(&self.reorganize, "a reorganize")?;
        let shard = (id != 0).then_some(ShardId(id));
        let ((), took) = self.run(running, move |engine| engine.reorganize(shard)).await?;
        let shards = if id == 0 { known.len() as u64 } else { 1 };
        Ok(v1::ReorganizeResponse { shards, duration_us: micros(took) })
    }

    /// Moves what is live out of segments that are mostly dead, or puts records in order; ends when
    /// its caller leaves.
    pub(super) async fn defragment(
        &self,
        request: &v1::DefragmentRequest,
    ) -> Result<v1::DefragmentResponse, ApiError> {
        let v1::DefragmentRequest { min_dead_ratio, max_bytes, in_order } = *request;
        if !(0.0..=1.0).contains(&min_dead_ratio) {
            return Err(invalid("min_dead_ratio", "must be between 0 and 1"));
        }
        if in_order && min_dead_ratio != 0.0 {
            return Err(invalid("min_dead_ratio", "must be 0 with in_order"));
        }
        let running = Running::begin(&self.defragment, "a defragment")?;
        let guard = CancelOnDrop::default();
        let (gone, node) = (guard.flag(), Arc::clone(&self.node));
        let outcome = self
            .run(running, move |engine| {
                let control = |progress: DefragmentProgress| {
                    if progress.step == DefragmentStep::Done {
                        tracing::info!(
                            segments_done = progress.segments_done,
                            segments_chosen = progress.segments_chosen,
                            bytes_moved = progress.bytes_moved,
                            "defragmenting"
                        );
                    }
                    let ends = gone.load(Ordering::Relaxed) || node.stopping.is_cancelled();
                    if ends { Continue::No } else { Continue::Yes }
                };
                let options = DefragmentOptions { min_dead_ratio, max_bytes };
                let report = if in_order {
                    engine.put_in_order(&options, &control)?
                } else {
                    engine.defragment(&options, &control)?
                };
                if report.cancelled && gone.load(Ordering::Relaxed) {
                    Metrics::count(&node.metrics.stopped_by_caller);
                }
                Ok(report)
            })
            .await;
        drop(guard);
        let (report, took) = outcome?;
        if report.cancelled {
            let message = "the server is stopping; the defragment ended early";
            return Err(ApiError::new(ErrorKind::Unavailable, message));
        }
        Ok(v1::DefragmentResponse {
            segments: report.segments,
            bytes_moved: report.bytes_moved,
            bytes_freed: report.bytes_freed,
            duration_us: micros(took),
            short_of_space: report.short_of_space,
        })
    }

    /// Reads and checks all records; ends when its caller leaves.
    pub(super) async fn verify(&self) -> Result<v1::VerifyResponse, ApiError> {
        let running = Running::begin(&self.verify, "a verification")?;
        let guard = CancelOnDrop::default();
        let (gone, node) = (guard.flag(), Arc::clone(&self.node));
        let outcome = self
            .run(running, move |engine| {
                let cancelled = || gone.load(Ordering::Relaxed) || node.stopping.is_cancelled();
                let report = engine.verify(&cancelled);
                if report.is_err() && gone.load(Ordering::Relaxed) {
                    Metrics::count(&node.metrics.stopped_by_caller);
                }
                report
            })
            .await;
        drop(guard);
        let (report, took) = outcome?;
        let problems = report.problems.into_iter().take(PROBLEMS_MAX).map(cut).collect();
        Ok(v1::VerifyResponse {
            problems,
            records_checked: report.records,
            bytes_checked: report.bytes,
            duration_us: micros(took),
        })
    }

    async fn run<T: Send + 'static>(
        &self,
        running: Running,
        job: impl FnOnce(&Engine) -> vmemkv_engine::Result<T> + Send + 'static,
    ) -> Result<(T, Duration), ApiError> {
        let engine = self.node.engine()?;
        let job = move || {
            let started = Instant::now();
            let result = job(&engine);
            drop(running);
            (result, started.elapsed())
        };
        let (result, took) = self.node.pool.run(Class::Long, job).await?;
        match result {
            Ok(value) => Ok((value, took)),
            Err(error) if error.kind() == vmemkv_engine::ErrorKind::ReadOnly => {
                let message = "the engine is read-only; the log of this server says why";
                Err(ApiError::new(ErrorKind::FailedPrecondition, message))
            }
            Err(error) => {
                let table = self.node.ownership.table();
                Err(engine_error::to_api(&error, Effect::Unknown, &table))
            }
        }
    }
}

fn cut(mut problem: String) -> String {
    let mut end = problem.len().min(PROBLEM_BYTES_MAX);
    while !problem.is_char_boundary(end) {
        end -= 1;
    }
    problem.truncate(end);
    problem
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_runs_once_at_a_time() {
        let job = Arc::new(AtomicBool::new(false));
        let first = Running::begin(&job, "it").unwrap();
        let error = Running::begin(&job, "it").err().unwrap();
        assert_eq!(error.kind, ErrorKind::Aborted);
        drop(first);
        Running::begin(&job, "it").unwrap();
    }

    #[test]
    fn a_problem_is_cut_at_a_character() {
        assert_eq!(cut("short".to_owned()), "short");
        let long = "\u{e9}".repeat(PROBLEM_BYTES_MAX);
        assert!(cut(long).len() <= PROBLEM_BYTES_MAX);
    }
}
