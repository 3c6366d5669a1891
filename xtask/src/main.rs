//! `cargo xtask`: the checks of the source tree that the compiler does not make.
//!
//! Invariant: a check only reads; it never writes to the tree.

mod finding;
mod rules;
mod scan;
mod tidy;
mod tree;

use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "usage: cargo xtask tidy

tidy    file sizes, module headers, who imports whom, leftovers, the lock file";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => run(tidy::command()),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

/// `Ok(false)` and an error are both failures; only the latter has something left to say.
fn run(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
