//! `prism ctl drain-connections`: moves the client connections of a node of this host to
//! other nodes.

use std::io::Write;

use serde::Deserialize;

use super::reach::{ConfigFile, ask};
use crate::check;

/// Move the client connections of a node on this host to other nodes.
///
/// Each moves after its present answer. The node goes on and takes new connections.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainConnectionsArgs {
    /// Name of the node.
    name: String,
    #[command(flatten)]
    config: ConfigFile,
}

/// A node's answer.
#[derive(Deserialize)]
struct Told {
    node: String,
    connections: u64,
}

pub(super) fn run(args: &DrainConnectionsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let socket = config.admin_socket(&check::node(&config, &args.name)?.name);
    let (Told { node, connections }, _) = ask(&socket, "drain-connections")?;
    writeln!(out, "{node}: {connections} connections begin to move")?;
    Ok(())
}
