//! Keys and values, one at a time and in ranges.

use std::process::Stdio;

use crate::service::{Run, Service, write};

#[test]
fn keys_are_written_read_and_removed() {
    let service = Service::start();
    assert!(service.run(&["get", "user:1"]).fails(3).contains("user:1"));
    assert_eq!(service.run(&["put", "user:1", "Ada"]).ok(), "ok\n");
    assert_eq!(service.run(&["get", "user:1"]).ok(), "Ada\n");
    let got = service.run(&["get", "user:1", "--json"]).json();
    assert_eq!((got["key"].as_str(), got["value"].as_str()), (Some("user:1"), Some("Ada")));
    let missing = service.run(&["get", "none", "--json"]);
    let error: serde_json::Value = serde_json::from_str(&missing.err).unwrap();
    assert_eq!((missing.code, error["exit"].as_i64()), (Some(3), Some(3)));

    assert!(service.run(&["put", "user:1", "B", "--if-absent"]).fails(1).contains("Ada"));
    service.run(&["put", "user:2", "B", "--if-present"]).fails(1);
    assert_eq!(service.run(&["put", "user:1", "B", "--if-value", "Ada"]).ok(), "ok\n");
    let refused = service.run(&["put", "user:1", "C", "--if-value", "Ada", "--json"]);
    let answer: serde_json::Value = serde_json::from_str(&refused.out).unwrap();
    assert_eq!((refused.code, answer["current"].as_str()), (Some(1), Some("B")));
    service.run(&["delete", "user:1", "--if-value", "Ada"]).fails(1);
    assert_eq!(service.run(&["delete", "user:1"]).ok(), "deleted\n");
    assert_eq!(service.run(&["delete", "user:1", "--json"]).json()["existed"], false);

    let ttl = service.run(&["put", "a", "b", "--ttl", "5s"]).fails(1);
    assert!(ttl.contains("UNIMPLEMENTED"), "{ttl}");
    assert!(service.run(&["put", "", "b"]).fails(2).contains("key"));
}

#[test]
fn bytes_are_never_printed_lossily() {
    let service = Service::start();
    service.run(&["put", "00ff", "fe", "--encoding", "hex"]).ok();
    assert_eq!(service.run(&["get", "00ff", "--encoding", "hex"]).ok(), "fe\n");
    assert_eq!(service.run(&["get", "AP8=", "--encoding", "base64"]).ok(), "/g==\n");
    for command in [&["scan"][..], &["export", "-"]] {
        let error = service.run(command).fails(1);
        assert!(error.contains("--encoding hex"), "{error}");
    }
    assert_eq!(service.run(&["scan", "--encoding", "hex"]).ok(), "00ff\tfe\n");

    let bytes: Vec<u8> = (0..=255).collect();
    write(&service.path("in"), &bytes);
    service.run(&["put", "file", "--file", "in"]).ok();
    service.run(&["get", "file", "--file", "out"]).ok();
    assert_eq!(std::fs::read(service.path("out")).unwrap(), bytes);
    service.run_with_input(&["put", "stdin", "--file", "-"], b"from stdin").ok();
    assert_eq!(service.run(&["get", "stdin"]).ok(), "from stdin\n");
}

#[test]
fn ranges_are_scanned_counted_and_summed() {
    let service = Service::start();
    assert_eq!(service.run(&["count"]).ok(), "0\n");
    assert_eq!(service.run(&["checksum"]).ok(), "0000000000000000\n");
    for (key, value) in [("a", "1"), ("b:1", "2"), ("b:2", "3"), ("c", "4")] {
        service.run(&["put", key, value]).ok();
    }
    let scan = |flags: &[&str]| service.run(&[&["scan"], flags].concat()).ok();
    assert_eq!(scan(&[]), "a\t1\nb:1\t2\nb:2\t3\nc\t4\n");
    assert_eq!(scan(&["--prefix", "b:"]), "b:1\t2\nb:2\t3\n");
    assert_eq!(scan(&["--start", "b:2", "--keys-only"]), "b:2\nc\n");
    assert_eq!(scan(&["--end", "b:1"]), "a\t1\n");
    assert_eq!(scan(&["--reverse", "--limit", "1"]), "c\t4\n");
    assert_eq!(
        scan(&["--prefix", "b:", "--limit", "1", "--json"]),
        "{\"key\":\"b:1\",\"value\":\"2\"}\n"
    );
    service.run(&["scan", "--start", "b", "--end", "a"]).fails(2);

    assert_eq!(service.run(&["count", "--prefix", "b:"]).ok(), "2\n");
    assert_eq!(service.run(&["count", "--json"]).json()["count"], 4);
    let sum = |flags: &[&str]| {
        let digits = service.run(&[&["checksum"], flags].concat()).ok();
        assert_eq!(digits.len(), 17);
        u64::from_str_radix(digits.trim(), 16).unwrap()
    };
    assert_eq!(sum(&[]), sum(&["--end", "b:2"]) ^ sum(&["--start", "b:2"]));
    let all = service.run(&["checksum", "--json"]).json();
    assert_eq!((all["count"].as_u64(), all["bytes"].as_u64()), (Some(4), Some(12)));
}

