//! Tests of the command line.

use std::time::Duration;

use clap::CommandFactory as _;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn command(line: &str) -> Command {
    parse(line).unwrap_or_else(|error| panic!("{line}: {error}")).command
}

#[test]
fn the_definition_is_sound() {
    Cli::command().debug_assert();
}

#[test]
fn commands_of_the_published_list_are_understood() {
    for line in [
        "vmemkv dev",
        "vmemkv dev --data d --router-port 0 --server-port 0 --json",
        "vmemkv dev --initial-boundaries cuts",
        "vmemkv server --config f.toml --listen 127.0.0.1:0 --http-listen 127.0.0.1:0",
        "vmemkv server --advertise a:1 --routers a:1,b:2 --data d --label zone=a --label rack=7",
        "vmemkv router --config f.yaml --raft-listen 0.0.0.0:7402 --routers a:7402",
        "vmemkv router list",
        "vmemkv router add a:7402 --address a:7400",
        "vmemkv router remove 3",
        "vmemkv get k",
        "vmemkv get k --encoding hex",
        "vmemkv put k v",
        "vmemkv put k -1",
        "vmemkv put k v --if-absent",
        "vmemkv put k v --if-present",
        "vmemkv put k v --if-value w --ttl 30s",
        "vmemkv put k --file f",
        "vmemkv delete k",
        "vmemkv scan --prefix p --limit 3 --reverse --keys-only",
        "vmemkv scan --start a --end b --encoding base64",
        "vmemkv count --prefix p",
        "vmemkv checksum --start a",
        "vmemkv import f --format csv --header --resume --batch 10",
        "vmemkv import - --encoding base64",
        "vmemkv export - --format tsv --prefix p",
        "vmemkv watch --prefix p",
        "vmemkv status",
        "vmemkv config --config f.toml",
        "vmemkv node list",
        "vmemkv node stats 7",
        "vmemkv node verify",
        "vmemkv node backup --to d",
        "vmemkv node drain 7",
        "vmemkv node remove 7 --force --accept-data-loss",
        "vmemkv shard list",
        "vmemkv shard split 3 --key m",
        "vmemkv shard merge 3 4",
        "vmemkv shard move 3 --to 7",
        "vmemkv operation list --active",
        "vmemkv operation cancel 3",
        "vmemkv engine verify d",
        "vmemkv engine inspect d",
        "vmemkv engine repair d",
        "vmemkv engine repair d --to-lsn 8 --yes",
        "vmemkv completions bash",
        "vmemkv man -",
    ] {
        command(line);
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    for line in [
        "vmemkv",
        "vmemkv frobnicate",
        "vmemkv put k",
        "vmemkv put k v --file f",
        "vmemkv put k v --if-absent --if-present",
        "vmemkv scan --prefix p --start a",
        "vmemkv dev --router-port 70000",
        "vmemkv server --listen nonsense",
        "vmemkv server --label zone",
        "vmemkv node drain",
        "vmemkv node remove 7 --accept-data-loss",
        "vmemkv get k --addr nowhere",
        "vmemkv get k --timeout 0s",
        "vmemkv get k -v --log-level info",
        "vmemkv import f --batch 0",
        "vmemkv engine repair d --yes",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}

#[test]
fn global_flags_stand_anywhere() {
    for line in [
        "vmemkv --json --addr h:1 --timeout 5s get k",
        "vmemkv get --json k --addr h:1 --timeout 5s",
        "vmemkv router --json --addr h:1 --timeout 5s list",
        "vmemkv router list --json --addr h:1 --timeout 5s",
    ] {
        let globals = parse(line).unwrap_or_else(|error| panic!("{line}: {error}")).globals;
        assert!(globals.json, "{line}");
        assert_eq!(globals.addr, "h:1", "{line}");
        assert_eq!(globals.timeout, Some(Duration::from_secs(5)), "{line}");
    }
}

#[test]
fn a_log_filter_comes_from_either_flag() {
    let filter = |line: &str| parse(line).unwrap().globals.log_filter();
    assert_eq!(filter("vmemkv status"), None);
    assert_eq!(filter("vmemkv status -v").unwrap(), "debug");
    assert_eq!(filter("vmemkv -vv status").unwrap(), "trace");
    assert_eq!(filter("vmemkv status --log-level info,a=debug").unwrap(), "info,a=debug");
}

#[test]
fn times_have_units() {
    for (text, ms) in [("500ms", 500), ("5s", 5000), ("5", 5000), ("1.5s", 1500), ("2m", 120_000)] {
        assert_eq!(parse_duration(text).unwrap(), Duration::from_millis(ms), "{text}");
    }
    assert_eq!(parse_duration("1h").unwrap(), Duration::from_secs(3600));
    assert_eq!(parse_duration("7d").unwrap(), Duration::from_secs(7 * 86400));
    for text in ["", "s", "5x", "-1s", "0", "1..5s", "1e400s"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
}

#[test]
fn addresses_may_be_pasted_urls() {
    assert_eq!(parse_address("http://h:7400/").unwrap(), "h:7400");
    assert_eq!(parse_address("[::1]:7400").unwrap(), "[::1]:7400");
    for text in ["h", "h:", ":7400", "h:99999"] {
        assert!(parse_address(text).is_err(), "{text}");
    }
}

/// Help teaches: every command has one line that says what it does, and the verbs show examples.
#[test]
fn every_command_and_flag_is_explained() {
    fn check(command: &clap::Command, path: &str) {
        assert!(command.get_about().is_some(), "{path}");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{path}: {}", argument.get_id());
        }
        for below in command.get_subcommands() {
            check(below, &format!("{path} {}", below.get_name()));
        }
    }
    let command = Cli::command();
    for verb in command.get_subcommands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:"), "{}", verb.get_name());
        assert!(help.lines().all(|line| line.len() <= 110), "{}", verb.get_name());
    }
    check(&command, "vmemkv");
}
