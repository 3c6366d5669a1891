//! Bad input of each kind gives one clear error and changes nothing.
//!
//! Invariant under test: the error is one line that names the field, file, directory, port or
//! limit; the exit status says whose fault it was; the data is as before.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use anyhow::Result;
use vmemkv_client::ErrorKind;
use vmemkv_proto::v1;
use vmemkv_tests::{Dev, vmemkv};

const VMEMKV: &str = env!("CARGO_BIN_EXE_vmemkv-under-test");

/// The one line of a failure, which must contain all `words`.
fn one_error(output: &Output, status: i32, words: &[&str]) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("error")).collect();
    assert_eq!(errors.len(), 1, "one error: {text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in: {text}"));
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Runs a command that must end by itself.
fn ends(command: &mut Command) -> Result<Output> {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let deadline = Instant::now() + Duration::from_secs(60);
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            let output = child.wait_with_output()?;
            panic!("{command:?} runs on: {}", String::from_utf8_lossy(&output.stderr));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(child.wait_with_output()?)
}

/// Starting `dev` fails with one error that contains `words`.
fn fails_to_start(data: &Path, arguments: &[&str], words: &[&str]) -> Result<()> {
    let mut command = vmemkv(VMEMKV);
    if !arguments.contains(&"--router-port") {
        command.args(["dev", "--router-port", "0", "--server-port", "0"]);
    } else {
        command.arg("dev");
    }
    let output = ends(command.arg("--data").arg(data).args(arguments))?;
    one_error(&output, output.status.code().unwrap_or(-1).max(1), words);
    Ok(())
}

fn data_of(dev: &Dev) -> Result<String> {
    dev.ok(&["checksum"])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_values_and_messages_beyond_the_limits() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let dev = Dev::start(VMEMKV, &folder.path().join("data"))?;
    dev.ok(&["put", "k", "v"])?;
    let before = data_of(&dev)?;
    one_error(&dev.run(&["put", "", "v"])?, 2, &["key"]);
    let long = "k".repeat(4097);
    let status = dev.run(&["put", &long, "v"])?.status.code().unwrap_or(-1);
    assert!(status == 1 || status == 2);
    one_error(&dev.run(&["put", &long, "v"])?, status, &["4096"]);
    one_error(&dev.run(&["get", &long])?, status, &["4096"]);
    let file = folder.path().join("large");
    fs::write(&file, vec![b'x'; 9 << 20])?;
    let output = dev.run(&["put", "k", "--file", file.to_str().unwrap()])?;
    one_error(&output, output.status.code().unwrap_or(-1).max(1), &["8388608"]);

    // The same without a client that checks first, at router and server.
    for address in [&dev.router, &dev.server] {
        let mut kv = v1::kv_client::KvClient::connect(format!("http://{address}"))
            .await?
            .max_encoding_message_size(64 << 20);
        let put = |key: Vec<u8>, value: Vec<u8>| v1::PutRequest {
            key: key.into(),
            value: value.into(),
            ..v1::PutRequest::default()
        };
        for (request, word) in [
            (put(Vec::new(), b"v".to_vec()), "key"),
            (put(vec![b'k'; 4097], b"v".to_vec()), "4096"),
            (put(b"k".to_vec(), vec![0; 9 << 20]), "8388608"),
        ] {
            let status = kv.put(request).await.expect_err("refused");
            assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
            assert!(status.message().contains(word), "{status}");
        }
        // Beyond what the transport takes at all.
        let status = kv.put(put(b"k".to_vec(), vec![0; 40 << 20])).await.expect_err("refused");
        let known =
            [tonic::Code::OutOfRange, tonic::Code::InvalidArgument, tonic::Code::ResourceExhausted];
        assert!(known.contains(&status.code()), "{status}");
        // The connection still serves.
        let request = v1::GetRequest { key: "k".into(), ..v1::GetRequest::default() };
        assert_eq!(kv.get(request).await?.into_inner().value.as_deref(), Some(&b"v"[..]));
    }
    assert_eq!(data_of(&dev)?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_built_is_refused_and_never_ignored() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let dev = Dev::start(VMEMKV, &folder.path().join("data"))?;
    dev.ok(&["put", "k", "v"])?;
    let before = data_of(&dev)?;
    for address in [&dev.router, &dev.server] {
        let mut kv = v1::kv_client::KvClient::connect(format!("http://{address}")).await?;
        let id = Some(v1::RequestId { session: 1, serial: 1, ack_below: 0 });
        let put = v1::PutRequest { key: "k".into(), value: "w".into(), ..Default::default() };
        let with_ttl = v1::PutRequest { ttl_ms: Some(5), ..put.clone() };
        let with_id = v1::PutRequest { request_id: id, ..put };
        for request in [with_ttl, with_id] {
            let status = kv.put(request).await.expect_err("refused");
            assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
        }
        let delete = v1::DeleteRequest { key: "k".into(), request_id: id, ..Default::default() };
        let status = kv.delete(delete).await.expect_err("refused");
        assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
        let increment = v1::IncrementRequest { key: "n".into(), delta: 1, ..Default::default() };
        let status = kv.increment(increment).await.expect_err("refused");
        assert_eq!(status.code(), tonic::Code::Unimplemented, "{status}");
    }
    let client = dev.client().await?;
    let ttl = vmemkv_client::PutOptions::new().ttl(Duration::from_secs(1));
    let error = client.put_with("k", "w", ttl).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Unimplemented, "{error}");
    assert_eq!(data_of(&dev)?, before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_line_imports_nothing() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let dev = Dev::start(VMEMKV, &folder.path().join("data"))?;
    dev.ok(&["put", "k", "v"])?;
    let before = data_of(&dev)?;
    let long = "k".repeat(4097);
    let cases: [(&str, String, &[&str]); 6] = [
        ("a.csv", "a,1\nb,\"2\nc,3\n".to_owned(), &["line"]),
        ("b.csv", "a,1\nb,2,3\n".to_owned(), &["line 2"]),
        ("c.csv", format!("a,1\n{long},2\n"), &["line 2", "4096"]),
        ("d.csv", "a,1\n,2\n".to_owned(), &["line 2", "key"]),
        ("e.jsonl", "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\"\n".to_owned(), &["line 2"]),
        ("f.jsonl", "{\"key\":\"a\",\"valu\":\"1\"}\n".to_owned(), &["line 1", "valu"]),
    ];
    for (name, content, words) in cases {
        let file = folder.path().join(name);
        fs::write(&file, content)?;
        let format = if name.ends_with("csv") { "csv" } else { "jsonl" };
        let output = dev.run(&["import", file.to_str().unwrap(), "--format", format])?;
        one_error(&output, 1, words);
        assert_eq!(data_of(&dev)?, before, "{name}");
    }
    Ok(())
}

#[test]
fn settings_that_do_not_exist() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("vmemkv.toml");
    fs::write(&config, "[server]\nlisten = \"127.0.0.1:0\"\n\n[server.engine]\nblom = false\n")?;
    let data = folder.path().join("data");
    fails_to_start(
        &data,
        &["--config", config.to_str().unwrap()],
        &["blom", "bloom", "vmemkv.toml"],
    )?;
    assert!(!data.exists());
    let mut command = vmemkv(VMEMKV);
    command.args(["dev", "--router-port", "0", "--server-port", "0", "--data"]).arg(&data);
    let output = ends(command.env("VMEMKV_SERVER__LISTN", "127.0.0.1:1"))?;
    one_error(
        &output,
        output.status.code().unwrap_or(-1).max(1),
        &["VMEMKV_SERVER__LISTN", "VMEMKV_SERVER__LISTEN"],
    );
    assert!(!data.exists());
    Ok(())
}

