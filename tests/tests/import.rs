//! A real data set goes in and comes out the same, by every way to look at it.
//!
//! Invariant under test: count, checksum, prefix scan, reverse scan and point reads agree with the
//! source.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;

use anyhow::Result;
use futures::TryStreamExt as _;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use vmemkv_tests::{Dataset, Dev};

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");

fn parse_lines(text: &str) -> Vec<(String, String)> {
    let parse = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        (line["key"].as_str().unwrap().to_owned(), line["value"].as_str().unwrap().to_owned())
    };
    text.lines().map(parse).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_imported_package_index_agrees_with_its_source() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let source = Dataset::packages(7, 60_500);
    let file = folder.path().join("packages.jsonl");
    source.write_jsonl(&file)?;
    let dev = Dev::start(VMEMKV, &folder.path().join("data"))?;
    dev.ok(&["import", file.to_str().unwrap()])?;

    let sum = source.checksum();
    assert_eq!(dev.ok(&["count"])?, sum.count.to_string());
    assert_eq!(dev.ok(&["checksum"])?, format!("{:016x}", sum.checksum));

    let expected: Vec<(String, String)> = source
        .entries
        .iter()
        .filter(|(key, _)| key.starts_with("lib"))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    assert!(expected.len() > 1000);
    let exported = folder.path().join("lib.jsonl");
    dev.ok(&["export", exported.to_str().unwrap(), "--prefix", "lib"])?;
    let lines = std::fs::read_to_string(&exported)?;
    assert!(parse_lines(&lines) == expected, "export of a prefix");

    let client = dev.client().await?;
    let prefix: Vec<_> = client.scan(..).prefix("lib").stream().try_collect().await?;
    let prefix: Vec<_> = prefix
        .into_iter()
        .map(|entry: vmemkv_client::Entry| {
            (
                String::from_utf8(entry.key.to_vec()).unwrap(),
                String::from_utf8(entry.value.to_vec()).unwrap(),
            )
        })
        .collect();
    assert!(prefix == expected, "prefix scan");

    let reverse: Vec<_> = client.scan(..).reverse().stream().try_collect().await?;
    let found: BTreeMap<&[u8], &[u8]> =
        reverse.iter().map(|entry| (&entry.key[..], &entry.value[..])).collect();
    assert!(reverse.is_sorted_by(|a, b| a.key > b.key), "reverse order");
    assert!(
        found.len() == source.entries.len()
            && source.entries.iter().all(|(key, value)| found[key.as_bytes()] == value.as_bytes()),
        "reverse scan"
    );

    let mut random = StdRng::seed_from_u64(11);
    let keys: Vec<&String> = source.entries.keys().collect();
    for _ in 0..1000 {
        let key = keys[random.random_range(0..keys.len())];
        let value = client.get(key).await?;
        assert!(value.as_deref() == Some(source.entries[key].as_bytes()), "{key}");
    }
    assert_eq!(client.get("no/such-package").await?, None);
    // One key of each kind by the command line, too.
    let key = keys[keys.len() / 2];
    assert_eq!(&dev.ok(&["get", key])?, &source.entries[key]);
    assert_eq!(dev.run(&["get", "no/such-package"])?.status.code(), Some(3));
    Ok(())
}
