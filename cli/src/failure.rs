//! Why a command failed: one line for people, one object for scripts, one exit status.
//!
//! Invariants: the exit status is 1 (failed), 2 (wrong use) or 3 (not found); a message is one line
//! and says what to do where that is known; a pipe whose reader has gone is no failure.

use std::fmt;
use std::io;

use tonic::Code;
use vmemkv_proto::ApiError;

/// The result of a command.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Exit status: the command did what it was asked.
pub const EXIT_DONE: u8 = 0;
/// Exit status: it failed.
pub const EXIT_FAILED: u8 = 1;
/// Exit status: it was called wrongly; nothing was done.
pub const EXIT_USAGE: u8 = 2;
/// Exit status: the key does not exist.
pub const EXIT_NOT_FOUND: u8 = 3;

const OTHER_PORT: &str = "what answers there does not speak gRPC: --addr is a router's or server's \
                          gRPC port (7400, 7410), not its HTTP port (7401, 7411)";

/// Why a command ended without success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    exit: u8,
    code: String,
    message: String,
    hint: Option<String>,
    operation_id: Option<u64>,
}

impl Failure {
    fn new(exit: u8, code: &str, message: impl Into<String>) -> Self {
        let message = one_line(&message.into());
        Self { exit, code: code.to_owned(), message, hint: None, operation_id: None }
    }

    /// The command could not do its work.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(EXIT_FAILED, "FAILED", message)
    }

    /// What the command waited for did not come in time.
    pub fn timed_out(message: impl Into<String>) -> Self {
        Self::new(EXIT_FAILED, "TIMEOUT", message)
    }

    /// The command was called wrongly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(EXIT_USAGE, "USAGE", message)
    }

    /// There is no such key.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(EXIT_NOT_FOUND, "NOT_FOUND", message)
    }

    /// Something cannot be read or written; `action` is a verb with its object.
    pub fn io(action: impl fmt::Display, error: &io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::broken_pipe();
        }
        Self::failed(format!("cannot {action}: {error}"))
    }

    /// The reader of our output has gone: ends the command without a word.
    pub fn broken_pipe() -> Self {
        Self::new(EXIT_DONE, "BROKEN_PIPE", "")
    }

    /// What was being done when it failed, in front of the message.
    #[must_use]
    pub fn while_doing(mut self, what: impl fmt::Display) -> Self {
        if self.exit != EXIT_DONE {
            self.message = format!("{what}: {}", self.message);
        }
        self
    }

    /// What else is to be known, behind the message.
    #[must_use]
    pub fn and_also(mut self, what: impl fmt::Display) -> Self {
        if self.exit != EXIT_DONE {
            self.message = format!("{}; {what}", self.message);
        }
        self
    }

    /// What to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(one_line(&hint.into()));
        self
    }

    /// The operation that it is about, which scripts may want to follow.
    #[must_use]
    pub fn of_operation(mut self, operation_id: u64) -> Self {
        self.operation_id = Some(operation_id);
        self
    }

    /// What to do about it, if that is so.
    #[must_use]
    pub fn with_hint_if(self, is_so: bool, hint: &str) -> Self {
        if is_so { self.with_hint(hint) } else { self }
    }

    /// The status of the process.
    pub fn exit(&self) -> u8 {
        self.exit
    }

    /// The gRPC code's name, or FAILED, TIMEOUT, USAGE, NOT_FOUND.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Whether the reader of our output has gone.
    pub fn is_broken_pipe(&self) -> bool {
        self.exit == EXIT_DONE
    }

    /// The line for people.
    pub fn to_text(&self) -> String {
        match &self.hint {
            Some(hint) => format!("error: {}; {hint}", self.message),
            None => format!("error: {}", self.message),
        }
    }

    /// The object for scripts, on one line.
    pub fn to_json(&self) -> String {
        let mut error = serde_json::json!({ "code": self.code, "message": self.message });
        if let Some(hint) = &self.hint {
            error["hint"] = hint.as_str().into();
        }
        if let Some(operation_id) = self.operation_id {
            error["operation_id"] = operation_id.into();
        }
        serde_json::json!({ "error": error, "exit": self.exit }).to_string()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

impl std::error::Error for Failure {}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let failure = Self::new(EXIT_FAILED, error.kind.name(), error.to_string());
        let hint = match error.kind.code() {
            // What tonic makes of an answer that is no gRPC.
            _ if error.message.starts_with("grpc-status header missing") => OTHER_PORT,
            Code::Unavailable => "`vmemkv status` says what is not ready; retry in a moment",
            Code::DeadlineExceeded if error.not_applied => "nothing was changed; raise --timeout",
            Code::DeadlineExceeded => {
                "raise --timeout; whether a write was stored is unknown, so read it back"
            }
            Code::ResourceExhausted => {
                "`vmemkv node stats` shows disk and memory; free some, or retry later"
            }
            Code::DataLoss => "the server's log names the file; run `vmemkv node verify`",
            Code::Unauthenticated | Code::PermissionDenied => "the service asks for credentials",
            _ => return failure,
        };
        failure.with_hint(hint)
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        ApiError::from(status).into()
    }
}

/// Line breaks and other control characters would break the one line of an error.
fn one_line(text: &str) -> String {
    text.trim().chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use vmemkv_proto::ErrorKind;

    use super::*;

    #[test]
    fn a_failure_is_one_line_for_people_and_one_object_for_scripts() {
        let failure = Failure::failed("two\nlines").with_hint("do this");
        assert_eq!(failure.to_text(), "error: two lines; do this");
        let json: serde_json::Value = serde_json::from_str(&failure.to_json()).unwrap();
        assert_eq!(json["error"]["message"], "two lines");
        assert_eq!(json["error"]["hint"], "do this");
        assert_eq!(json["exit"], 1);
        assert!(json["error"].get("operation_id").is_none());
        let failure = failure.of_operation(7);
        let json: serde_json::Value = serde_json::from_str(&failure.to_json()).unwrap();
        assert_eq!(json["error"]["operation_id"], 7);
    }

    #[test]
    fn errors_of_the_service_keep_their_code() {
        let failure = Failure::from(ApiError::new(ErrorKind::Unimplemented, "ttl"));
        assert_eq!(failure.code(), "UNIMPLEMENTED");
        assert_eq!(failure.exit(), EXIT_FAILED);
        assert_eq!(failure.to_text(), "error: UNIMPLEMENTED: ttl");
    }

    #[test]
    fn a_broken_pipe_is_no_failure() {
        let failure = Failure::io("write", &io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(failure.is_broken_pipe());
        assert_eq!(failure.exit(), EXIT_DONE);
    }
}
