//! `kill -9` in the middle of an import, twenty times, at random moments.
//!
//! Invariant under test: after a restart every entry that was acknowledged is there, and none is
//! there that was not sent; the import goes on where it stopped and ends with everything.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_client::Client;
use vmemkv_tests::{Dataset, Dev};

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");
const KILLS: usize = 20;
const WRITERS: usize = 4;

fn seed() -> u64 {
    let given = std::env::var("KILL_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_nanos() as u64 & 0xffff_ffff)
    });
    println!("KILL_SEED={seed}");
    seed
}

fn counter_key(writer: usize, number: u64) -> String {
    format!("~writer{writer}/{number:08}")
}

/// Puts ascending numbers until it fails; `acknowledged` counts those that were.
async fn write(client: Client, writer: usize, from: u64, acknowledged: Arc<AtomicU64>) {
    for number in from.. {
        let put = client.put(counter_key(writer, number), format!("value {number}"));
        if put.await.is_err() {
            return;
        }
        acknowledged.store(number + 1, Ordering::SeqCst);
    }
}

/// How many lines an interrupted import had acknowledged, by its state file.
fn resumed_lines(state: &std::path::Path) -> Result<usize> {
    if !state.exists() {
        return Ok(0);
    }
    let state: serde_json::Value = serde_json::from_slice(&std::fs::read(state)?)?;
    Ok(state["lines"].as_u64().unwrap_or(0) as usize)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_survives_kill_9() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut random = StdRng::seed_from_u64(seed());
    let source = Dataset::packages(random.random(), 60_500);
    let file = folder.path().join("packages.jsonl");
    source.write_jsonl(&file)?;
    let state = folder.path().join("packages.jsonl.vmemkv-import");
    let text = std::fs::read_to_string(&file)?;
    let lines: Vec<String> = text
        .lines()
        .map(|line| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            line["key"].as_str().unwrap().to_owned()
        })
        .collect();
    let acknowledged: Vec<Arc<AtomicU64>> = (0..WRITERS).map(|_| Arc::default()).collect();
    for round in 0..KILLS {
        let dev = Dev::start(VMEMKV, &data)?;
        check(&dev, &source, &lines[..resumed_lines(&state)?], &acknowledged, round).await?;
        let mut import = dev.command(&["import", file.to_str().unwrap(), "--resume"]);
        import.args(["--batch", "64"]).stderr(std::process::Stdio::null());
        let mut import = import.spawn()?;
        let client = Client::builder()
            .address(&dev.router)
            .deadline(Duration::from_secs(5))
            .connect()
            .await?;
        let writers: Vec<_> = acknowledged
            .iter()
            .enumerate()
            .map(|(writer, acknowledged)| {
                let from = acknowledged.load(Ordering::SeqCst);
                tokio::spawn(write(client.clone(), writer, from, Arc::clone(acknowledged)))
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(random.random_range(20..700))).await;
        dev.kill()?;
        // It waits for its service until its own deadline; its state file is what counts.
        let _ = import.kill();
        import.wait()?;
        for writer in writers {
            writer.abort();
            // Cancelled, or ended by the failure that the kill caused.
            let _ = writer.await;
        }
    }
    let dev = Dev::start(VMEMKV, &data)?;
    check(&dev, &source, &lines[..resumed_lines(&state)?], &acknowledged, KILLS).await?;
    dev.ok(&["import", file.to_str().unwrap(), "--resume"])?;
    let sum = source.checksum();
    assert_eq!(dev.ok(&["count", "--end", "~"])?, sum.count.to_string());
    assert_eq!(dev.ok(&["checksum", "--end", "~"])?, format!("{:016x}", sum.checksum));
    let written: u64 = acknowledged.iter().map(|n| n.load(Ordering::SeqCst)).sum();
    assert!(written > 100, "the writers got to write: {written}");
    Ok(())
}

/// Everything acknowledged is there and right; nothing else is.
async fn check(
    dev: &Dev,
    source: &Dataset,
    imported: &[String],
    acknowledged: &[Arc<AtomicU64>],
    round: usize,
) -> Result<()> {
    use futures::TryStreamExt as _;
    let client = dev.client().await?;
    let entries: Vec<vmemkv_client::Entry> = client.scan(..).stream().try_collect().await?;
    let found: BTreeMap<&[u8], &[u8]> =
        entries.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
    for key in imported {
        let value = found.get(key.as_bytes());
        assert!(value == Some(&source.entries[key].as_bytes()), "round {round}: import lost {key}");
    }
    for (writer, acknowledged) in acknowledged.iter().enumerate() {
        for number in 0..acknowledged.load(Ordering::SeqCst) {
            let value = found.get(counter_key(writer, number).as_bytes());
            let expected = format!("value {number}");
            assert!(value == Some(&expected.as_bytes()), "round {round}: lost {writer}/{number}");
        }
    }
    for (key, value) in &found {
        let key = std::str::from_utf8(key)?;
        let known = match key.strip_prefix("~writer") {
            Some(rest) => {
                let number: u64 = rest.split_once('/').unwrap_or_default().1.parse()?;
                *value == format!("value {number}").as_bytes()
            }
            None => source.entries.get(key).map(String::as_bytes) == Some(*value),
        };
        assert!(known, "round {round}: {key} was never sent like that");
    }
    println!(
        "round {round}: {} entries, {} of the import acknowledged",
        found.len(),
        imported.len()
    );
    Ok(())
}
