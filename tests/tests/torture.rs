//! The torture command itself: a short run is clean, and a planted loss is seen.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

fn torture(arguments: &[&str]) -> (Option<i32>, serde_json::Value) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
    let output = command.args(arguments).arg("--dir").arg(folder.path()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    println!("{text}{}", String::from_utf8_lossy(&output.stderr));
    (output.status.code(), serde_json::from_str(text.lines().last().unwrap()).unwrap())
}

#[test]
fn a_short_run_is_clean() {
    let (code, outcome) = torture(&["--minutes", "0.2"]);
    assert_eq!(outcome["violations"], 0, "{outcome}");
    assert_eq!(code, Some(0));
    assert!(outcome["faults"].as_u64().unwrap() > 0, "{outcome}");
    assert!(outcome["acknowledged"].as_u64().unwrap() > 100, "{outcome}");
    assert!(outcome["changes_followed"].as_u64().unwrap() > 100, "{outcome}");
}

/// Of each round the line says what has been done so far.
#[test]
fn a_round_says_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_torture"));
    command.args(["--minutes", "0.1", "--seed", "4"]).arg("--dir").arg(folder.path());
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    println!("{text}");
    let rounds: Vec<serde_json::Value> = text
        .lines()
        .filter(|line| line.starts_with("round "))
        .map(|line| serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap())
        .collect();
    assert!(rounds.last().unwrap()["operations"].as_u64().unwrap() > 100);
}

/// Changes that do not reach their follower.
#[test]
fn a_lost_change_is_a_violation() {
    let (code, outcome) = torture(&["--minutes", "1", "--seed", "2", "--plant-feed"]);
    assert_eq!(code, Some(1));
    let first = outcome["first_violation"].as_str().unwrap();
    assert!(first.starts_with("the changes of key"), "{outcome}");
}

/// Writes that are acknowledged and were never made.
#[test]
fn a_planted_loss_is_a_violation() {
    let (code, outcome) = torture(&["--minutes", "1", "--seed", "1", "--plant"]);
    assert_eq!(code, Some(1));
    assert!(outcome["violations"].as_u64().unwrap() > 0, "{outcome}");
}
