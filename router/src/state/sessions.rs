//! What has been answered to proposers, so that a retry changes nothing and gets the same answer.
//!
//! Invariants: at most `MAX_SESSIONS` sessions, the one that is unused for longest goes first; at
//! most `MAX_OUTCOMES` answers each; a serial at or above `forgotten_below` whose answer is not
//! kept has never been applied.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::command::{Command, Outcome, Refusal};

/// How many runs of routers are remembered.
pub(super) const MAX_SESSIONS: usize = 64;

/// How many answers are kept for each; above the proposals that a router has in flight.
pub(super) const MAX_OUTCOMES: usize = 512;

/// What has been answered to one run of a router. Stored as one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// The run of a router.
    pub client: u64,
    /// Answers to smaller serials are forgotten.
    pub forgotten_below: u64,
    /// The cluster's count of commands when this was last used.
    pub last_used: u64,
    /// Answers by serial.
    pub outcomes: BTreeMap<u64, Outcome>,
}

/// The sessions, by client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sessions {
    by_client: BTreeMap<u64, Session>,
}

impl Sessions {
    /// The session of a client.
    pub fn get(&self, client: u64) -> Option<&Session> {
        self.by_client.get(&client)
    }

    /// All sessions, by client.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.by_client.values()
    }

    /// What was answered to this command before; `None`: it is new.
    pub(super) fn answered(&self, command: &Command) -> Option<Outcome> {
        let session = self.by_client.get(&command.client)?;
        if let Some(outcome) = session.outcomes.get(&command.serial) {
            return Some(outcome.clone());
        }
        let Command { client, serial, .. } = *command;
        (serial < session.forgotten_below)
            .then_some(Outcome::Refused(Refusal::Forgotten { client, serial }))
    }

    /// Keeps an answer. Returns the client whose session had to go, if one had.
    pub(super) fn record(&mut self, command: &Command, outcome: &Outcome, now: u64) -> Option<u64> {
        let client = command.client;
        let session = self.by_client.entry(client).or_default();
        session.client = client;
        session.last_used = now;
        session.forgotten_below =
            session.forgotten_below.max(command.ack_below.min(command.serial));
        session.outcomes = session.outcomes.split_off(&session.forgotten_below);
        session.outcomes.insert(command.serial, outcome.clone());
        while session.outcomes.len() > MAX_OUTCOMES {
            if let Some((serial, _)) = session.outcomes.pop_first() {
                session.forgotten_below = session.forgotten_below.max(serial + 1);
            }
        }
        if self.by_client.len() <= MAX_SESSIONS {
            return None;
        }
        let oldest = self.by_client.values().min_by_key(|session| session.last_used)?.client;
        self.by_client.remove(&oldest);
        Some(oldest)
    }

    /// Adds a stored session.
    pub(crate) fn put(&mut self, session: Session) {
        self.by_client.insert(session.client, session);
    }
}
