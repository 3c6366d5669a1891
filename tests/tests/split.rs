//! Splits of shards under load: by hand and by size, with and without `kill -9`.
//!
//! Invariants under test: the map is a partition of the key space whenever it is asked for; whatever
//! was acknowledged is there; a client sees a split neither as an error nor as a gap or a duplicate;
//! an operation that had begun ends after any restart, in the way that the server had decided.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::TryStreamExt as _;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::task::JoinHandle;
use vmemkv_client::{Client, Entry, Operation};
use vmemkv_proto::v1;
use vmemkv_tests::Dev;

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");
const WRITERS: usize = 4;
/// How many splits each test makes, at least.
const SPLITS: usize = 20;
/// A limit that a few entries reach.
const SMALL: u64 = 12 << 10;
/// How long an operation may take to end, and a shard to be split, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn seed() -> u64 {
    let given = std::env::var("SPLIT_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| rand::random::<u64>() & 0xffff_ffff);
    println!("SPLIT_SEED={seed}");
    seed
}

/// The number of a writer's key, spread over the key space.
fn key(writer: usize, number: u64) -> String {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    format!("{spread:04x}-{writer}-{number:06}")
}

fn value(key: &str) -> String {
    format!("{key}:{}", "v".repeat(1000 + key.len() % 7))
}

/// What is known of what was written.
#[derive(Clone, Default)]
struct Load {
    /// Per writer: every smaller number was acknowledged.
    acknowledged: Arc<[AtomicU64; WRITERS]>,
    /// Failures from now on are the fault of the test.
    killing: Arc<AtomicBool>,
}

impl Load {
    /// The keys that were acknowledged by now.
    fn keys(&self) -> Vec<String> {
        let writers = self.acknowledged.iter().enumerate();
        let keys = writers.flat_map(|(writer, acknowledged)| {
            (0..acknowledged.load(Ordering::SeqCst)).map(move |number| key(writer, number))
        });
        keys.collect()
    }

    /// Starts writers; they end with the first failure, which is an error unless a kill caused it.
    fn start(&self, client: &Client) -> Vec<JoinHandle<Result<()>>> {
        self.killing.store(false, Ordering::SeqCst);
        let writers = (0..WRITERS).map(|writer| {
            let (load, client) = (self.clone(), client.clone());
            tokio::spawn(async move {
                match load.write(&client, writer).await {
                    Err(_) if load.killing.load(Ordering::SeqCst) => Ok(()),
                    ended => ended.with_context(|| format!("writer {writer}")),
                }
            })
        });
        writers.collect()
    }

    /// Writes one key after the other, sometimes several in a frame, and reads some back.
    async fn write(&self, client: &Client, writer: usize) -> Result<()> {
        let acknowledged = &self.acknowledged[writer];
        while !self.killing.load(Ordering::SeqCst) {
            let number = acknowledged.load(Ordering::SeqCst);
            let count = if number.is_multiple_of(3) { 8 } else { 1 };
            let keys: Vec<_> = (number..number + count).map(|number| key(writer, number)).collect();
            if let [key] = &keys[..] {
                client.put(key, value(key)).await?;
            } else {
                let puts = keys.iter().map(|key| Operation::put(key, value(key)));
                for result in client.batch_put(puts).await {
                    result?;
                }
            }
            acknowledged.store(number + count, Ordering::SeqCst);
            if number.is_multiple_of(5) {
                let found = client.get(&keys[0]).await?;
                ensure!(found == Some(value(&keys[0]).into()), "{} is not there", keys[0]);
                for (key, found) in keys.iter().zip(client.batch_get(&keys).await) {
                    ensure!(found? == Some(value(key).into()), "{key} is not there");
                }
            }
        }
        Ok(())
    }
}

async fn joined(writers: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    for writer in writers {
        writer.await??;
    }
    Ok(())
}

/// The map, which must be a partition of the key space with growing epochs.
async fn partition(client: &Client) -> Result<Vec<v1::ShardStatus>> {
    let mut admin = client.admin().await?;
    let mut shards: Vec<v1::ShardStatus> = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListShardsRequest { page_token, page_size: 1000, node_id: 0 };
        let page = admin.list_shards(request).await?.into_inner();
        shards.extend(page.shards);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    let mut from = bytes::Bytes::new();
    for (at, shard) in shards.iter().enumerate() {
        ensure!(shard.start == from, "a gap or an overlap before shard {}", shard.shard_id);
        ensure!(shard.end.is_empty() == (at + 1 == shards.len()), "shard {} ends", shard.shard_id);
        from = shard.end.clone();
    }
    ensure!(!shards.is_empty(), "no shards");
    Ok(shards)
}

