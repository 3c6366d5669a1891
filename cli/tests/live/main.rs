//! The commands against the live service: each test starts `vmemkv dev` on free ports.

#![allow(clippy::unwrap_used)]

mod data;
mod import_export;
mod processes;
mod service;
