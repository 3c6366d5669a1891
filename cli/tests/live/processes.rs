//! The processes: starting, ports, settings, the environment of a pod, ending.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::service::{Run, Service, signal, vmemkv, wait, write};

#[test]
fn dev_says_where_it_is_and_keeps_the_data() {
    let service = Service::start();
    for name in ["router", "router_http", "router_raft", "server", "server_http"] {
        let address = service.address(name);
        assert!(address.starts_with("127.0.0.1:") && !address.ends_with(":0"), "{name} {address}");
        TcpStream::connect(address).unwrap();
    }
    assert!(service.ready["data"].as_str().unwrap().ends_with("/data"));
    assert!(service.ready["pid"].as_u64().unwrap() > 0);
    service.run(&["put", "kept", "1"]).ok();
    let http = service.address("router_http").to_owned();
    let wrong = vmemkv().args(["--addr", &http, "get", "kept"]).output().unwrap();
    let error = Run::of(&wrong).fails(1);
    assert!(error.contains("does not speak gRPC"), "{error}");
    let dir = service.stop();

    let server = dir.path().join("data/server");
    let verified = vmemkv().args(["engine", "verify", "--json"]).arg(&server).output().unwrap();
    let verified = Run::of(&verified).json();
    assert_eq!(
        (verified["ok"].as_bool(), verified["problems"].as_array().unwrap().len()),
        (Some(true), 0)
    );
    let inspected = vmemkv().args(["engine", "inspect", "--json"]).arg(&server).output().unwrap();
    assert!(Run::of(&inspected).json()["identity"]["node_id"].as_u64().unwrap() > 0);
    let text = vmemkv().args(["engine", "inspect"]).arg(&server).output().unwrap();
    assert!(Run::of(&text).ok().contains("write-ahead log"));
    let missing = vmemkv().args(["engine", "verify"]).arg(dir.path()).output().unwrap();
    Run::of(&missing).fails(1);
    // The folder of `dev` is not the server's.
    let above = vmemkv().args(["engine", "verify"]).arg(dir.path().join("data")).output().unwrap();
    let error = Run::of(&above).fails(1);
    assert!(error.contains(&format!("the server's is {}", server.display())), "{error}");

    let mut service = Service::start_in(dir, &[]);
    assert_eq!(service.run(&["get", "kept"]).ok(), "1\n");
    let open = vmemkv().args(["engine", "verify"]).arg(service.path("data/server")).output();
    assert!(Run::of(&open.unwrap()).fails(1).contains("node verify"));
    // kill -9 loses nothing that was acknowledged.
    service.run(&["put", "kept", "2"]).ok();
    service.signal("KILL");
    assert!(!service.wait().success());
}

#[test]
fn a_taken_port_or_directory_is_named() {
    let service = Service::start();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (flag, other) in [("--router-port", "--server-port"), ("--server-port", "--router-port")] {
        let output = vmemkv()
            .args(["dev", flag, &port, other, "0", "--data"])
            .arg(service.path("other"))
            .output()
            .unwrap();
        let error = Run::of(&output).fails(1);
        assert!(error.contains(&port) && error.contains(flag), "{error}");
    }
    let output = vmemkv()
        .args(["dev", "--router-port", "0", "--server-port", "0", "--data"])
        .arg(service.path("data"))
        .output()
        .unwrap();
    let error = Run::of(&output).fails(1);
    assert!(error.contains("in use") && error.contains("--data"), "{error}");
    let output = vmemkv().args(["dev", "--router-port", "65535"]).output().unwrap();
    assert!(Run::of(&output).fails(2).contains("65533"));
}

/// Half of a data directory is not one: that is said at once, and what to do.
#[test]
fn a_server_without_the_routers_data_is_named_at_once() {
    for missing in ["server", "router"] {
        let service = Service::start();
        service.run(&["put", "kept", "1"]).ok();
        let dir = service.stop();
        std::fs::remove_dir_all(dir.path().join("data").join(missing)).unwrap();
        let since = Instant::now();
        let output = vmemkv()
            .args(["dev", "--router-port", "0", "--server-port", "0", "--data"])
            .arg(dir.path().join("data"))
            .output()
            .unwrap();
        let error = Run::of(&output).fails(1);
        assert!(error.contains("router/ and server/"), "{missing}: {error}");
        assert!(error.contains("node ") || error.contains("cluster"), "{missing}: {error}");
        assert!(since.elapsed() < Duration::from_secs(30), "{missing}: {:?}", since.elapsed());
    }
}

#[test]
fn signals_end_it_gracefully_or_at_once() {
    for name in ["TERM", "INT"] {
        let mut service = Service::start();
        service.run(&["put", "a", "1"]).ok();
        service.signal(name);
        assert!(service.wait().success(), "{name}");
    }
}

