//! The Raft group of the routers.

mod node;

pub(crate) use self::node::RaftNode;
