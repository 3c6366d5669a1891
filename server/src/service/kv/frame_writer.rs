//! The answer to one batch frame, sent in messages of bounded size.
//!
//! Invariants: results go out in the order they are given; a message holds at most
//! [`ANSWER_TARGET_BYTES`], unless a single result is larger; the last one, and no other, says
//! `done`; errors of one frame share one budget for their texts.

use prost::Message as _;
use tokio::sync::mpsc::Sender;
use tonic::Status;
use vmemkv_proto::limits::{ANSWER_TARGET_BYTES, ENTRY_OVERHEAD_BYTES};
use vmemkv_proto::status::ErrorBudget;
use vmemkv_proto::v1::{batch_get_result, batch_put_result};
use vmemkv_proto::{ApiError, v1};

use super::caller::Gone;

/// One result of a frame, and the message that carries it.
pub(super) trait FrameResult: Send + Sized + 'static {
    /// The message.
    type Answer: Send + 'static;
    /// The bytes that it adds to a message, at most.
    fn size(&self) -> usize;
    /// The message with these results.
    fn answer(id: u64, first: u64, results: Vec<Self>, done: bool) -> Self::Answer;
    /// The result that says `error`.
    fn of_error(error: v1::Error) -> Self;
}

/// Collects results and sends them.
pub(super) struct FrameWriter<R: FrameResult> {
    id: u64,
    first: u64,
    bytes: usize,
    results: Vec<R>,
    errors: ErrorBudget,
    out: Sender<Result<R::Answer, Status>>,
}

impl<R: FrameResult> FrameWriter<R> {
    /// The answer to the frame `id`.
    pub(super) fn new(id: u64, out: Sender<Result<R::Answer, Status>>) -> Self {
        Self { id, first: 0, bytes: 0, results: Vec::new(), errors: ErrorBudget::new(), out }
    }

    /// Adds a result; waits only if a message is full and the caller does not read.
    pub(super) async fn push(&mut self, result: R) -> Result<(), Gone> {
        let size = result.size();
        if !self.results.is_empty() && self.bytes + size > ANSWER_TARGET_BYTES {
            self.send(false).await?;
        }
        self.bytes += size;
        self.results.push(result);
        Ok(())
    }

    /// Adds an error as a result.
    pub(super) async fn push_error(&mut self, error: &ApiError) -> Result<(), Gone> {
        let error = self.errors.encode(error);
        self.push(R::of_error(error)).await
    }

    /// Sends what is left, as the last message.
    pub(super) async fn finish(mut self) -> Result<(), Gone> {
        self.send(true).await
    }

    async fn send(&mut self, done: bool) -> Result<(), Gone> {
        let results = std::mem::take(&mut self.results);
        let count = results.len() as u64;
        let answer = R::answer(self.id, self.first, results, done);
        self.first += count;
        self.bytes = 0;
        self.out.send(Ok(answer)).await.map_err(|_| Gone)
    }
}

impl FrameResult for v1::BatchGetResult {
    type Answer = v1::BatchGetResponse;

    fn size(&self) -> usize {
        let body = match &self.result {
            Some(batch_get_result::Result::Value(value)) => value.len(),
            Some(batch_get_result::Result::Error(error)) => error.encoded_len(),
            _ => 0,
        };
        body + ENTRY_OVERHEAD_BYTES
    }

    fn answer(id: u64, first: u64, results: Vec<Self>, done: bool) -> v1::BatchGetResponse {
        v1::BatchGetResponse { id, first, results, done }
    }

    fn of_error(error: v1::Error) -> Self {
        Self { result: Some(batch_get_result::Result::Error(error)) }
    }
}

impl FrameResult for v1::BatchPutResult {
    type Answer = v1::BatchPutResponse;

    fn size(&self) -> usize {
        let body = match &self.result {
            Some(batch_put_result::Result::NotApplied(not)) => {
                not.current.as_ref().map_or(0, bytes::Bytes::len)
            }
            Some(batch_put_result::Result::Error(error)) => error.encoded_len(),
            _ => 0,
        };
        body + ENTRY_OVERHEAD_BYTES
    }

    fn answer(id: u64, first: u64, results: Vec<Self>, done: bool) -> v1::BatchPutResponse {
        v1::BatchPutResponse { id, first, results, done }
    }

    fn of_error(error: v1::Error) -> Self {
        Self { result: Some(batch_put_result::Result::Error(error)), existed: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: usize) -> v1::BatchGetResult {
        v1::BatchGetResult { result: Some(batch_get_result::Result::Value(vec![1; bytes].into())) }
    }

    async fn answers(sizes: &[usize]) -> Vec<v1::BatchGetResponse> {
        let (out, mut answers) = tokio::sync::mpsc::channel(64);
        let mut writer = FrameWriter::new(9, out);
        for size in sizes {
            writer.push(value(*size)).await.unwrap();
        }
        writer.finish().await.unwrap();
        let mut all = Vec::new();
        while let Some(answer) = answers.recv().await {
            all.push(answer.unwrap());
        }
        all
    }

    #[tokio::test]
    async fn an_empty_frame_has_one_answer() {
        let all = answers(&[]).await;
        assert_eq!(all.len(), 1);
        assert!(all[0].done && all[0].results.is_empty() && all[0].id == 9);
    }

    #[tokio::test]
    async fn large_answers_come_in_parts() {
        let all = answers(&[256 << 10; 64]).await;
        assert!(all.len() > 16);
        let mut next = 0;
        for (index, answer) in all.iter().enumerate() {
            assert!(answer.encoded_len() <= ANSWER_TARGET_BYTES + 64);
            assert_eq!(answer.first, next);
            assert_eq!(answer.done, index + 1 == all.len());
            next += answer.results.len() as u64;
        }
        assert_eq!(next, 64);
    }

    #[tokio::test]
    async fn a_value_beyond_the_target_goes_alone() {
        let all = answers(&[10, 8 << 20, 10]).await;
        assert_eq!(all.iter().map(|answer| answer.results.len()).collect::<Vec<_>>(), [1, 1, 1]);
    }

    #[tokio::test]
    async fn many_tiny_results_stay_below_the_limit() {
        let all = answers(&[0; 100_000]).await;
        assert!(all.iter().all(|answer| answer.encoded_len() < 4 << 20));
    }

    #[tokio::test]
    async fn a_caller_that_has_gone_is_noticed() {
        let (out, answers) = tokio::sync::mpsc::channel(1);
        drop(answers);
        let writer = FrameWriter::<v1::BatchGetResult>::new(1, out);
        assert_eq!(writer.finish().await, Err(Gone));
    }
}
