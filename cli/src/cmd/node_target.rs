//! Which server a `node` command acts on.
//!
//! Invariant: with several servers and none named, nothing is done.

use tonic::transport::Channel;
use vmemkv_proto::v1;
use vmemkv_proto::v1::node_admin_client::NodeAdminClient;

use crate::context::{Context, kv_on, node_admin_on};
use crate::failure::{Failure, Result};

/// A server that was found.
#[derive(Clone, Debug)]
pub(super) struct NodeTarget {
    /// Its id.
    pub(super) node_id: u64,
    /// Where it was reached.
    pub(super) address: String,
    /// The way to its engine.
    pub(super) admin: NodeAdminClient<Channel>,
}

/// Finds the server: `--addr` itself if it is one, else the one that the router knows as `name` (an
/// id or HOST:PORT), or the only one.
pub(super) async fn find(context: &Context, name: Option<&str>) -> Result<NodeTarget> {
    let channel = context.channel().await?;
    let info = kv_on(channel.clone()).get_info(context.call(v1::GetInfoRequest {})).await?;
    let info = info.into_inner();
    if info.role == "server" {
        let address = context.globals.addr.clone();
        if name.is_some_and(|name| name != info.node_id.to_string() && name != address) {
            return Err(Failure::usage(format!("{address} is node {} itself", info.node_id))
                .with_hint("leave NODE out, or give a router as --addr"));
        }
        return Ok(NodeTarget { node_id: info.node_id, address, admin: node_admin_on(channel) });
    }
    let nodes = list(context).await?;
    let node = choose(&nodes, name)?;
    let channel = context.channel_to(&node.address).await?;
    Ok(NodeTarget {
        node_id: node.node_id,
        address: node.address.clone(),
        admin: node_admin_on(channel),
    })
}

/// All nodes that the router knows.
pub(super) async fn list(context: &Context) -> Result<Vec<v1::Node>> {
    let mut admin = context.admin().await?;
    let mut nodes = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = v1::ListNodesRequest { page_token, page_size: 0 };
        let page = admin.list_nodes(context.call(request)).await?.into_inner();
        nodes.extend(page.nodes);
        if page.next_page_token.is_empty() {
            return Ok(nodes);
        }
        page_token = page.next_page_token;
    }
}

fn choose<'a>(nodes: &'a [v1::Node], name: Option<&str>) -> Result<&'a v1::Node> {
    let alive = |node: &&v1::Node| node.state() != v1::NodeState::Removed;
    if let Some(name) = name {
        let named = |node: &&v1::Node| node.node_id.to_string() == name || node.address == name;
        return nodes.iter().filter(alive).find(named).ok_or_else(|| {
            Failure::failed(format!("no node {name}")).with_hint("`vmemkv node list` lists them")
        });
    }
    let mut living = nodes.iter().filter(alive);
    match (living.next(), living.next()) {
        (Some(node), None) => Ok(node),
        (None, _) => Err(Failure::failed("the cluster has no node yet")
            .with_hint("start a server; `vmemkv status` shows when it is there")),
        _ => Err(Failure::usage("the cluster has several nodes: say which")
            .with_hint("`vmemkv node list` lists them")),
    }
}

/// A node's id on the command line.
pub(super) fn parse_id(name: &str) -> std::result::Result<u64, String> {
    name.parse().map_err(|_| "expected a number, as the lists print it".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(node_id: u64, state: v1::NodeState) -> v1::Node {
        let address = format!("10.0.0.{node_id}:7410");
        v1::Node { node_id, address, state: state as i32, ..Default::default() }
    }

    #[test]
    fn the_only_node_needs_no_name() {
        let (up, gone) = (v1::NodeState::Up, v1::NodeState::Removed);
        let nodes = [node(1, gone), node(2, up)];
        assert_eq!(choose(&nodes, None).unwrap().node_id, 2);
        assert!(choose(&nodes, Some("1")).unwrap_err().to_string().contains("no node 1"));
        let nodes = [node(1, up), node(2, up)];
        assert_eq!(choose(&nodes, None).unwrap_err().exit(), 2);
        assert_eq!(choose(&nodes, Some("1")).unwrap().node_id, 1);
        assert_eq!(choose(&nodes, Some("10.0.0.2:7410")).unwrap().node_id, 2);
        assert!(choose(&[], None).is_err());
    }
}
