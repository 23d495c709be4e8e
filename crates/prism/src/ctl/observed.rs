//! The state of a cluster as the page for a browser shows it (`node/state.rs`), for commands that
//! print it. Any process of the cluster answers it, on its admin socket or over HTTP.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use prism_config::Config;
use prism_process::fetch;
use prism_replicas::ProgressReport;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::reach::{Common, ask};
use crate::check;

/// The process that is asked.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct Source {
    /// Ask this node. Default: a node of this host, or one that answers at `admin.listen`.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Ask at this admin socket, such as that of `prism serve`.
    #[arg(long, value_name = "PATH", conflicts_with = "node")]
    socket: Option<PathBuf>,
}

/// A way to a process.
enum Way {
    Socket(PathBuf),
    Http(SocketAddr),
}

/// The ways to processes, the best one first.
pub(super) struct Ways(Vec<Way>);

/// The state of a cluster.
#[derive(Debug, Deserialize)]
pub(super) struct State {
    pub(super) name: String,
    pub(super) time_ms: u64,
    /// The servers of a service with upstreams; `None` of the object store.
    pub(super) servers: Option<Vec<Server>>,
    pub(super) nodes: Vec<Node>,
    pub(super) cluster: Option<Cluster>,
    pub(super) switch: Option<Switch>,
}

/// A server of an upstream, as its backend judges it.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Server {
    pub(super) upstream: String,
    pub(super) address: String,
    pub(super) backend: String,
    pub(super) state: String,
    pub(super) gets_requests: bool,
    pub(super) under_way: u64,
    /// Requests that it failed, by the reason.
    pub(super) errors: BTreeMap<String, u64>,
    pub(super) ejections: u64,
    pub(super) last_fault: Option<LastFault>,
}

/// The failure that last made a server unhealthy.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct LastFault {
    pub(super) reason: String,
    /// `check` or `request`.
    pub(super) by: String,
    pub(super) ago_s: u64,
}

/// A node. Figures are absent if it does not answer.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) error: Option<String>,
    pub(super) roles: Option<Vec<String>>,
    pub(super) time_ms: u64,
    pub(super) uptime_s: u64,
    pub(super) not_ready: Option<String>,
    pub(super) connections: u64,
    pub(super) accepted: u64,
    /// Flows that the standby of a pair of switches is not known to have.
    pub(super) flows_uncopied: u64,
    pub(super) requests: Vec<Requests>,
    pub(super) handed_off: Vec<Peer>,
    pub(super) store: Option<Store>,
    pub(super) certificates: Vec<Certificate>,
    pub(super) access_log_dropped_lines: u64,
    pub(super) suspects: Vec<String>,
}

/// Requests of one kind since the start of the process.
#[derive(Debug, Deserialize)]
pub(super) struct Requests {
    pub(super) code: u16,
    pub(super) count: u64,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
}

/// Connections that were handed to another node.
#[derive(Debug, Deserialize)]
pub(super) struct Peer {
    pub(super) count: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Store {
    pub(super) used_bytes: u64,
    pub(super) quota_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) corrupt_reads: u64,
    pub(super) scrub_faults: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Certificate {
    pub(super) file: String,
    pub(super) expires_s: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Cluster {
    pub(super) cluster: String,
    pub(super) asked: String,
    pub(super) epoch: u64,
    pub(super) replicas: u64,
    pub(super) min_replicas: u64,
    pub(super) phase: String,
    pub(super) fault: Option<String>,
    pub(super) backends: Vec<Backend>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Backend {
    pub(super) name: String,
    pub(super) in_reach: bool,
    pub(super) lives: Option<bool>,
    pub(super) status: Option<String>,
    pub(super) open_changes: Option<u64>,
    pub(super) catching_up: Option<ProgressReport>,
    #[serde(default)]
    pub(super) has_other_store: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Switch {
    pub(super) error: Option<String>,
    /// The name of this host of a pair.
    pub(super) host: Option<String>,
    pub(super) active: bool,
    pub(super) term: u32,
    /// Nodes whose flows the switch does not know yet.
    pub(super) nodes_awaited: usize,
    pub(super) flows: Option<u64>,
    pub(super) max_flows: u64,
    pub(super) nodes: Vec<Leased>,
    pub(super) keys: Vec<ServiceKeys>,
}

/// The secrets of the keys of a service's nodes, the newest first.
#[derive(Debug, Deserialize)]
pub(super) struct ServiceKeys {
    pub(super) service: String,
    pub(super) secrets: Vec<SecretInUse>,
}

/// A secret, and the nodes that have a lease by a key of it.
#[derive(Debug, Deserialize)]
pub(super) struct SecretInUse {
    pub(super) id: String,
    pub(super) nodes: Vec<String>,
}

/// A node, as the agent of the switch sees it.
#[derive(Debug, Deserialize)]
pub(super) struct Leased {
    pub(super) name: String,
    pub(super) up: bool,
}

impl Source {
    /// The ways to the processes that may answer.
    pub(super) fn ways(&self, common: &Common) -> anyhow::Result<Ways> {
        if let Some(socket) = &self.socket {
            return Ok(Ways(vec![Way::Socket(socket.clone())]));
        }
        let config = common.load()?;
        let ways = match &self.node {
            Some(name) => vec![Way::Socket(
                config.admin_socket(&check::node(&config, name)?.name),
            )],
            None => all_ways(&config),
        };
        if ways.is_empty() {
            bail!(
                "no node of {} runs on this host, and admin.listen is off; run this on a node's host",
                config.shown_file()
            );
        }
        Ok(Ways(ways))
    }
}

/// The sockets of this host, the nodes' HTTP addresses, and that of the switch, which knows the
/// least.
fn all_ways(config: &Config) -> Vec<Way> {
    let sockets = config
        .nodes
        .iter()
        .map(|node| config.admin_socket(&node.name));
    let here = sockets.filter(|socket| socket.exists()).map(Way::Socket);
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
    let switch = config.admin.switch_listen.zip(config.switch.as_ref());
    let switch = switch.into_iter().flat_map(|(listen, switch)| {
        let at = |ip: IpAddr| SocketAddr::new(ip, listen.port());
        match listen.ip().is_unspecified() {
            true => switch.control.hosts.iter().map(at).collect(),
            false => vec![listen],
        }
    });
    let nodes = nodes.into_iter();
    here.chain(nodes.chain(switch).map(Way::Http)).collect()
}

impl Ways {
    /// The ways to the processes of this configuration.
    pub(super) fn of(config: &Config) -> Self {
        Self(all_ways(config))
    }

    /// The state, and the whole document, of the first process that answers.
    pub(super) async fn state(&self) -> anyhow::Result<(State, Value)> {
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

impl Way {
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