#[test]
fn what_kubernetes_injects_does_not_stop_a_start() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let injected = [
        ("VMEMKV_PORT", "tcp://10.0.0.1:7400"),
        ("VMEMKV_PORT_7400_TCP", "tcp://10.0.0.1:7400"),
        ("VMEMKV_PORT_7400_TCP_ADDR", "10.0.0.1"),
        ("VMEMKV_SERVICE_HOST", "10.0.0.1"),
        ("VMEMKV_SERVICE_PORT", "7400"),
        ("VMEMKV_SERVICE_PORT_GRPC", "7400"),
        ("VMEMKV_ROUTER_SERVICE_HOST", "10.0.0.1"),
        ("VMEMKV_ROUTER_PORT_7402_TCP_PROTO", "tcp"),
        ("VMEMKV_SERVER_SERVICE_PORT_HTTP", "7411"),
    ];
    let dev = Dev::start_with(VMEMKV, &folder.path().join("data"), &[], &injected)?;
    dev.ok(&["put", "k", "v"])?;
    assert_eq!(dev.ok(&["get", "k"])?, "v");
    Ok(())
}

#[test]
fn a_directory_in_use_a_foreign_one_and_a_taken_port() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let dev = Dev::start(VMEMKV, &data)?;
    dev.ok(&["put", "k", "v"])?;
    fails_to_start(&data, &[], &[data.to_str().unwrap()])?;
    let port = dev.router.rsplit(':').next().unwrap();
    let other = folder.path().join("other");
    fails_to_start(&other, &["--router-port", port, "--server-port", "0"], &[port])?;
    let port = dev.server.rsplit(':').next().unwrap();
    fails_to_start(&other, &["--router-port", "0", "--server-port", port], &[port])?;
    assert_eq!(dev.ok(&["get", "k"])?, "v");

    for part in ["server", "router"] {
        let foreign = folder.path().join(format!("foreign-{part}"));
        fs::create_dir_all(foreign.join(part))?;
        fs::write(foreign.join(part).join("thesis.txt"), "years of work")?;
        fails_to_start(&foreign, &[], &[part])?;
        let left: Vec<_> = fs::read_dir(foreign.join(part))?.collect();
        assert_eq!(left.len(), 1, "{part} was touched");
    }
    Ok(())
}

#[test]
fn a_newer_format_is_refused_and_left_alone() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut dev = Dev::start(VMEMKV, &data)?;
    dev.ok(&["put", "k", "v"])?;
    dev.signal(libc::SIGTERM);
    assert!(dev.wait()?.success());
    let identity = data.join("server/IDENTITY");
    let good = fs::read(&identity)?;
    let mut newer = good.clone();
    newer[8] = 2;
    fs::write(&identity, &newer)?;
    fails_to_start(&data, &[], &["IDENTITY", "format"])?;
    assert!(fs::read(&identity)? == newer);
    fs::write(&identity, &good)?;
    let dev = Dev::start(VMEMKV, &data)?;
    assert_eq!(dev.ok(&["get", "k"])?, "v");
    Ok(())
}
