//! The fake server.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt as _, once, unfold};
use parking_lot::Mutex;
use tonic::{Request, Response, Status, Streaming};
use vmemkv_proto::check::{check_batch_get, check_batch_put, check_key, unimplemented};
use vmemkv_proto::convert::{KeyRange, Scan, Write};
use vmemkv_proto::v1::{batch_get_result, batch_put_result};
use vmemkv_proto::{ApiError, v1};

use super::State;
use super::state::{FOR_EVER, Fault};

type Answers<T> = BoxStream<'static, Result<T, Status>>;

#[derive(Clone)]
pub struct FakeKv {
    pub node: u64,
    pub state: Arc<Mutex<State>>,
}

impl FakeKv {
    /// Counts the call; `Ok(Some)` is to be answered after the work is done.
    async fn enter<T>(
        &self,
        method: &'static str,
        request: &Request<T>,
    ) -> Result<Option<Fault>, Status> {
        let fault = {
            let mut state = self.state.lock();
            let timeout = request.metadata().get("grpc-timeout");
            state.timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
            state.count(method)
        };
        match fault {
            Some(Fault::Refuse(status)) => Err(status),
            Some(Fault::Hang) => {
                tokio::time::sleep(FOR_EVER).await;
                Ok(None)
            }
            other => Ok(other),
        }
    }

    fn write(
        &self,
        write: &Write,
        hint: Option<&v1::RouteHint>,
    ) -> Result<(bool, bool, Option<Bytes>), ApiError> {
        let mut state = self.state.lock();
        state.admit(self.node, write.key(), None, hint)?;
        let current = state.data.get(write.key().as_ref()).cloned();
        if !write.condition().holds(current.as_deref()) {
            return Ok((false, false, current));
        }
        state.applied.push(write.key().clone());
        match write {
            Write::Put(put) => state.data.insert(put.key.to_vec(), put.value.clone()),
            Write::Delete(delete) => state.data.remove(delete.key.as_ref()),
        };
        Ok((true, current.is_some() && matches!(write, Write::Delete(_)), None))
    }
}

/// The hint of a frame that is meant for a key, as a server finds it.
fn hint_for<'a>(
    state: &State,
    key: &[u8],
    hints: &'a [v1::RouteHint],
) -> Option<&'a v1::RouteHint> {
    let shard = &state.shards[state.shard(key)];
    hints.iter().find(|hint| hint.shard_id == shard.shard_id).or_else(|| hints.first())
}

fn answered<T>(fault: Option<Fault>, answer: T) -> Result<Response<T>, Status> {
    match fault {
        Some(Fault::ApplyThen(status)) => Err(status),
        _ => Ok(Response::new(answer)),
    }
}

