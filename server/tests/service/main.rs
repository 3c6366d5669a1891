//! The server as its callers see it: a real engine, a router that tests drive, gRPC in between.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod admin;
mod batch;
mod deadline;
mod fake_router;
mod harness;
mod membership;
mod point;
mod refusals;
mod scan;
mod shutdown;
mod slow_reader;
mod split;
