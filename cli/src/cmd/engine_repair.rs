//! What `vmemkv engine repair` says.
//!
//! Invariant: what would be lost is said before it is, and the same way after.

use serde_json::{Value, json};
use vmemkv_engine::offline::Repair;

use super::shard::key_text;
use crate::output::{bytes_text, printable};

/// For programs.
pub(super) fn json(found: &Repair) -> Value {
    let dropped = &found.dropped;
    json!({
        "applied": found.applied,
        "damage": found.damage,
        "checkpoint_lsn": found.checkpoint_lsn.0,
        "valid_to_lsn": found.valid_to.0,
        "to_lsn": found.to_lsn.0,
        "mixed": found.mixed,
        "dropped": {
            "records": dropped.records,
            "bytes": dropped.bytes,
            "unreadable_bytes": dropped.unreadable_bytes,
            "first_lsn": dropped.first_lsn.0,
            "end_lsn": dropped.end_lsn.0,
            "durable_lsn": dropped.durable_lsn.0,
            "durable_records": dropped.durable_records,
            "first_key_hex": dropped.first_key.as_ref().map(hex::encode),
            "last_key_hex": dropped.last_key.as_ref().map(hex::encode),
        },
    })
}

/// For people.
pub(super) fn text(found: &Repair) -> String {
    let dropped = &found.dropped;
    let (would, verb) =
        if found.applied { ("", "were given up") } else { ("would ", "would be given up") };
    let mut lines = vec![
        printable(&found.damage),
        format!(
            "the log {would}end{} at LSN {}; it can be read up to LSN {}, and the checkpoint holds all \
             below LSN {}",
            if found.applied { "s" } else { "" },
            found.to_lsn,
            found.valid_to,
            found.checkpoint_lsn
        ),
        format!(
            "{} readable records ({}) of LSN {} to {} {verb}, and {} that cannot be read",
            dropped.records,
            bytes_text(dropped.bytes),
            dropped.first_lsn,
            dropped.end_lsn,
            bytes_text(dropped.unreadable_bytes),
        ),
        format!(
            "the log is proven to have been durable up to LSN {}: {} of these records, and what cannot \
             be read below it, may have been acknowledged",
            dropped.durable_lsn, dropped.durable_records
        ),
    ];
    if let (Some(first), Some(last)) = (&dropped.first_key, &dropped.last_key) {
        let (first, last) = (key_text(first, ""), key_text(last, ""));
        lines.push(format!("the first of them writes key {first}, the last one key {last}"));
    }
    if found.mixed {
        lines.push(
            "the end lies below what the checkpoint proves: it holds a part of what is given up, so a \
             batch may be there in part, and a key may go back to an older value"
                .to_owned(),
        );
    }
    lines.push(if found.applied {
        "done: start the server".to_owned()
    } else {
        format!(
            "nothing was changed; copy the directory away, then: vmemkv engine repair DIR --to-lsn {} --yes",
            found.to_lsn
        )
    });
    lines.join("\n")
}
