//! Opens the parts of a node by its configuration, and ties them together.
//!
//! A node is a process with one thread per worker. Each worker has its own runtime, listeners
//! (`SO_REUSEPORT`), channels to other nodes and socket to the switch. So a connection never
//! changes threads.
//!
//! Not here: what the parts do.

mod admin;
mod certificates;
mod files;
mod leave;
mod metrics;
mod pages;
mod quota;
mod reload;
mod run;
mod server;
mod spans;
mod state;
mod worker;

use std::path::PathBuf;

use anyhow::bail;
use prism_config::Config;
use prism_membership::Cluster;
use prism_replicas::saved_state;

pub(crate) use self::run::until_stopped;
pub(crate) use self::server::{Server, open_store};
pub(crate) use self::spans::fault as spans_fault;
use crate::check;
use crate::observe::bind;

/// Serve clients, objects, or both: one node of a cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Which of its nodes this is.
    #[arg(long, value_name = "NAME")]
    node: String,
}

/// Runs until SIGTERM or SIGINT.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    crate::log::init(&config.log)?;
    check::node(&config, &args.node)?;
    if let Some(fault) = spans_fault(&config.trace) {
        bail!(fault);
    }
    // The store is opened first, because it has saved the cluster's last state.
    let store = open_store(&config, &args.node)?;
    let testimony = store.as_ref().map(saved_state::read).transpose()?;
    let cluster = Cluster::open(&config, &args.node, testimony)?;
    let listener = config
        .admin
        .listen
        .map(|address| bind(address, "admin.listen"));
    let listener = listener.transpose()?;
    let server = Server::open(
        config,
        &args.node,
        cluster,
        store,
        Some(args.config.clone()),
    )?;
    until_stopped(server, listener, || {})
}
