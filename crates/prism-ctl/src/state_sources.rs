//! The ways to processes of a cluster that answer with its state, on an admin socket or over HTTP.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use prism_config::Config;
use prism_figures::State;
use prism_process::{ask, fetch};
use serde::Deserialize;
use serde_json::Value;

use crate::reach::Common;

/// The process that is asked.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SourceArgs {
    /// Ask this node. Default: a node of this host, or one that answers at `admin.listen`.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Ask at this admin socket, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    socket: Option<PathBuf>,
}

/// A way to a process.
enum StateSource {
    Socket(PathBuf),
    Http(SocketAddr),
}

/// The ways to processes, the best one first.
pub(crate) struct StateSources(Vec<StateSource>);

impl SourceArgs {
    /// The ways to the processes that may answer.
    pub(crate) fn ways(&self, common: &Common) -> anyhow::Result<StateSources> {
        if let Some(socket) = &self.socket {
            return Ok(StateSources(vec![StateSource::Socket(socket.clone())]));
        }
        let config = common.load()?;
        let ways = match &self.node {
            Some(name) => vec![StateSource::Socket(
                config.admin_socket(&config.known_node(name)?.name),
            )],
            None => all_ways(&config),
        };
        if ways.is_empty() {
            bail!(
                "no node of {} runs on this host, and admin.listen is off; run this on a node's host",
                config.shown_file()
            );
        }
        Ok(StateSources(ways))
    }
}

/// The sockets of this host, the nodes' HTTP addresses, and that of the switch, which knows the
/// least.
fn all_ways(config: &Config) -> Vec<StateSource> {
    let here = config.sockets_here().map(StateSource::Socket);
    let mut nodes: Vec<SocketAddr> = Vec::new();
    for node in &config.nodes {
        let Some(listen) = config.admin_listen(&node.name) else {
            continue;
        };
        let at = |ip: IpAddr| SocketAddr::new(ip, listen.port());
        match listen.ip().is_unspecified() {
            true => nodes.extend(node.address.iter().map(at)),
            false if nodes.contains(&listen) => {}
            false => nodes.push(listen),
        }
    }
    nodes.extend(config.switch_pages());
    here.chain(nodes.into_iter().map(StateSource::Http))
        .collect()
}

impl StateSources {
    /// The ways to the processes of this configuration.
    pub(crate) fn of(config: &Config) -> Self {
        Self(all_ways(config))
    }

    /// The state, and the whole document, of the first process that answers.
    pub(crate) async fn state(&self) -> anyhow::Result<(State, Value)> {
        let mut fault = None;
        for way in &self.0 {
            match way.ask().await {
                Ok(state) => return Ok(state),
                // The first way is the one that is meant.
                Err(error) => fault = fault.or(Some(error)),
            }
        }
        Err(fault.context("there is no way to the cluster")?)
    }
}

impl StateSource {
    async fn ask(&self) -> anyhow::Result<(State, Value)> {
        match self {
            Self::Socket(path) => {
                let path = path.clone();
                tokio::task::spawn_blocking(move || ask(&path, "state")).await?
            }
            Self::Http(address) => {
                let answer = fetch(*address, "/state").await;
                let document = answer
                    .with_context(|| format!("the node at http://{address} does not answer"))?;
                Ok((State::deserialize(&document)?, document))
            }
        }
    }
}
