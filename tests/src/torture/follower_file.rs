//! The file that a follower goes on from after a kill.
//!
//! Invariant: replaced as a whole, so positions and what was seen at them belong together. It is
//! never synced: a kill of the process does not take it back.

use std::io::ErrorKind::NotFound;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use vmemkv_engine::{KeyRange, Lsn, Revision};

use super::follower::{Follower, Piece};
use super::seen::Seen;

impl Follower<'_> {
    /// Reads the file, if there is one.
    pub(super) fn load(&mut self) -> Result<()> {
        let bytes = match std::fs::read(&self.path) {
            Err(error) if error.kind() == NotFound => return Ok(()),
            other => other.with_context(|| format!("read {}", self.path.display()))?,
        };
        let stored: Value = serde_json::from_slice(&bytes)?;
        let list = |name: &str| stored[name].as_array().with_context(|| name.to_owned());
        self.pieces = list("pieces")?.iter().map(piece).collect::<Result<_>>()?;
        let seen: Vec<Seen> = list("seen")?.iter().map(seen).collect::<Result<_>>()?;
        if seen.len() != self.seen.len() {
            bail!("{} is of other keys", self.path.display());
        }
        self.seen = seen;
        Ok(())
    }

    /// Replaces the file.
    pub(super) fn store(&mut self) -> Result<()> {
        let pieces = self.pieces.iter().map(|piece| {
            let Piece { range, position, lsn, again, fresh } = piece;
            json!([range.start, range.end, position.0, lsn.0, again.0, fresh])
        });
        let seen = self.seen.iter().map(|seen| json!([seen.writes, seen.revision]));
        let stored = json!({
            "pieces": pieces.collect::<Vec<_>>(),
            "seen": seen.collect::<Vec<_>>(),
        });
        let aside = self.path.with_extension("new");
        std::fs::write(&aside, stored.to_string())?;
        std::fs::rename(&aside, &self.path)?;
        self.stored = Instant::now();
        Ok(())
    }
}

fn piece(stored: &Value) -> Result<Piece> {
    let number = |at: usize| stored[at].as_u64().context("a number of a piece");
    let key = |at: usize| -> Result<Vec<u8>> {
        let bytes = stored[at].as_array().context("a key of a piece")?;
        bytes.iter().map(|byte| Ok(u8::try_from(byte.as_u64().context("a byte")?)?)).collect()
    };
    Ok(Piece {
        range: KeyRange::new(key(0)?, key(1)?),
        position: Revision(number(2)?),
        lsn: Lsn(number(3)?),
        again: Revision(number(4)?),
        fresh: stored[5].as_bool().context("a flag of a piece")?,
    })
}

fn seen(stored: &Value) -> Result<Seen> {
    let writes = stored[0].as_array().context("writes")?;
    let writes = writes.iter().map(|n| n.as_u64().context("a write"));
    Ok(Seen {
        writes: writes.collect::<Result<_>>()?,
        revision: stored[1].as_u64().context("rev")?,
    })
}
