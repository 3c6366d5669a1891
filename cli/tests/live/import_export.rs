//! Files in and out: formats, broken lines, interruptions.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::service::{Run, Service, signal, wait, write};

fn lines(count: usize, value_bytes: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        let value = format!("{n}:{}", "\\u20ac\\n\\\"x".repeat(value_bytes / 7));
        text.push_str(&format!("{{\"key\": \"key:{n:06}\", \"value\": \"{value}\"}}\n"));
    }
    text
}

#[test]
fn what_is_exported_can_be_imported() {
    let (one, two) = (Service::start(), Service::start());
    write(&one.path("in.jsonl"), lines(3000, 500));
    let done = one.run(&["import", "in.jsonl", "--json"]).json();
    assert_eq!(done["entries"], 3000);
    one.run(&["put", "text", "tab\tquote\"comma,\nline\r\n"]).ok();
    let sum = one.run(&["checksum"]).ok();
    for format in ["jsonl", "csv", "tsv"] {
        for encoding in ["utf8", "hex", "base64"] {
            let file = one.path(&format!("out.{format}"));
            let file = file.to_str().unwrap();
            let mut flags = vec!["--format", format, "--encoding", encoding];
            if format != "jsonl" && encoding == "utf8" {
                flags.push("--header");
            }
            let exported =
                one.run(&[&["export", file, "--json"], flags.as_slice()].concat()).json();
            assert_eq!(exported["entries"], 3001);
            two.run(&["delete", "text"]).ok();
            two.run(&[&["import", file], flags.as_slice()].concat()).ok();
            assert_eq!(two.run(&["checksum"]).ok(), sum, "{format} {encoding}");
            let text = one.run(&[&["export", "-"], flags.as_slice()].concat()).ok();
            assert_eq!(text, std::fs::read_to_string(file).unwrap(), "{format} {encoding}");
        }
    }
    let part = one.run(&["export", "-", "--prefix", "key:00000", "--format", "tsv"]).ok();
    assert!(part.starts_with("key:000000\t"), "{part}");
    assert!(!one.path("out.jsonl.partial").exists());
}