#[test]
fn a_reader_that_leaves_ends_a_scan_quietly() {
    let service = Service::start();
    let mut lines = String::new();
    for n in 0..20_000 {
        lines.push_str(&format!("{{\"key\":\"{n}\",\"value\":\"{}\"}}\n", "v".repeat(50)));
    }
    service.run_with_input(&["import", "-"], lines.as_bytes()).ok();
    for command in [&["scan"][..], &["export", "-"], &["scan", "--json"]] {
        let mut child =
            service.command(command).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let ended = Run::of(&child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.err.as_str()), (Some(0), ""), "{command:?}");
    }
}

#[test]
fn the_cluster_and_its_nodes_are_shown() {
    let service = Service::start();
    service.run(&["put", "a", "1"]).ok();
    let status = service.run(&["status", "--json"]).json();
    assert_eq!(status["healthy"], true);
    assert!(service.run(&["status"]).ok().starts_with("healthy\n"));
    let nodes = service.run(&["node", "list", "--json"]).json();
    let node = nodes["nodes"][0]["node_id"].as_u64().unwrap().to_string();
    let shards = service.run(&["shard", "list", "--json"]).json();
    assert_eq!(shards["shards"].as_array().unwrap().len(), 1);
    assert_eq!(service.run(&["router", "list", "--json"]).json()["routers"][0]["leader"], true);
    service.run(&["operation", "list"]).ok();
    for job in ["stats", "checkpoint", "reorganize", "defragment", "verify"] {
        let by_router = service.run(&["node", job, "--json"]).json();
        assert_eq!(by_router["node_id"].as_u64().unwrap().to_string(), node, "{job}");
        service.run(&["node", job, &node]).ok();
        service.run(&["node", job, "--addr", service.address("server")]).ok();
        service.run(&["node", job, "1"]).fails(1);
    }
    let ordered = service.run(&["node", "defragment", "--in-order", "--json"]).json();
    assert_eq!((&ordered["bytes_moved"], &ordered["short_of_space"]), (&0.into(), &false.into()));
    let both = service.run(&["node", "defragment", "--in-order", "--min-dead-ratio", "0.5"]);
    assert!(both.code == Some(2) && both.err.contains("--min-dead-ratio"), "{both:?}");
    let defragment = &service.run(&["node", "stats", "--json"]).json()["defragment"];
    assert_eq!(defragment["order_runs"], 1);
    let changed = service.run(&["node", "log-level", "debug", "--json"]).json();
    assert_eq!(changed["previous"], "warn");
    let error = service.run(&["node", "log-level", "loud"]).fails(1);
    assert!(error.contains("INVALID_ARGUMENT"), "{error}");
    let shard = shards["shards"][0]["shard_id"].as_u64().unwrap().to_string();
    let split = service.run(&["shard", "split", &shard, "--key", "b", "--json"]).json();
    assert_eq!((&split["phase"], &split["key_hex"]), (&"done".into(), &"62".into()));
    let listed = service.run(&["shard", "list", "--json"]).json();
    let ids: Vec<_> = listed["shards"].as_array().unwrap().iter().map(|s| &s["shard_id"]).collect();
    assert_eq!(ids, [&split["left_shard_id"], &split["right_shard_id"]]);
    let error = service.run(&["shard", "split", &shard]).fails(1);
    assert!(error.contains("NOT_FOUND"), "{error}");
    let left = ids[0].to_string();
    let error = service.run(&["shard", "split", &left, "--key", "c"]).fails(1);
    assert!(error.contains("INVALID_ARGUMENT") && error.contains("key"), "{error}");
    let begun = service.run(&["shard", "split", &left, "--key", "a", "--no-wait", "--json"]).json();
    assert!(begun["operation_id"].as_u64().unwrap() > split["operation_id"].as_u64().unwrap());
    service.run(&["shard", "list"]).ok();
    for later in [
        &["shard", "merge", "1", "2"][..],
        &["shard", "move", "1", "--to", "2"],
        &["node", "drain", "1"],
        &["node", "undrain", "1"],
        &["node", "remove", "1"],
        &["router", "add", "a:1", "--address", "b:1"],
        &["router", "remove", "1"],
        &["operation", "cancel", "1"],
        &["watch"],
    ] {
        service.run(later).fails(1);
    }
    // A server answers for data, and says that it is no router.
    let server = service.address("server");
    assert_eq!(service.run(&["get", "a", "--addr", server]).ok(), "1\n");
    service.run(&["status", "--addr", server]).fails(2);
}
