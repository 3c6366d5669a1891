//! The `vmemkv` binary: everything is in the library, so that tests start the same code.

fn main() -> std::process::ExitCode {
    vmemkv_cli::main_entry()
}