#[test]
fn a_broken_file_changes_nothing() {
    let service = Service::start();
    write(&service.path("in.jsonl"), format!("{}{{\"key\": \"k\"}}\n", lines(500, 10)));
    let error = service.run(&["import", "in.jsonl"]).fails(1);
    assert!(error.contains("line 501: missing field `value`"), "{error}");
    assert!(error.contains("nothing was stored"), "{error}");
    write(&service.path("in.csv"), "a,1\nb,2,3\n");
    let error = service.run(&["import", "in.csv", "--format", "csv", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&error.err).unwrap();
    assert!(json["error"]["message"].as_str().unwrap().contains("line 2: 3 columns"), "{json}");
    assert_eq!(service.run(&["count"]).ok(), "0\n");
    assert!(service.run(&["import", "missing"]).fails(1).contains("missing"));
    service.run(&["import", ".", "--json"]);
    service.run(&["import", "in.jsonl", "--header"]).fails(2);
    service.run(&["import", "-", "--resume"]).fails(2);
}

#[test]
fn stdin_is_stored_up_to_a_broken_line() {
    let service = Service::start();
    let input = format!("{}broken\n{}", lines(700, 100), lines(10, 10));
    let error = service.run_with_input(&["import", "-"], input.as_bytes()).fails(1);
    assert!(error.contains("line 701: not a JSON object"), "{error}");
    assert!(error.contains("700 entries before it were stored"), "{error}");
    assert_eq!(service.run(&["count"]).ok(), "700\n");
}

/// A pipe that stays open: what has come is stored without waiting for more.
#[test]
fn a_slow_pipe_is_stored_as_it_comes() {
    use std::io::Write as _;
    let service = Service::start();
    let mut child = service
        .command(&["import", "-", "--format", "tsv"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"a\t1\n").unwrap();
    let since = Instant::now();
    while service.run(&["get", "a"]).code != Some(0) {
        assert!(since.elapsed() < Duration::from_secs(20), "the first line is not stored");
    }
    input.write_all(b"a\t2\n").unwrap();
    drop(input);
    Run::of(&child.wait_with_output().unwrap()).ok();
    assert_eq!(service.run(&["get", "a"]).ok(), "2\n");
}

#[test]
fn the_last_of_equal_keys_wins() {
    let service = Service::start();
    let text: String = (0..20_000).map(|n| format!("k{},{n}\n", n % 7)).collect();
    write(&service.path("in.csv"), text);
    service.run(&["import", "in.csv", "--format", "csv"]).ok();
    for key in 0..7 {
        let last = (0..20_000).rev().find(|n| n % 7 == key).unwrap();
        assert_eq!(service.run(&["get", &format!("k{key}")]).ok(), format!("{last}\n"));
    }
}

/// Interrupts an import by a signal after some entries; returns how many the state file counts.
fn interrupted(service: &Service, name: &str) -> u64 {
    let state = service.path("in.jsonl.vmemkv-import");
    let mut child = service
        .command(&["import", "in.jsonl", "--batch", "8"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !state.exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "no state file");
        assert_eq!(child.try_wait().unwrap(), None, "the import was too fast to interrupt");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(child.id(), name);
    assert!(!wait(&mut child).success());
    let text = std::fs::read_to_string(&state).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()["entries"].as_u64().unwrap()
}

#[test]
fn an_interrupted_import_goes_on_where_it_stopped() {
    let service = Service::start();
    write(&service.path("in.jsonl"), lines(20_000, 200));
    for name in ["TERM", "INT", "KILL"] {
        let stored = interrupted(&service, name);
        assert!((1..20_000).contains(&stored), "{name}: {stored}");
        let done = service.run(&["import", "in.jsonl", "--resume", "--json"]).json();
        assert_eq!(done["skipped"].as_u64().unwrap(), stored, "{name}");
        assert_eq!(done["entries"].as_u64().unwrap(), 20_000 - stored, "{name}");
        assert!(!service.path("in.jsonl.vmemkv-import").exists(), "{name}");
        assert_eq!(service.run(&["count"]).ok(), "20000\n", "{name}");
    }
    interrupted(&service, "TERM");
    let mut text = lines(20_000, 200);
    text.replace_range(9..12, "KEY");
    write(&service.path("in.jsonl"), text);
    let error = service.run(&["import", "in.jsonl", "--resume"]).fails(1);
    assert!(error.contains("the file has changed since"), "{error}");
    assert!(service.path("in.jsonl.vmemkv-import").exists());
}

/// The old state file counts entries that may have been removed since: it must not outlive the
/// start of an import from the beginning, even one that cannot write its own state.
#[test]
fn who_starts_over_and_is_killed_goes_on_from_the_beginning() {
    let service = Service::start();
    write(&service.path("in.jsonl"), lines(20_000, 200));
    assert!(interrupted(&service, "TERM") > 0);
    let state = service.path("in.jsonl.vmemkv-import");
    // Keeps it from being replaced, however late the signal comes.
    let temporary = service.path("in.jsonl.vmemkv-import.tmp");
    std::fs::create_dir(&temporary).unwrap();
    let mut child = service
        .command(&["import", "in.jsonl", "--batch", "8"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while state.exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "the old state file is still valid");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(child.id(), "KILL");
    assert!(!wait(&mut child).success());
    std::fs::remove_dir(&temporary).unwrap();
    let done = service.run(&["import", "in.jsonl", "--resume", "--json"]).json();
    assert_eq!((done["skipped"].as_u64(), done["entries"].as_u64()), (Some(0), Some(20_000)));
}

/// Starts an import and waits until some entries are stored.
fn under_way(service: &Service) -> Child {
    let child = service
        .command(&["import", "in.jsonl", "--batch", "8"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !service.path("in.jsonl.vmemkv-import").exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "no state file");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_file_that_changes_while_it_is_imported_is_refused() {
    use std::os::unix::fs::FileExt as _;
    let service = Service::start();
    let (file, state) = (service.path("in.jsonl"), service.path("in.jsonl.vmemkv-import"));
    write(&file, lines(20_000, 200));
    let import = under_way(&service);
    let handle = std::fs::OpenOptions::new().write(true).open(&file).unwrap();
    handle.write_all_at(b"KEY", 9).unwrap();
    let error = Run::of(&import.wait_with_output().unwrap()).fails(1);
    assert!(error.contains("the file changed while it was imported"), "{error}");
    assert!(!state.exists(), "nothing to go on from");

    // Another file at its place is not the one that was checked, and is not read.
    write(&file, lines(20_000, 200));
    let import = under_way(&service);
    write(&service.path("other"), "broken");
    std::fs::rename(service.path("other"), &file).unwrap();
    Run::of(&import.wait_with_output().unwrap()).ok();
    assert!(!state.exists());
    assert_eq!(service.run(&["count"]).ok(), "20000\n");
}

#[test]
fn an_import_goes_on_after_the_service_was_killed() {
    let service = Service::start();
    write(&service.path("in.jsonl"), lines(20_000, 200));
    let state = service.path("in.jsonl.vmemkv-import");
    let import = service
        .command(&["import", "in.jsonl", "--batch", "8"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let since = Instant::now();
    while !state.exists() {
        assert!(since.elapsed() < Duration::from_secs(30), "no state file");
        std::thread::sleep(Duration::from_millis(5));
    }
    let dir = service.kill();
    let error = Run::of(&import.wait_with_output().unwrap()).fails(1);
    assert!(error.contains("--resume"), "{error}");
    let service = Service::start_in(dir, &[]);
    let done = service.run(&["import", "in.jsonl", "--resume", "--json"]).json();
    let (skipped, entries) = (done["skipped"].as_u64(), done["entries"].as_u64());
    assert_eq!(skipped.unwrap() + entries.unwrap(), 20_000);
    assert!(skipped > Some(0));
    assert_eq!(service.run(&["count"]).ok(), "20000\n");
}

#[test]
fn an_import_without_a_place_for_its_state_goes_on() {
    let service = Service::start();
    write(&service.path("in.jsonl"), lines(20_000, 200));
    let run = service.run(&["import", "in.jsonl", "--batch", "8", "--resume-file", "no/such/dir"]);
    assert!(run.err.contains("cannot be resumed"), "{run:?}");
    run.ok();
    assert_eq!(service.run(&["count"]).ok(), "20000\n");
}

#[test]
fn an_interrupted_export_goes_on_where_it_stopped() {
    let service = Service::start();
    let text = lines(1000, 100);
    service.run_with_input(&["import", "-"], text.as_bytes()).ok();
    service.run(&["export", "whole.jsonl"]).ok();
    let whole = std::fs::read(service.path("whole.jsonl")).unwrap();
    for cut in [0, 10, whole.len() / 2, whole.len() - 1, whole.len()] {
        write(&service.path("part.jsonl.partial"), &whole[..cut]);
        let done = service.run(&["export", "part.jsonl", "--resume", "--json"]).json();
        let sum = done["entries"].as_u64().unwrap() + done["skipped"].as_u64().unwrap();
        assert_eq!(sum, 1000, "{cut}");
        assert_eq!(std::fs::read(service.path("part.jsonl")).unwrap(), whole, "{cut}");
    }
}

/// As many entries as the service's users bring: 60,000, some of 76 KB, about 50 MB.
#[test]
fn a_large_file_is_imported_in_seconds() {
    let service = Service::start();
    let mut text = String::new();
    for n in 0..60_500usize {
        let bytes = if n % 400 == 0 { 76_000 } else { 400 + n % 500 };
        text.push_str(&format!("{{\"key\":\"doc:{n:08}\",\"value\":\"{}\"}}\n", "v".repeat(bytes)));
    }
    write(&service.path("in.jsonl"), &text);
    let since = Instant::now();
    let done = service.run(&["import", "in.jsonl", "--json"]).json();
    assert_eq!(done["entries"], 60_500);
    assert!(since.elapsed() < Duration::from_secs(60), "{:?}", since.elapsed());
    assert_eq!(service.run(&["count"]).ok(), "60500\n");
}