async fn operations(client: &Client, active_only: bool) -> Result<Vec<v1::Operation>> {
    let request = v1::ListOperationsRequest { active_only, page_size: 1000, ..Default::default() };
    Ok(client.admin().await?.list_operations(request).await?.into_inner().operations)
}

/// Waits until nothing runs.
async fn settled(client: &Client) -> Result<()> {
    let began = Instant::now();
    loop {
        let active = operations(client, true).await?;
        partition(client).await?;
        if active.is_empty() {
            return Ok(());
        }
        ensure!(began.elapsed() < PATIENCE, "operations do not end: {active:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// All entries, forward, in reverse, and forward in pieces by limit: no gap, no duplicate.
async fn check_all(client: &Client, load: &Load) -> Result<usize> {
    let before = load.keys();
    let forward: Vec<Entry> = client.scan(..).stream().try_collect().await?;
    let mut reverse: Vec<Entry> = client.scan(..).reverse().stream().try_collect().await?;
    reverse.reverse();
    let mut pieces: Vec<Entry> = Vec::new();
    loop {
        let from = pieces.last().map_or_else(Vec::new, |last| [&last.key[..], &[0]].concat());
        let piece = client.scan(from..).limit(97).stream();
        let piece: Vec<Entry> = piece.try_collect().await?;
        let ended = piece.len() < 97;
        pieces.extend(piece);
        if ended {
            break;
        }
    }
    for (how, entries) in [("forward", &forward), ("reverse", &reverse), ("pieces", &pieces)] {
        let ordered = entries.windows(2).find(|pair| pair[0].key >= pair[1].key);
        ensure!(ordered.is_none(), "{how}: out of order or twice: {ordered:?}");
        let found: BTreeMap<&[u8], &[u8]> =
            entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
        for key in &before {
            let is = found.get(key.as_bytes());
            ensure!(is == Some(&value(key).as_bytes()), "{how}: {key} was lost: {is:?}");
        }
        for entry in entries {
            let key = std::str::from_utf8(&entry.key)?;
            ensure!(entry.value == value(key).as_bytes(), "{how}: {key} was never so");
        }
    }
    Ok(forward.len())
}

async fn connect(dev: &Dev) -> Result<Client> {
    let builder = Client::builder().address(&dev.router);
    Ok(builder.deadline(Duration::from_secs(20)).connect().await?)
}

fn start(data: &Path, shard_max_bytes: u64) -> Result<Dev> {
    let limit = shard_max_bytes.to_string();
    let by_size = (shard_max_bytes < 1 << 30).to_string();
    let environment = [
        ("VMEMKV_SERVER__ENGINE__SHARD_MAX_BYTES", &*limit),
        ("VMEMKV_ROUTER__SPLIT_BY_SIZE", &*by_size),
    ];
    Dev::start_with(VMEMKV, data, &[], &environment)
}

/// A shard and a key strictly within it, in the part of the key space that is written to.
fn choose(shards: &[v1::ShardStatus], random: &mut StdRng) -> (u64, String) {
    let key = format!("{:04x}", random.random_range(1..0xffff));
    let holds = |shard: &&v1::ShardStatus| {
        shard.start < key && (shard.end.is_empty() || key.as_bytes() < &shard.end[..])
    };
    let shard = shards.iter().find(holds).map_or(shards[0].shard_id, |shard| shard.shard_id);
    (shard, key)
}

/// The key of a call: mostly given, else the server's.
fn maybe(key: String, random: &mut StdRng) -> Option<bytes::Bytes> {
    random.random_bool(0.7).then(|| key.into())
}

/// `kill -9` amid the load. A writer that has failed before is an error.
async fn kill(dev: Dev, load: &Load, writers: Vec<JoinHandle<Result<()>>>) -> Result<()> {
    load.killing.store(true, Ordering::SeqCst);
    dev.kill()?;
    for writer in writers {
        if !writer.is_finished() {
            // It tries again until its deadline.
            writer.abort();
        }
        match writer.await {
            Ok(ended) => ended?,
            Err(error) => ensure!(error.is_cancelled(), "{error}"),
        }
    }
    Ok(())
}

/// Begins a split as a client of the API does.
async fn split(client: &Client, shard_id: u64, key: Option<bytes::Bytes>) -> Result<u64> {
    let request = v1::SplitShardRequest { shard_id, key };
    Ok(client.admin().await?.split_shard(request).await?.into_inner().operation_id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_splits_without_an_error() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut random = StdRng::seed_from_u64(seed());
    let dev = start(&folder.path().join("data"), 1 << 40)?;
    let (client, load) = (connect(&dev).await?, Load::default());
    let writers = load.start(&client);
    let scanner = {
        let (client, load) = (client.clone(), load.clone());
        tokio::spawn(async move {
            let mut scans = 0;
            while !load.killing.load(Ordering::SeqCst) {
                check_all(&client, &load).await?;
                scans += 1;
            }
            anyhow::Ok(scans)
        })
    };
    // The same through the router as a proxy: it routes, this caller does not.
    let proxied = {
        let channel = client.router_channel().await?;
        let (load, mut kv) = (load.clone(), v1::kv_client::KvClient::new(channel));
        tokio::spawn(async move {
            while !load.killing.load(Ordering::SeqCst) {
                let known = load.keys();
                let mut answers = kv.scan(v1::ScanRequest::default()).await?.into_inner();
                let mut found: Vec<bytes::Bytes> = Vec::new();
                while let Some(answer) = answers.message().await? {
                    found.extend(answer.entries.into_iter().map(|entry| entry.key));
                }
                ensure!(found.is_sorted_by(|a, b| a < b), "the proxy repeats or mixes entries");
                for key in known {
                    let key = bytes::Bytes::from(key);
                    ensure!(found.binary_search(&key).is_ok(), "the proxy lost {key:?}");
                }
            }
            anyhow::Ok(())
        })
    };
    let before = partition(&client).await?.len();
    let mut splits = 0;
    while splits < SPLITS {
        let (shard_id, key) = choose(&partition(&client).await?, &mut random);
        if splits % 2 == 0 {
            let ended = split(&client, shard_id, maybe(key, &mut random)).await;
            match ended {
                Ok(_) => settled(&client).await?,
                // A shard that holds one key yet, or none.
                Err(error) if error.to_string().contains("no key splits") => continue,
                Err(error) => return Err(error),
            }
        } else {
            let id = shard_id.to_string();
            let text = dev.ok(&["shard", "split", &id, "--key", &key, "--json"])?;
            let done: serde_json::Value = serde_json::from_str(&text)?;
            ensure!(done["phase"] == "done" && done["shard_id"] == shard_id, "{text}");
        }
        splits += 1;
        tokio::time::sleep(Duration::from_millis(random.random_range(0..100))).await;
    }
    load.killing.store(true, Ordering::SeqCst);
    joined(writers).await?;
    let scans = scanner.await??;
    proxied.await??;
    assert_eq!(partition(&client).await?.len(), before + SPLITS);
    let entries = check_all(&client, &load).await?;
    println!("{entries} entries, {scans} rounds of scans");
    // What cannot be split is said, with the exit status of a failure.
    let refused = dev.run(&["shard", "split", "1"])?;
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(1) && text.contains("no shard 1"), "{text}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn m11_splits_by_hand_survive_kill_9_at_any_moment() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut random = StdRng::seed_from_u64(seed());
    let load = Load::default();
    let mut begun: Vec<u64> = Vec::new();
    let mut interrupted = 0;
    let mut round = 0;
    // Also until a kill has met a split for sure: most that do are resumed before anybody can look.
    while begun.len() < SPLITS || (interrupted == 0 && round < 5 * SPLITS) {
        round += 1;
        ensure!(round < 10 * SPLITS, "few splits begin: {}", begun.len());
        let dev = start(&data, 1 << 40)?;
        let client = connect(&dev).await?;
        partition(&client).await?;
        // What the last run had begun ends in this one.
        interrupted += operations(&client, true).await?.len();
        settled(&client).await?;
        check_ends(&client, &begun).await?;
        if round % 4 == 1 {
            check_all(&client, &load).await?;
        }
        let writers = load.start(&client);
        tokio::time::sleep(Duration::from_millis(random.random_range(20..100))).await;
        let (shard_id, key) = choose(&partition(&client).await?, &mut random);
        let mut calling = {
            let client = client.clone();
            let key = maybe(key, &mut random);
            tokio::spawn(async move { split(&client, shard_id, key).await })
        };
        // From before the call arrives to after the end of the split.
        let moment = Duration::from_micros(random.random_range(0..40_000));
        let mut called = None;
        if random.random_bool(0.8) {
            called = Some((&mut calling).await?);
        }
        tokio::time::sleep(moment).await;
        kill(dev, &load, writers).await?;
        if called.is_none() {
            // Without an end the kill came first.
            let ended = tokio::time::timeout(Duration::from_millis(100), &mut calling).await;
            called = ended.ok().transpose()?;
        }
        match called {
            Some(Ok(operation_id)) => begun.push(operation_id),
            Some(Err(_)) | None => calling.abort(),
        }
    }
    let dev = start(&data, 1 << 40)?;
    let client = connect(&dev).await?;
    settled(&client).await?;
    check_ends(&client, &begun).await?;
    ensure!(interrupted > 0, "no kill has met a split: {round} rounds");
    let entries = check_all(&client, &load).await?;
    println!(
        "{} splits, {interrupted} interrupted, {round} rounds, {entries} entries",
        begun.len()
    );
    Ok(())
}

/// Operations whose begin was acknowledged have ended, well, and their halves are in the map or have
/// been split themselves.
async fn check_ends(client: &Client, begun: &[u64]) -> Result<()> {
    let known = operations(client, false).await?;
    let shards = partition(client).await?;
    for operation_id in begun {
        let found = known.iter().find(|known| known.operation_id == *operation_id);
        let operation = found.with_context(|| format!("operation {operation_id} is unknown"))?;
        ensure!(operation.phase == "done", "{operation:?}");
        for half in &operation.new_shard_ids {
            let there = shards.iter().any(|shard| shard.shard_id == *half);
            let split = known.iter().any(|known| known.shard_id == *half && known.phase == "done");
            ensure!(there || split, "shard {half} of operation {operation_id} is nowhere");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn splits_by_size_survive_kill_9_at_any_moment() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut random = StdRng::seed_from_u64(seed());
    let load = Load::default();
    let began = Instant::now();
    let (mut shards, mut round, mut interrupted) = (1, 0, 0);
    // What ran when it was last looked at, before the kill.
    let mut ran: BTreeSet<u64> = BTreeSet::new();
    while shards <= SPLITS || (interrupted == 0 && round < 5 * SPLITS) {
        round += 1;
        ensure!(began.elapsed() < 4 * PATIENCE, "only {shards} shards");
        let dev = start(&data, SMALL)?;
        let client = connect(&dev).await?;
        let active = operations(&client, true).await?;
        interrupted += usize::from(active.iter().any(|known| ran.contains(&known.operation_id)));
        let writers = load.start(&client);
        shards = partition(&client).await?.len();
        // Until one split, or a few, have ended and another has begun, and a moment longer.
        let waiting = Instant::now();
        let enough = shards + random.random_range(0..4);
        while waiting.elapsed() < Duration::from_secs(5) {
            let active = operations(&client, true).await?;
            ran = active.iter().map(|known| known.operation_id).collect();
            if !ran.is_empty() && partition(&client).await?.len() >= enough {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros(random.random_range(0..20_000))).await;
        kill(dev, &load, writers).await?;
    }
    ensure!(interrupted > 0, "no kill has met a split: {round} rounds");
    let dev = start(&data, 1 << 40)?;
    let client = connect(&dev).await?;
    settled(&client).await?;
    let found = partition(&client).await?;
    if found.len() <= SPLITS {
        bail!("{} shards", found.len());
    }
    let failed: Vec<_> = operations(&client, false).await?;
    let failed: Vec<_> = failed.iter().filter(|operation| operation.phase != "done").collect();
    ensure!(failed.is_empty(), "{failed:?}");
    let entries = check_all(&client, &load).await?;
    println!(
        "{} shards after {round} kills, {interrupted} for sure amid a split, {entries} entries",
        found.len()
    );
    Ok(())
}