#[test]
fn initial_boundaries_cut_the_first_shards() {
    let dir = tempfile::tempdir().unwrap();
    let cuts = dir.path().join("cuts");
    write(&cuts, "67\n70\n");
    let service = Service::start_in(dir, &["--initial-boundaries", cuts.to_str().unwrap()]);
    let shards = service.run(&["shard", "list", "--json"]).json();
    let starts: Vec<_> = shards["shards"]
        .as_array()
        .unwrap()
        .iter()
        .map(|shard| shard["start_hex"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(starts, ["", "67", "70"]);
    for key in ["a", "h", "z"] {
        service.run(&["put", key, key]).ok();
    }
    assert_eq!(service.run(&["scan", "--keys-only"]).ok(), "a\nh\nz\n");
    assert_eq!(service.run(&["scan", "--keys-only", "--reverse"]).ok(), "z\nh\na\n");
    assert_eq!(service.run(&["count"]).ok(), "3\n");
}

/// A router and a server as processes of their own, in the environment of a pod.
#[test]
fn a_router_and_a_server_run_apart() {
    let dir = tempfile::tempdir().unwrap();
    let mut router = vmemkv()
        .args(["router", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"])
        .args(["--raft-listen", "127.0.0.1:0", "--json", "--data"])
        .arg(dir.path().join("router"))
        .env("VMEMKV_ROUTER_SERVICE_HOST", "10.0.0.1")
        .env("VMEMKV_PORT_7400_TCP_ADDR", "10.0.0.1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = |child: &mut std::process::Child| -> serde_json::Value {
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let address = ready(&mut router)["router"].as_str().unwrap().to_owned();
    let config = dir.path().join("server.toml");
    write(&config, "[server]\nlisten = \"127.0.0.1:1\"\nhttp_listen = \"127.0.0.1:0\"\n");
    let mut server = vmemkv()
        .args(["server", "--json", "--label", "zone=a", "--routers", &address])
        .arg("--config")
        .arg(&config)
        .arg("--data")
        .arg(dir.path().join("server"))
        .env("VMEMKV_SERVER_PORT_7410_TCP_ADDR", "10.0.0.1")
        .env("VMEMKV_SERVER__LISTEN", "127.0.0.1:0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let node = ready(&mut server)["node_id"].as_u64().unwrap();
    let run = |arguments: &[&str]| {
        Run::of(&vmemkv().args(["--addr", &address]).args(arguments).output().unwrap())
    };
    let since = Instant::now();
    while run(&["put", "a", "1"]).code != Some(0) {
        assert!(since.elapsed().as_secs() < 30, "the server does not serve");
    }
    let nodes = run(&["node", "list", "--json"]).json();
    assert_eq!(nodes["nodes"][0]["node_id"].as_u64(), Some(node));
    assert_eq!(nodes["nodes"][0]["labels"]["zone"], "a");
    for child in [&mut server, &mut router] {
        signal(child.id(), "TERM");
        assert!(wait(child).success());
    }
}

#[test]
fn wrong_settings_stop_a_start() {
    let start = |variable: &str, value: &str| {
        Run::of(&vmemkv().arg("server").env(variable, value).output().unwrap()).fails(2)
    };
    let error = start("VMEMKV_SERVER__LISEN", "1");
    assert!(error.contains("did you mean VMEMKV_SERVER__LISTEN?"), "{error}");
    let error = start("VMEMKV_SERVER__LISTEN", "nowhere");
    assert!(error.contains("VMEMKV_SERVER__LISTEN"), "{error}");
    let error = start("VMEMKV_SERVER__ENGINE__JOB_THREADS", "0");
    assert!(error.contains("job_threads"), "{error}");
    let shown = vmemkv()
        .args(["config", "--changed", "--json"])
        .env("VMEMKV_SERVER__GRACE_MS", "5")
        .output()
        .unwrap();
    let shown = Run::of(&shown).json();
    assert_eq!(shown["server.grace_ms"]["value"], 5);
    assert_eq!(shown["server.grace_ms"]["from"], "VMEMKV_SERVER__GRACE_MS");
    assert_eq!(shown.as_object().unwrap().len(), 1);
}

#[test]
fn nobody_there_is_said_at_once() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for command in [&["get", "a"][..], &["status"], &["node", "stats"], &["import", "-"]] {
        let output = vmemkv().args(["--addr", &nobody]).args(command).output().unwrap();
        let error = Run::of(&output).fails(1);
        assert!(error.contains(&nobody) && error.contains("vmemkv dev"), "{error}");
    }
}

#[test]
fn a_peer_that_says_nothing_does_not_hold_a_command() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let output =
        vmemkv().args(["--addr", &address, "--timeout", "500ms", "get", "a"]).output().unwrap();
    Run::of(&output).fails(1);
}

#[test]
fn pages_and_completions_are_made() {
    let dir = tempfile::tempdir().unwrap();
    Run::of(&vmemkv().arg("man").arg(dir.path()).output().unwrap()).ok();
    for page in ["vmemkv.1", "vmemkv-import.1", "vmemkv-node-stats.1"] {
        let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = Run::of(&vmemkv().args(["completions", shell]).output().unwrap()).ok();
        assert!(script.contains("checksum"), "{shell}");
    }
}
