//! Scans across shards that split, merge and move: every entry once, in order.

#![allow(clippy::unwrap_used)]

mod fake;

use std::time::Duration;

use futures::TryStreamExt as _;
use tonic::Status;
use vmemkv_client::{Client, ErrorKind};

use fake::{Fake, Fault};

async fn keys(client: &Client, limit: u64, reverse: bool) -> Vec<String> {
    let scan = client.scan(..).limit(limit).keys_only();
    let scan = if reverse { scan.reverse() } else { scan };
    let entries = scan.collect().await.unwrap();
    entries.iter().map(|entry| String::from_utf8(entry.key.to_vec()).unwrap()).collect()
}

/// Reads everything by scans of at most `limit` entries, each from where the last one ended.
async fn paged(client: &Client, limit: u64, reverse: bool) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let scan = match (all.last(), reverse) {
            (None, _) => client.scan(..),
            (Some(last), false) => client.scan(format!("{last}\0")..),
            (Some(last), true) => client.scan(..last.clone()),
        };
        let scan = if reverse { scan.reverse() } else { scan };
        let part = scan.limit(limit).collect().await.unwrap();
        assert!(part.len() as u64 <= limit);
        if part.is_empty() {
            return all;
        }
        for entry in part {
            let key = String::from_utf8(entry.key.to_vec()).unwrap();
            assert_eq!(entry.value, format!("value of {key}"));
            all.push(key);
        }
    }
}

#[tokio::test]
async fn every_entry_comes_once_while_shards_change() {
    for (watched, churn) in [(false, 0), (false, 1), (true, 1), (false, 3)] {
        let fake = Fake::start(3, watched).await;
        let names = fake.fill(150);
        fake.cut(&["key00010", "key00050", "key00051", "key00120"]);
        let client = Client::connect(fake.router.as_str()).await.unwrap();
        fake.state.lock().churn = churn;
        for reverse in [false, true] {
            let mut expected = names.clone();
            if reverse {
                expected.reverse();
            }
            assert_eq!(keys(&client, 0, reverse).await, expected);
            for limit in [1, 7, 1000] {
                assert_eq!(paged(&client, limit, reverse).await, expected, "limit {limit}");
                let first = keys(&client, limit, reverse).await;
                let count = expected.len().min(usize::try_from(limit).unwrap());
                assert_eq!(first, expected[..count], "limit {limit}, churn {churn}");
            }
        }
        assert!(churn == 0 || fake.state.lock().version > 50);
    }
}

#[tokio::test]
async fn bounds_and_prefixes_are_kept() {
    let fake = Fake::start(2, true).await;
    let names = fake.fill(100);
    fake.cut(&["key00030", "key00060"]);
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    let read = |scan: vmemkv_client::Scan| async move {
        let entries = scan.collect().await.unwrap();
        entries.iter().map(|e| String::from_utf8(e.key.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(read(client.scan("key00020".."key00070")).await, names[20..70]);
    assert_eq!(read(client.scan("key00020"..="key00030")).await, names[20..=30]);
    assert_eq!(read(client.scan(..).prefix("key0003")).await, names[30..40]);
    assert_eq!(read(client.scan("key00035"..).prefix("key0003")).await, names[35..40]);
    let reversed: Vec<_> = names[25..40].iter().rev().cloned().collect();
    assert_eq!(read(client.scan("key00025".."key00040").reverse()).await, reversed);
    assert_eq!(read(client.scan("b".."a")).await, [""; 0]);
    assert_eq!(read(client.scan("x"..)).await, [""; 0]);
    assert_eq!(client.scan(..).keys_only().limit(1).collect().await.unwrap()[0].value, "");
}

#[tokio::test]
async fn a_scan_goes_on_after_errors() {
    let fake = Fake::start(2, true).await;
    let names = fake.fill(60);
    fake.cut(&["key00030"]);
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    for _ in 0..3 {
        fake.fault("scan", Fault::Refuse(Status::unavailable("restarting")));
        fake.fault("scan", Fault::ApplyThen(Status::unavailable("gone")));
    }
    assert_eq!(keys(&client, 0, false).await, names);
    fake.fault("scan", Fault::Refuse(Status::data_loss("damaged")));
    let error = client.scan(..).collect().await.unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::DataLoss, "damaged"));
}

#[tokio::test]
async fn a_slow_reader_may_take_its_time() {
    let fake = Fake::start(1, true).await;
    let names = fake.fill(20);
    let builder = Client::builder().addresses(fake.router.as_str());
    let client = builder.deadline(Duration::from_millis(200)).connect().await.unwrap();
    let mut entries = client.scan(..).stream();
    let mut count = 0;
    while entries.try_next().await.unwrap().is_some() {
        count += 1;
        if count % 5 == 0 {
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
    assert_eq!(count, names.len());
    let late = client.scan(..).deadline(Duration::ZERO).collect().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
    fake.fault("scan", Fault::Hang);
    let late = client.scan(..).collect().await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::DeadlineExceeded);
}

#[tokio::test]
async fn ranges_are_summed_up_and_removed_across_shards() {
    let fake = Fake::start(3, false).await;
    fake.fill(100);
    fake.cut(&["key00030", "key00060"]);
    let client = Client::connect(fake.router.as_str()).await.unwrap();
    let all = client.checksum(..).await.unwrap();
    assert_eq!((all.count, all.bytes), (100, 100 * (8 + 17)));
    let (low, high) = (client.checksum(.."key00045").await.unwrap(), client.checksum("key00045"..));
    assert_eq!(low.checksum ^ high.await.unwrap().checksum, all.checksum);
    fake.state.lock().split(b"key00080");
    assert_eq!(client.count(..).await.unwrap(), 100);
    assert_eq!(client.delete_range("key00010".."key00075").await.unwrap(), 65);
    assert_eq!(client.count(..).await.unwrap(), 35);
    assert_eq!(client.delete_range("b".."a").await.unwrap(), 0);
    assert_eq!(client.delete_range(..).await.unwrap(), 35);
}

#[tokio::test]
async fn unread_scans_do_not_stall_their_connection() {
    let fake = Fake::start(1, true).await;
    {
        let mut state = fake.state.lock();
        for n in 0..200 {
            state.data.insert(format!("key{n:05}").into(), vec![1; 64 << 10].into());
        }
        state.chunk = 16;
    }
    let builder = Client::builder().addresses(fake.router.as_str()).connections_per_node(1);
    let client = builder.connect().await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..50 {
        let mut scan = client.scan(..).stream();
        scan.try_next().await.unwrap();
        unread.push(scan);
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let quick = client.with_deadline(Duration::from_secs(1));
    assert!(quick.get("key00100").await.unwrap().is_some());
    assert_eq!(unread.pop().unwrap().try_collect::<Vec<_>>().await.unwrap().len(), 199);
}
