//! `prism ctl drain-connections`: moves the client connections of a node of this host to
//! other nodes.

use std::io::Write;

use prism_process::ask;
use serde::Deserialize;

use crate::reach::{Common, print_json};

/// Move the client connections of a node on this host to other nodes.
///
/// Each moves after its present answer. The node goes on and takes new connections.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DrainConnectionsArgs {
    /// Name of the node.
    name: String,
}

/// A node's answer.
#[derive(Deserialize)]
struct DrainAnswer {
    node: String,
    connections: u64,
}

pub(crate) fn run(
    args: &DrainConnectionsArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let config = common.load()?;
    let socket = config.admin_socket(&config.known_node(&args.name)?.name);
    let (DrainAnswer { node, connections }, document) = ask(&socket, "drain-connections")?;
    if common.json {
        return print_json(out, &document);
    }
    writeln!(out, "{node}: {connections} connections begin to move")?;
    Ok(())
}
