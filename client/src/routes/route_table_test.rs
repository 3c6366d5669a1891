//! The watch: full copies, changes, gaps between them, another cluster.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::stream::{iter, pending};

use super::*;
use crate::routes::MapUpdates;

/// Gives the streams it was made with, one after the other, then silence.
#[derive(Debug, Default)]
struct Script {
    streams: Mutex<Vec<Vec<v1::WatchShardMapResponse>>>,
    asked: Mutex<Vec<(u64, u64)>>,
    locates: AtomicUsize,
}

#[async_trait]
impl RouteSource for Script {
    async fn locate(&self, _key: Bytes, _min_version: u64) -> Result<v1::LocateResponse> {
        self.locates.fetch_add(1, Ordering::SeqCst);
        Err(Error::refused(ErrorKind::Unavailable, "no map"))
    }

    async fn watch(&self, from_version: u64, cluster_id: u64) -> Result<MapUpdates> {
        self.asked.lock().push((from_version, cluster_id));
        let mut streams = self.streams.lock();
        if streams.is_empty() {
            return Ok(pending().boxed());
        }
        Ok(iter(streams.remove(0).into_iter().map(Ok)).boxed())
    }
}

fn update(kind: Kind, from: u64, to: u64, cluster: u64, epoch: u64) -> v1::WatchShardMapResponse {
    let shard = v1::Shard { shard_id: epoch, epoch, address: "a:1".into(), ..Default::default() };
    v1::WatchShardMapResponse {
        kind: kind as i32,
        map_version: to,
        from_version: from,
        shards: vec![shard],
        done: true,
        cluster_id: cluster,
    }
}

async fn run(streams: Vec<Vec<v1::WatchShardMapResponse>>) -> (RouteTable, Arc<Script>) {
    let script = Arc::new(Script { streams: Mutex::new(streams), ..Script::default() });
    let table = RouteTable::new(Arc::clone(&script) as _, Jitter::new(Some(1)));
    tokio::time::sleep(Duration::from_secs(30)).await;
    (table, script)
}

#[tokio::test(start_paused = true)]
async fn changes_follow_a_full_copy_and_duplicates_do_nothing() {
    let (table, script) = run(vec![
        vec![update(Kind::Full, 0, 5, 7, 3), update(Kind::Delta, 5, 6, 7, 4)],
        vec![update(Kind::Delta, 5, 6, 7, 4), update(Kind::Delta, 2, 4, 7, 2)],
    ])
    .await;
    assert_eq!(table.cached(b"k").unwrap().shard().epoch, 4);
    assert_eq!(*script.asked.lock(), [(0, 0), (6, 7), (6, 7)]);
}

#[tokio::test(start_paused = true)]
async fn a_gap_asks_for_a_full_copy() {
    let (table, script) = run(vec![
        vec![update(Kind::Full, 0, 5, 7, 3), update(Kind::Delta, 8, 9, 7, 6)],
        vec![update(Kind::Full, 0, 9, 7, 6)],
    ])
    .await;
    assert_eq!(table.cached(b"k").unwrap().shard().epoch, 6);
    assert_eq!(*script.asked.lock(), [(0, 0), (0, 7), (9, 7)]);
}

#[tokio::test(start_paused = true)]
async fn another_cluster_starts_anew() {
    let (table, script) =
        run(vec![vec![update(Kind::Full, 0, 5, 7, 30)], vec![update(Kind::Full, 0, 1, 8, 2)]])
            .await;
    assert_eq!(table.cached(b"k").unwrap().shard().epoch, 2);
    assert_eq!(*script.asked.lock(), [(0, 0), (5, 7), (1, 8)]);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_look_up_learns_of_its_failure() {
    let (table, script) = run(Vec::new()).await;
    let key = Bytes::from("k");
    let both = futures::future::join(
        table.route(&key, Deadline::none()),
        table.route(&key, Deadline::none()),
    );
    let (a, b) = both.await;
    assert!(a.is_err() && b.is_err());
    assert_eq!(script.locates.load(Ordering::SeqCst), 1);
    assert!(table.shared.flights.lock().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_the_table() {
    let (table, script) = run(vec![vec![]]).await;
    let weak = Arc::downgrade(&table.shared);
    drop(table);
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(weak.upgrade().is_none());
    assert_eq!(Arc::strong_count(&script), 1);
}
