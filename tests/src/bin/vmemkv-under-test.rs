//! The `vmemkv` command line, as a binary of this package.
//!
//! Invariant: it is the whole of `vmemkv` and nothing else.

fn main() -> std::process::ExitCode {
    vmemkv_cli::main_entry()
}
