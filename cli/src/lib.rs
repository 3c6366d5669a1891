//! The command line of vmemkv, and every process of it: one binary, `vmemkv`.
//!
//! It is a library so that tests can start exactly the code that they were built with:
//! [`main_entry`] is a whole `main`, [`run`] takes the arguments.
//!
//! Invariants: data goes to stdout, everything else to stderr; exit status 0 is done, 1 failed, 2 wrong
//! use, 3 not found; a broken pipe ends a command quietly; an error is one line.

pub mod args;
pub mod cmd;
pub mod config;
pub mod context;
pub mod encoding;
pub mod failure;
pub mod logging;
pub mod output;
pub mod process;
pub mod range;
pub mod transfer;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;
use clap::error::ErrorKind;

use crate::args::Cli;
use crate::context::Context;
use crate::failure::{EXIT_DONE, Failure, Result};
use crate::output::Output;

/// The whole of a `main`: runs the command that this process was started with.
pub fn main_entry() -> ExitCode {
    vmemkv_engine::keep_heap_small();
    ExitCode::from(run(std::env::args_os()))
}

/// Runs one command, `arguments` with the program's name first, and returns the exit status.
pub fn run<I>(arguments: I) -> u8
where
    I: IntoIterator,
    I::Item: Into<OsString>,
{
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => return not_parsed(&error, &arguments),
    };
    let context = Context::new(cli.globals.clone());
    match start(cli, &context) {
        Ok(()) => EXIT_DONE,
        Err(failure) => {
            context.output.failure(&failure);
            failure.exit()
        }
    }
}

fn start(cli: Cli, context: &Context) -> Result {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::io("start the runtime", &error))?;
    let result = runtime.block_on(cmd::run(cli.command, context));
    // A thread that still waits for stdin must not hold the process.
    runtime.shutdown_background();
    result
}

/// Help and version are answers; the rest is wrong use.
fn not_parsed(error: &clap::Error, arguments: &[OsString]) -> u8 {
    let is_answer = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !is_answer && arguments.iter().any(|argument| argument == "--json") {
        let text = error.render().to_string();
        // The first paragraph is the error; usage follows.
        let words: Vec<&str> = text.lines().map(str::trim).take_while(|l| !l.is_empty()).collect();
        let failure = Failure::usage(words.join(" ").trim_start_matches("error: "));
        Output::new(true).failure(&failure);
        return failure.exit();
    }
    // A reader that has gone has what it wanted.
    let _ = error.print();
    if is_answer { EXIT_DONE } else { failure::EXIT_USAGE }
}
