//! `prism ctl drain-connections`: has nodes on this host move the connections that they
//! have to other nodes.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use prism_config::Config;
use serde::Deserialize;

use super::ask;

/// Have a node on this host move its clients' connections to other nodes, each behind its
/// present answer. The node goes on, and takes new ones.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainConnectionsArgs {
    /// Which node.
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
        .with_context(|| format!("no [[node]] is called {:?}", args.name))?;
    let told: Told = ask(&config.admin_socket(&args.name), "drain-connections")?;
    writeln!(
        out,
        "{}: {} connections are told to move",
        told.node, told.connections
    )?;
    Ok(())
}
