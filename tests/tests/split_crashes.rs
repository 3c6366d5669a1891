//! A crash between any two steps of a split, of the router or of the server, at named places.
//!
//! Invariants under test: after a restart the split that had begun ends, the map is a partition of
//! the key space, and nothing that was acknowledged is lost. Built with `--features failpoints`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::TryStreamExt as _;
use serde_json::Value;
use vmemkv_client::{Client, Entry};
use vmemkv_failpoint::{EXIT_STATUS, VARIABLE};
use vmemkv_proto::v1;
use vmemkv_tests::vmemkv;

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the router ends, in the order of a split.
const IN_ROUTER: [&str; 7] = [
    "split.begin",
    "split.begin.logged",
    "split.begun",
    "split.order",
    "split.answered",
    "split.finish.logged",
    "split.ended",
];
/// Where the server ends.
const IN_SERVER: [&str; 6] = [
    "split.ordered",
    "split.executed",
    "split.answer",
    "split.map",
    "split.map.stored",
    "split.map.served",
];

/// A router or server; killed when dropped.
struct Process {
    child: Child,
    ready: Value,
}

impl Process {
    fn start(arguments: &[&str], data: &Path, place: Option<&str>) -> Result<Self> {
        let mut command = vmemkv(VMEMKV);
        command.env_remove(VARIABLE);
        command.args(arguments).arg("--json").arg("--data").arg(data);
        command.envs(place.map(|place| (VARIABLE, place)));
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdout = child.stdout.take().context("its standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let ready = serde_json::from_str(&line);
        // The handle first: whoever fails here leaves no process behind.
        let mut process = Self { child, ready: Value::Null };
        process.ready = ready.with_context(|| format!("{arguments:?} has said {line:?}"))?;
        Ok(process)
    }

    fn address(&self, name: &str) -> Result<String> {
        Ok(self.ready[name].as_str().with_context(|| format!("{name}: {}", self.ready))?.to_owned())
    }

    async fn ended(&mut self) -> Result<ExitStatus> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(began.elapsed() < PATIENCE, "it does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A router and a server.
struct Cluster {
    folder: PathBuf,
    router: Process,
    server: Process,
    /// Where the router listens, for the next one.
    addresses: [String; 3],
}

impl Cluster {
    fn start(folder: &Path, router_at: Option<&str>, server_at: Option<&str>) -> Result<Self> {
        let any = ["127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"].map(str::to_owned);
        let router = start_router(folder, &any, router_at)?;
        let addresses = ["router", "router_http", "router_raft"].map(|name| router.address(name));
        let [grpc, http, raft] = addresses;
        let addresses = [grpc?, http?, raft?];
        let server = start_server(folder, &addresses[0], server_at)?;
        Ok(Self { folder: folder.to_owned(), router, server, addresses })
    }

    fn restart_router(&mut self) -> Result<()> {
        self.router = start_router(&self.folder, &self.addresses, None)?;
        Ok(())
    }

    fn restart_server(&mut self) -> Result<()> {
        self.server = start_server(&self.folder, &self.addresses[0], None)?;
        Ok(())
    }

    async fn client(&self) -> Result<Client> {
        let builder = Client::builder().address(&self.addresses[0]).deadline(PATIENCE);
        Ok(builder.connect().await?)
    }
}

fn start_router(folder: &Path, addresses: &[String; 3], place: Option<&str>) -> Result<Process> {
    let [grpc, http, raft] = addresses;
    let arguments = ["router", "--listen", grpc, "--http-listen", http, "--raft-listen", raft];
    Process::start(&arguments, &folder.join("router"), place)
}

fn start_server(folder: &Path, router: &str, place: Option<&str>) -> Result<Process> {
    let any = "127.0.0.1:0";
    let arguments = ["server", "--listen", any, "--http-listen", any, "--routers", router];
    Process::start(&arguments, &folder.join("server"), place)
}

fn key(number: u64) -> String {
    let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48;
    format!("{spread:04x}-{number:06}")
}

fn value(number: u64) -> String {
    format!("value {number} {}", "v".repeat(number as usize % 300))
}

/// Writes one key after the other until it is told to stop; all below `acknowledged` were.
async fn write(client: Client, acknowledged: Arc<AtomicU64>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::SeqCst) {
        let number = acknowledged.load(Ordering::SeqCst);
        if client.put(key(number), value(number)).await.is_ok() {
            acknowledged.store(number + 1, Ordering::SeqCst);
        }
    }
}

/// The map, which must be a partition of the key space.
async fn partition(client: &Client) -> Result<Vec<v1::ShardStatus>> {
    let request = v1::ListShardsRequest { page_token: String::new(), page_size: 1000, node_id: 0 };
    let shards = client.admin().await?.list_shards(request).await?.into_inner().shards;
    let mut from = bytes::Bytes::new();
    for (at, shard) in shards.iter().enumerate() {
        ensure!(shard.start == from, "a gap or an overlap before shard {}", shard.shard_id);
        ensure!(shard.end.is_empty() == (at + 1 == shards.len()), "shard {} ends", shard.shard_id);
        from = shard.end.clone();
    }
    ensure!(!shards.is_empty(), "no shards");
    Ok(shards)
}

/// All operations, once none runs any more.
async fn settled(client: &Client) -> Result<Vec<v1::Operation>> {
    let began = Instant::now();
    loop {
        let request = v1::ListOperationsRequest { page_size: 1000, ..Default::default() };
        let listed = async {
            let mut admin = client.admin().await?;
            anyhow::Ok(admin.list_operations(request).await?.into_inner().operations)
        };
        match listed.await {
            Ok(all) if all.iter().all(|one| one.finished) => return Ok(all),
            other if began.elapsed() > PATIENCE => bail!("operations do not end: {other:?}"),
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn split(client: &Client) -> Result<()> {
    let shard_id = partition(client).await?[0].shard_id;
    let request = v1::SplitShardRequest { shard_id, key: Some("8000".into()) };
    client.admin().await?.split_shard(request).await?;
    Ok(())
}

/// What was acknowledged is there, once each.
async fn check_all(client: &Client, acknowledged: u64) -> Result<()> {
    let entries: Vec<Entry> = client.scan(..).stream().try_collect().await?;
    let ordered = entries.windows(2).all(|pair| pair[0].key < pair[1].key);
    ensure!(ordered, "a scan is out of order, or shows a key twice");
    let found: BTreeMap<&[u8], &[u8]> =
        entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
    for number in 0..acknowledged {
        let is = found.get(key(number).as_bytes());
        ensure!(is == Some(&value(number).as_bytes()), "{} was lost: {is:?}", key(number));
        if number.is_multiple_of(10) {
            let got = client.get(key(number)).await?;
            ensure!(got == Some(value(number).into()), "{} is not got", key(number));
        }
    }
    Ok(())
}

/// One crash, and all that must hold after it.
async fn crash_at(place: &str, in_router: bool) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (router_at, server_at) = if in_router { (Some(place), None) } else { (None, Some(place)) };
    let mut cluster = Cluster::start(folder.path(), router_at, server_at)?;
    let client = cluster.client().await?;
    let (acknowledged, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let writer = tokio::spawn(write(client.clone(), acknowledged.clone(), stop.clone()));
    let began = Instant::now();
    while acknowledged.load(Ordering::SeqCst) < 100 {
        ensure!(began.elapsed() < PATIENCE, "nothing can be written");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Whoever asks may be told nothing: the router ends.
    let asked = client.clone();
    let asked = tokio::spawn(async move { split(&asked).await });
    let victim = if in_router { &mut cluster.router } else { &mut cluster.server };
    let status = victim.ended().await.with_context(|| format!("{place} is not reached"))?;
    ensure!(status.code() == Some(EXIT_STATUS), "it has ended by itself: {status}");
    if in_router {
        cluster.restart_router()?;
    } else {
        partition(&client).await.context("while the server is down")?;
        cluster.restart_server()?;
    }
    let told = asked.await?;
    let operations = settled(&client).await?;
    let shards = partition(&client).await?;
    // The first place is before anything is agreed on; a caller that was told so knows it too.
    let begun = place != "split.begin";
    ensure!(operations.len() == usize::from(begun), "{operations:?}, told {told:?}");
    ensure!(shards.len() == 1 + usize::from(begun), "{shards:?}: {operations:?}");
    ensure!(operations.iter().all(|one| one.phase == "done"), "{operations:?}");
    // Writes go on, in both halves.
    let before = acknowledged.load(Ordering::SeqCst);
    let began = Instant::now();
    while acknowledged.load(Ordering::SeqCst) < before + 50 {
        ensure!(began.elapsed() < PATIENCE, "nothing can be written after the crash");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop.store(true, Ordering::SeqCst);
    writer.await?;
    check_all(&client, acknowledged.load(Ordering::SeqCst)).await?;
    if !begun {
        split(&client).await.context("the split is not asked for again")?;
        settled(&client).await?;
    }
    // And once more, from what is on disk.
    drop((cluster.router, cluster.server));
    let cluster = Cluster::start(folder.path(), None, None)?;
    let client = cluster.client().await?;
    ensure!(partition(&client).await?.len() == 2, "the split is forgotten");
    check_all(&client, acknowledged.load(Ordering::SeqCst)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_may_end_between_any_two_steps() -> Result<()> {
    for place in IN_ROUTER {
        println!("{place}");
        crash_at(place, true).await.context(place)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_may_end_between_any_two_steps() -> Result<()> {
    for place in IN_SERVER {
        println!("{place}");
        crash_at(place, false).await.context(place)?;
    }
    Ok(())
}
