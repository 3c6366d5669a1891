//! The `vmemkv-bench` program; everything is in the library.

fn main() -> std::process::ExitCode {
    vmemkv_bench::main()
}
