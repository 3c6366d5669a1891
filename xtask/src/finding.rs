//! What a rule found: where, how bad, and what to do about it.

use std::fmt;

/// Whether a finding stops the build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Severity {
    /// Worth a look.
    Warning,
    /// Must be corrected.
    Error,
}

/// One finding. The message says what is wrong and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    /// The file, from the root of the repository.
    pub(crate) file: String,
    /// The line, from 1.
    pub(crate) line: usize,
    /// How bad.
    pub(crate) severity: Severity,
    /// What is wrong, and what to do.
    pub(crate) message: String,
}

impl Finding {
    /// A finding that fails the check.
    pub(crate) fn error(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.into(), line, severity: Severity::Error, message: message.into() }
    }

    /// A finding that is only printed.
    pub(crate) fn warning(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.into(), line, severity: Severity::Warning, message: message.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let severity = match self.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        write!(f, "{}:{}: {severity}: {}", self.file, self.line, self.message)
    }
}
