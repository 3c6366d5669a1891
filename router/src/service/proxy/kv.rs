//! The service: each method in the words of the dispatcher.

use futures::stream::{StreamExt as _, TryStreamExt as _};
use tonic::{Request, Response, Status, Streaming};
use vmemkv_proto::convert::Scan;
use vmemkv_proto::v1;

use super::time_left::time_left;
use super::{Answers, CHECKSUM_STEP, Proxy, STEP, batch_scan, bounded, frames, refuse_ttl};

#[tonic::async_trait]
impl v1::kv_server::Kv for Proxy {
    type BatchGetStream = Answers<v1::BatchGetResponse>;
    type BatchPutStream = Answers<v1::BatchPutResponse>;
    type ScanStream = Answers<v1::ScanResponse>;
    type BatchScanStream = Answers<v1::BatchScanResponse>;
    type WatchStream = Answers<v1::WatchResponse>;

    async fn get(
        &self,
        request: Request<v1::GetRequest>,
    ) -> Result<Response<v1::GetResponse>, Status> {
        let deadline = bounded(time_left(&request));
        Ok(Response::new(self.dispatcher.get(request.into_inner(), deadline).await?))
    }

    async fn put(
        &self,
        request: Request<v1::PutRequest>,
    ) -> Result<Response<v1::PutResponse>, Status> {
        let deadline = bounded(time_left(&request));
        let request = request.into_inner();
        refuse_ttl(request.ttl_ms)?;
        Ok(Response::new(self.dispatcher.put(request, deadline).await?))
    }

    async fn delete(
        &self,
        request: Request<v1::DeleteRequest>,
    ) -> Result<Response<v1::DeleteResponse>, Status> {
        let deadline = bounded(time_left(&request));
        Ok(Response::new(self.dispatcher.delete(request.into_inner(), deadline).await?))
    }

    async fn delete_range(
        &self,
        request: Request<v1::DeleteRangeRequest>,
    ) -> Result<Response<v1::DeleteRangeResponse>, Status> {
        let deadline = bounded(time_left(&request));
        let answer = self.dispatcher.delete_whole_range(request.into_inner(), deadline).await?;
        Ok(Response::new(answer))
    }

    async fn batch_get(
        &self,
        request: Request<Streaming<v1::BatchGetRequest>>,
    ) -> Result<Response<Self::BatchGetStream>, Status> {
        let deadline = time_left(&request);
        let (dispatcher, stop) = (self.dispatcher.clone(), self.stop.clone());
        Ok(Response::new(frames::gets(dispatcher, stop, request.into_inner(), deadline)))
    }

    async fn batch_put(
        &self,
        request: Request<Streaming<v1::BatchPutRequest>>,
    ) -> Result<Response<Self::BatchPutStream>, Status> {
        let deadline = time_left(&request);
        let (dispatcher, stop) = (self.dispatcher.clone(), self.stop.clone());
        Ok(Response::new(frames::puts(dispatcher, stop, request.into_inner(), deadline)))
    }

    async fn scan(
        &self,
        request: Request<v1::ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let deadline = time_left(&request);
        let request = request.into_inner();
        // A wrong request is told at once, before the stream begins.
        Scan::try_from(request.clone())?;
        let chunks = self.dispatcher.scan(request, deadline, STEP).map_err(Status::from);
        Ok(Response::new(self.stop.end(chunks).boxed()))
    }

    async fn batch_scan(
        &self,
        request: Request<Streaming<v1::BatchScanRequest>>,
    ) -> Result<Response<Self::BatchScanStream>, Status> {
        let deadline = time_left(&request);
        let requests = request.into_inner();
        let answers = batch_scan::serve(self.dispatcher.clone(), requests, deadline);
        Ok(Response::new(self.stop.end(answers).boxed()))
    }

    async fn watch(
        &self,
        request: Request<v1::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let deadline = time_left(&request);
        let request = request.into_inner();
        let events = self.dispatcher.watch(request, deadline).await?.map_err(Status::from);
        Ok(Response::new(self.stop.end(events).boxed()))
    }

    async fn increment(
        &self,
        request: Request<v1::IncrementRequest>,
    ) -> Result<Response<v1::IncrementResponse>, Status> {
        let deadline = bounded(time_left(&request));
        Ok(Response::new(self.dispatcher.increment(request.into_inner(), deadline).await?))
    }

    async fn checksum(
        &self,
        request: Request<v1::ChecksumRequest>,
    ) -> Result<Response<v1::ChecksumResponse>, Status> {
        let deadline = time_left(&request);
        let request = request.into_inner();
        Ok(Response::new(self.dispatcher.checksum(request, deadline, CHECKSUM_STEP).await?))
    }

    async fn get_info(
        &self,
        _: Request<v1::GetInfoRequest>,
    ) -> Result<Response<v1::GetInfoResponse>, Status> {
        Ok(Response::new(self.info()))
    }
}
