//! Signals that end a process.
//!
//! Invariant: the first SIGTERM or SIGINT asks for a graceful end, the second ends at once.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::{Failure, Result};
use crate::output::Output;

/// What a shell says of a process that SIGINT or SIGTERM has ended: 128 + the signal.
const EXIT_SECOND_SIGNAL: i32 = 130;

/// The signals that ask for the end.
#[derive(Debug)]
pub struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl EndSignals {
    /// From now on these signals do not end the process by themselves.
    pub fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Failure::io("listen for signals", &error));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
        })
    }

    /// Waits for one; says its name.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    /// Ends the process at once when the next one comes, whatever it is doing.
    pub fn end_at_next(mut self, output: Output) {
        tokio::spawn(async move {
            self.next().await;
            output.note("second signal: ending at once; what was acknowledged is safe");
            std::process::exit(EXIT_SECOND_SIGNAL);
        });
    }
}
