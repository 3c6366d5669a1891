//! BatchGet and BatchPut: order, parts, errors of single keys, limits.

use bytes::Bytes;
use prost::Message as _;
use vmemkv_proto::v1;
use vmemkv_proto::v1::{batch_get_result, batch_operation, batch_put_result};
use vmemkv_proto::{ApiError, ErrorKind};

use crate::harness::{Fixture, error, fill, put_operation, value};

fn keys(id: u64, keys: impl IntoIterator<Item = String>) -> v1::BatchGetRequest {
    let keys = keys.into_iter().map(Bytes::from).collect();
    v1::BatchGetRequest { id, keys, routes: Vec::new() }
}

async fn batch_get(
    fixture: &Fixture,
    frames: Vec<v1::BatchGetRequest>,
) -> Result<Vec<v1::BatchGetResponse>, tonic::Status> {
    let mut client = fixture.client().await;
    let mut answers = client.batch_get(tokio_stream::iter(frames)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

async fn batch_put(
    fixture: &Fixture,
    frames: Vec<v1::BatchPutRequest>,
) -> Result<Vec<v1::BatchPutResponse>, tonic::Status> {
    let mut client = fixture.client().await;
    let mut answers = client.batch_put(tokio_stream::iter(frames)).await?.into_inner();
    let mut all = Vec::new();
    while let Some(answer) = answers.message().await? {
        all.push(answer);
    }
    Ok(all)
}

fn frame(id: u64, operations: Vec<v1::BatchOperation>) -> v1::BatchPutRequest {
    v1::BatchPutRequest { id, operations, ..v1::BatchPutRequest::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_arrive_at_a_stock_client() {
    let fixture = Fixture::start().await;
    fill(&mut fixture.client().await, "k", 64, 256 << 10).await;
    let names = (0..64).map(|index| format!("k{index:05}"));
    let answers = batch_get(&fixture, vec![keys(5, names)]).await.unwrap();
    let mut next = 0;
    for (index, answer) in answers.iter().enumerate() {
        assert!(answer.encoded_len() < 4 << 20);
        assert_eq!((answer.id, answer.first), (5, next));
        assert_eq!(answer.done, index + 1 == answers.len());
        for result in &answer.results {
            let Some(batch_get_result::Result::Value(value)) = &result.result else {
                panic!("no value for key {next}");
            };
            assert_eq!(value.len(), 256 << 10);
            assert!(value.iter().all(|byte| u64::from(*byte) == next));
            next += 1;
        }
    }
    assert_eq!(next, 64);
    assert!(answers.len() > 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_key_fails_itself_only() {
    let fixture = Fixture::with_shards(&[(1, "a", "m")]).await;
    fill(&mut fixture.client().await, "k", 1, 100).await;
    let names = ["k00000", "", "zzz", "b", "k00000"].map(str::to_owned);
    let answers = batch_get(&fixture, vec![keys(1, names)]).await.unwrap();
    let results: Vec<_> = answers.into_iter().flat_map(|answer| answer.results).collect();
    let kinds: Vec<_> = results
        .into_iter()
        .map(|result| match result.result.unwrap() {
            batch_get_result::Result::Value(value) => Ok(Some(value.len())),
            batch_get_result::Result::Missing(true) => Ok(None),
            batch_get_result::Result::Missing(false) => panic!("not missing"),
            batch_get_result::Result::Error(error) => Err(ApiError::from(error).kind),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            Ok(Some(100)),
            Err(ErrorKind::InvalidArgument),
            Err(ErrorKind::FailedPrecondition),
            Ok(None),
            Ok(Some(100)),
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_are_applied_and_answered_in_order() {
    let fixture = Fixture::start().await;
    let frames = (0..200).map(|id| {
        let operations = (0..5).map(|n| put_operation("same", format!("{id}-{n}"))).collect();
        frame(id, operations)
    });
    let answers = batch_put(&fixture, frames.collect()).await.unwrap();
    let ids: Vec<_> = answers.iter().map(|answer| answer.id).collect();
    assert_eq!(ids, (0..200).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer.done && answer.results.len() == 5));
    assert_eq!(value(&mut fixture.client().await, "same").await, Some("199-4".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn results_of_a_put_frame_say_what_happened() {
    let fixture = Fixture::with_shards(&[(1, "a", "m")]).await;
    let delete = |key: &'static str| v1::BatchOperation {
        operation: Some(batch_operation::Operation::Delete(v1::DeleteOperation {
            key: key.into(),
            condition: None,
        })),
    };
    let mut if_absent = put_operation("b", "2");
    let mut expiring = put_operation("c", "3");
    if let Some(batch_operation::Operation::Put(put)) = &mut if_absent.operation {
        let is = v1::condition::Condition::IfAbsent(true);
        put.condition = Some(v1::Condition { condition: Some(is) });
    }
    if let Some(batch_operation::Operation::Put(put)) = &mut expiring.operation {
        put.ttl_ms = Some(0);
    }
    let operations = vec![
        put_operation("b", "1"),
        if_absent,
        delete("b"),
        delete("b"),
        expiring,
        put_operation("z", "elsewhere"),
        v1::BatchOperation { operation: None },
    ];
    let answers = batch_put(&fixture, vec![frame(9, operations)]).await.unwrap();
    assert_eq!(answers.len(), 1);
    let results = &answers[0].results;
    let is = |at: usize| results[at].result.clone().unwrap();
    let failed = |at: usize| match is(at) {
        batch_put_result::Result::Error(error) => ApiError::from(error),
        other => panic!("{other:?}"),
    };
    let current = Some("1".into());
    assert_eq!(is(0), batch_put_result::Result::Applied(true));
    assert_eq!(is(1), batch_put_result::Result::NotApplied(v1::NotApplied { current }));
    assert_eq!((is(2), results[2].existed), (batch_put_result::Result::Applied(true), true));
    assert_eq!((is(3), results[3].existed), (batch_put_result::Result::Applied(true), false));
    assert_eq!(failed(4).kind, ErrorKind::Unimplemented);
    assert!(failed(4).message.contains("ttl_ms"));
    assert_eq!(failed(5).kind, ErrorKind::FailedPrecondition);
    assert!(failed(5).not_applied && failed(5).routing.is_some());
    assert_eq!(failed(6).kind, ErrorKind::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_conditions_met_come_in_parts() {
    let fixture = Fixture::start().await;
    fill(&mut fixture.client().await, "k", 12, 512 << 10).await;
    let operations = (0..12)
        .map(|index| {
            let mut operation = put_operation(&format!("k{index:05}"), "x");
            if let Some(batch_operation::Operation::Put(put)) = &mut operation.operation {
                let is = v1::condition::Condition::IfAbsent(true);
                put.condition = Some(v1::Condition { condition: Some(is) });
            }
            operation
        })
        .collect();
    let answers = batch_put(&fixture, vec![frame(1, operations)]).await.unwrap();
    assert!(answers.iter().all(|answer| answer.encoded_len() < 4 << 20));
    assert_eq!(answers.iter().map(|answer| answer.results.len()).sum::<usize>(), 12);
    assert_eq!(answers.iter().filter(|answer| answer.done).count(), 1);
    assert!(answers.last().unwrap().done);
}

#[tokio::test(flavor = "multi_thread")]
async fn frames_beyond_the_limits_are_refused() {
    let fixture = Fixture::start().await;
    let many = keys(1, (0..4097).map(|index| format!("k{index}")));
    let refused = error(batch_get(&fixture, vec![many]).await);
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    assert!(refused.message.contains("4096"), "{refused}");

    let operations = (0..4097).map(|index| put_operation(&format!("k{index}"), "v")).collect();
    let refused = error(batch_put(&fixture, vec![frame(1, operations)]).await);
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    assert!(refused.message.contains("4096"), "{refused}");

    let large = vec![0; 3 << 20];
    let operations = vec![put_operation("a", large.clone()), put_operation("b", large)];
    let refused = error(batch_put(&fixture, vec![frame(1, operations)]).await);
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    assert!(refused.message.contains("4194304"), "{refused}");
    assert_eq!(value(&mut fixture.client().await, "a").await, None);

    let alone = frame(1, vec![put_operation("a", vec![0; 8 << 20])]);
    let answers = batch_put(&fixture, vec![alone]).await.unwrap();
    assert!(answers[0].done);
}

#[tokio::test(flavor = "multi_thread")]
async fn earlier_frames_are_answered_before_a_refusal() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    let atomic = v1::BatchPutRequest { atomic: true, ..frame(2, vec![put_operation("b", "2")]) };
    let frames = vec![frame(1, vec![put_operation("a", "1")]), atomic];
    let mut answers = client.batch_put(tokio_stream::iter(frames)).await.unwrap().into_inner();
    let first = answers.message().await.unwrap().unwrap();
    assert!(first.id == 1 && first.done);
    let refused = error(answers.message().await);
    assert_eq!(refused.kind, ErrorKind::Unimplemented);
    assert!(refused.message.contains("atomic"));
    assert_eq!(value(&mut client, "b").await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_behind_a_refused_frame_is_applied() {
    let fixture = Fixture::start().await;
    let mut client = fixture.client().await;
    for round in 0..20 {
        let (a, z) = (format!("a{round}"), format!("z{round}"));
        let bad = if round % 2 == 0 {
            v1::BatchPutRequest { atomic: true, ..frame(2, vec![put_operation("b", "2")]) }
        } else {
            frame(2, (0..4097).map(|_| put_operation("b", "2")).collect())
        };
        let frames = vec![
            frame(1, vec![put_operation(&a, "1")]),
            bad,
            frame(3, vec![put_operation(&z, "3")]),
        ];
        let mut answers = client.batch_put(tokio_stream::iter(frames)).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(first.id == 1 && first.done);
        assert!(error(answers.message().await).not_applied);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(value(&mut client, &a).await, Some("1".into()));
        assert_eq!(value(&mut client, "b").await, None);
        assert_eq!(value(&mut client, &z).await, None, "round {round}");

        let many = keys(2, (0..4097).map(|_| a.clone()));
        let frames = vec![keys(1, [a.clone()]), many, keys(3, [a])];
        let mut answers = client.batch_get(tokio_stream::iter(frames)).await.unwrap().into_inner();
        let first = answers.message().await.unwrap().unwrap();
        assert!(first.id == 1 && first.done);
        assert_eq!(error(answers.message().await).kind, ErrorKind::InvalidArgument);
    }
}
