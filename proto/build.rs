//! Compiles the `.proto` files without protoc: descriptors for reflection, and the Rust code.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message as _;

const ROOT: &str = "proto";
const FILES: [&str; 8] = [
    "vmemkv/v1/types.proto",
    "vmemkv/v1/kv.proto",
    "vmemkv/v1/router.proto",
    "vmemkv/v1/admin.proto",
    "vmemkv/v1/node_admin.proto",
    "vmemkv/internal/v1/control.proto",
    "vmemkv/internal/v1/node.proto",
    "vmemkv/internal/v1/raft.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed={ROOT}");

    let files = protox::compile(FILES, [ROOT])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptor.bin"), files.encode_to_vec())?;

    tonic_prost_build::configure().bytes(".").compile_fds(files)?;
    Ok(())
}
