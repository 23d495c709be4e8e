//! `prism ctl drain-connections`: moves the client connections of a node of this host to
//! other nodes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use prism_config::Config;
use serde::Deserialize;

use super::ask;

/// Move the client connections of a node on this host to other nodes.
///
/// Each moves after its present answer. The node goes on and takes new connections.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainConnectionsArgs {
    /// Name of the node.
    name: String,
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/prism/prism.toml")]
    config: PathBuf,
}

/// A node's answer.
#[derive(Deserialize)]
struct Told {
    node: String,
    connections: u64,
}

pub(super) fn run(args: &DrainConnectionsArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    config
        .node(&args.name)
        .with_context(|| format!("the configuration has no node {:?}", args.name))?;
    let told: Told = ask(&config.admin_socket(&args.name), "drain-connections")?;
    writeln!(
        out,
        "{}: {} connections begin to move",
        told.node, told.connections
    )?;
    Ok(())
}
