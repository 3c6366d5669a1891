//! The gRPC services of a router.

pub(crate) mod proxy;