#[tonic::async_trait]
impl v1::kv_server::Kv for FakeKv {
    type BatchGetStream = Answers<v1::BatchGetResponse>;
    type BatchPutStream = Answers<v1::BatchPutResponse>;
    type ScanStream = Answers<v1::ScanResponse>;
    type BatchScanStream = Answers<v1::BatchScanResponse>;
    type WatchStream = Answers<v1::WatchResponse>;

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let fault = self.enter("get", &request).await?;
        let request = request.into_inner();
        check_key("key", &request.key)?;
        let state = self.state.lock();
        state.admit(self.node, &request.key, None, request.route.as_ref())?;
        let value = state.data.get(request.key.as_ref()).cloned();
        answered(fault, v1::GetResponse { value })
    }

    async fn put(
        &self,
        request: Request<v1::PutRequest>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        let fault = self.enter("put", &request).await?;
        let request = request.into_inner();
        if request.ttl_ms.is_some() {
            return Err(unimplemented("ttl_ms").into());
        }
        if request.request_id.is_some() {
            return Err(unimplemented("request_id").into());
        }
        let hint = request.route;
        let write = Write::Put(request.try_into()?);
        let (applied, _, current) = self.write(&write, hint.as_ref())?;
        answered(fault, v1::PutResponse { applied, current })
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let fault = self.enter("delete", &request).await?;
        let request = request.into_inner();
        let hint = request.route;
        let write = Write::Delete(request.try_into()?);
        let (applied, existed, current) = self.write(&write, hint.as_ref())?;
        answered(fault, v1::DeleteResponse { applied, existed, current })
    }

    async fn delete_range(
        &self,
        request: Request<v1::DeleteRangeRequest>,
    ) -> Result<Response<v1::DeleteRangeResponse>, Status> {
        let fault = self.enter("delete_range", &request).await?;
        let request = request.into_inner();
        let range = KeyRange::checked(request.start.clone(), request.end.clone())?;
        let mut state = self.state.lock();
        state.admit(self.node, &request.start, Some(&request.end), request.route.as_ref())?;
        let all: Vec<_> = state.data.keys().filter(|key| range.contains(key)).cloned().collect();
        let (some, rest) = all.split_at(all.len().min(10));
        for key in some {
            state.data.remove(key);
        }
        let covered_to = rest.first().map_or(request.end, |key| Bytes::copy_from_slice(key));
        let (deleted, done) = (some.len() as u64, rest.is_empty());
        answered(fault, v1::DeleteRangeResponse { deleted, covered_to, done })
    }

    async fn batch_get(
        &self,
        request: Request<Streaming<v1::BatchGetRequest>>,
    ) -> Result<Response<Self::BatchGetStream>, Status> {
        let fault = self.enter("batch_get", &request).await?;
        let server = self.clone();
        let answers = request.into_inner().flat_map(move |frame| {
            let answers = match frame {
                Ok(frame) => server.get_frame(&frame, fault.as_ref()),
                Err(status) => vec![Err(status)],
            };
            futures::stream::iter(answers)
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn batch_put(
        &self,
        request: Request<Streaming<v1::BatchPutRequest>>,
    ) -> Result<Response<Self::BatchPutStream>, Status> {
        let fault = self.enter("batch_put", &request).await?;
        let server = self.clone();
        let answers = request.into_inner().map(move |frame| {
            let answer = server.put_frame(frame?, fault.as_ref())?;
            match &fault {
                Some(Fault::ApplyThen(status)) => Err(status.clone()),
                _ => Ok(answer),
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn scan(
        &self,
        request: Request<v1::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let fault = self.enter("scan", &request).await?;
        if let Some(Fault::ApplyThen(status)) = fault {
            return Ok(Response::new(once(async { Err(status) }).boxed()));
        }
        let scan = Scan::try_from(request.into_inner())?;
        let (start, end) = scan.range.clone().into_wire();
        self.state.lock().admit(self.node, &start, Some(&end), scan.route.as_ref())?;
        let left = scan.limit.map(std::num::NonZeroU64::get);
        let run = (self.clone(), scan.range.clone(), left, scan, false);
        let answers = unfold(run, |(server, rest, left, scan, ended)| async move {
            if ended {
                return None;
            }
            match server.scan_chunk(&rest, left, &scan) {
                Ok((chunk, rest)) => {
                    let ended = chunk.done;
                    let left = left.map(|left| left - chunk.entries.len() as u64);
                    Some((Ok(chunk), (server, rest, left, scan, ended)))
                }
                Err(error) => Some((Err(error.to_status()), (server, rest, left, scan, true))),
            }
        });
        Ok(Response::new(answers.boxed()))
    }

    async fn batch_scan(
        &self,
        _: Request<Streaming<v1::BatchScanRequest>>,
    ) -> Result<Response<Self::BatchScanStream>, Status> {
        Err(unimplemented("BatchScan").into())
    }

    async fn watch(
        &self,
        _: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(unimplemented("Watch").into())
    }

    async fn increment(
        &self,
        _: Request<v1::IncrementRequest>,
    ) -> Result<Response<v1::IncrementResponse>, Status> {
        Err(unimplemented("Increment").into())
    }

    async fn checksum(
        &self,
        request: Request<v1::ChecksumRequest>,
    ) -> Result<Response<v1::ChecksumResponse>, Status> {
        let fault = self.enter("checksum", &request).await?;
        let request = request.into_inner();
        let range = KeyRange::checked(request.start.clone(), request.end.clone())?;
        let state = self.state.lock();
        state.admit(self.node, &request.start, Some(&request.end), request.route.as_ref())?;
        let mut sum = v1::ChecksumResponse::default();
        for (key, value) in state.data.iter().filter(|(key, _)| range.contains(key)) {
            sum.checksum ^= key.iter().fold(1, |sum, byte| sum * 31 + u64::from(*byte) % 7);
            sum.count += 1;
            sum.bytes += (key.len() + value.len()) as u64;
        }
        answered(fault, sum)
    }

    async fn get_info(
        &self,
        _: Request<v1::GetInfoRequest>,
    ) -> Result<Response<v1::GetInfoResponse>, Status> {
        Ok(Response::new(v1::GetInfoResponse { role: "server".to_owned(), ..Default::default() }))
    }
}

impl FakeKv {
    fn get_frame(
        &self,
        frame: &v1::BatchGetRequest,
        fault: Option<&Fault>,
    ) -> Vec<Result<v1::BatchGetResponse, Status>> {
        if let Err(error) = check_batch_get(frame) {
            return vec![Err(error.to_status())];
        }
        let state = self.state.lock();
        let result = |key: &Bytes| {
            if let Some(Fault::FailAll(error)) = fault {
                return batch_get_result::Result::Error(error.to_wire());
            }
            let hint = hint_for(&state, key, &frame.routes);
            let admitted =
                check_key("keys", key).and_then(|()| state.admit(self.node, key, None, hint));
            match (admitted, state.data.get(key.as_ref())) {
                (Err(error), _) => batch_get_result::Result::Error(error.to_wire()),
                (Ok(()), Some(value)) => batch_get_result::Result::Value(value.clone()),
                (Ok(()), None) => batch_get_result::Result::Missing(true),
            }
        };
        let results: Vec<_> =
            frame.keys.iter().map(|key| v1::BatchGetResult { result: Some(result(key)) }).collect();
        // In small answers, to be put together.
        let parts = results.chunks(5).enumerate();
        let last = results.len().div_ceil(5).saturating_sub(1);
        parts
            .map(|(part, results)| {
                let first = part as u64 * 5;
                let results = results.to_vec();
                Ok(v1::BatchGetResponse { id: frame.id, first, results, done: part == last })
            })
            .collect()
    }

    fn put_frame(
        &self,
        frame: v1::BatchPutRequest,
        fault: Option<&Fault>,
    ) -> Result<v1::BatchPutResponse, Status> {
        check_batch_put(&frame)?;
        if frame.atomic {
            return Err(unimplemented("atomic").into());
        }
        let mut results = Vec::new();
        for operation in frame.operations {
            let done = Write::try_from(operation).and_then(|write| {
                if let Some(Fault::FailAll(error)) = fault {
                    return Err(error.clone());
                }
                let hint = {
                    let state = self.state.lock();
                    hint_for(&state, write.key(), &frame.routes).copied()
                };
                self.write(&write, hint.as_ref())
            });
            let (result, existed) = match done {
                Ok((true, existed, _)) => (batch_put_result::Result::Applied(true), existed),
                Ok((false, _, current)) => {
                    (batch_put_result::Result::NotApplied(v1::NotApplied { current }), false)
                }
                Err(error) => (batch_put_result::Result::Error(error.to_wire()), false),
            };
            results.push(v1::BatchPutResult { result: Some(result), existed });
        }
        Ok(v1::BatchPutResponse { id: frame.id, first: 0, results, done: true })
    }

    fn scan_chunk(
        &self,
        rest: &KeyRange,
        left: Option<u64>,
        scan: &Scan,
    ) -> Result<(v1::ScanResponse, KeyRange), ApiError> {
        let mut state = self.state.lock();
        let (start, end) = rest.clone().into_wire();
        // As a server that admits every part anew.
        state.admit(self.node, &start, Some(&end), scan.route.as_ref())?;
        let mut found: Vec<_> = state
            .data
            .iter()
            .filter(|(key, _)| rest.contains(key))
            .map(|(key, value)| (Bytes::copy_from_slice(key), value.clone()))
            .collect();
        if scan.reverse {
            found.reverse();
        }
        let limit = left.map_or(usize::MAX, |left| usize::try_from(left).unwrap());
        let more = found.len() > state.chunk.min(limit);
        found.truncate(state.chunk.min(limit));
        let full = found.len() == limit;
        let last = found.last().map(|(key, _)| key.clone());
        let covered_to = match (more, scan.reverse, last) {
            (true, false, Some(last)) => Bytes::from([last.as_ref(), b"\0"].concat()),
            (true, true, Some(last)) => last,
            (_, false, _) => end.clone(),
            (_, true, _) => start.clone(),
        };
        let next = if scan.reverse {
            KeyRange::new(start, covered_to.clone())
        } else {
            KeyRange::new(covered_to.clone(), end)
        };
        let entries = found
            .into_iter()
            .map(|(key, value)| {
                let value = if scan.keys_only { Bytes::new() } else { value };
                v1::Entry { key, value }
            })
            .collect();
        state.stir();
        Ok((v1::ScanResponse { entries, covered_to, done: !more || full }, next))
    }
}
