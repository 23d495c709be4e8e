//! The configuration file of a node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use prism_handoff::pki::Identity;
use prism_handoff::{ClientLimits, EndpointConfig, NewcomerLimits, Peer, SwitchAddress};
use serde::{Deserialize, Serialize};

/// The largest number of clients of a node. Each may hold 512 KiB of a command in its buffer.
const MAX_CLIENTS: u64 = 10_000;

/// The configuration of a node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// This node's name.
    pub name: String,
    /// The directory with its certificate and the authority's.
    pub pki_dir: PathBuf,
    /// The address that clients of this node connect to.
    pub service: SocketAddr,
    /// Whether this node accepts clients at the service address.
    pub listen: bool,
    /// The size of a value from which on its reader moves to a replica, and a writer to the
    /// primary, in bytes.
    pub move_from_bytes: usize,
    /// All nodes. The first one is the primary.
    pub nodes: Vec<Node>,
    /// The switch. Without one no connection moves.
    pub switch: Option<Switch>,
}

/// A node.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: IpAddr,
}

/// The switch.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Its control address.
    pub control: SocketAddr,
    /// The number of the key.
    pub key_id: u32,
    /// The key.
    pub key: [u8; 16],
}

impl Config {
    /// The primary's name.
    ///
    /// # Errors
    /// Without nodes.
    pub fn primary(&self) -> Result<&str> {
        let first = self.nodes.first().context("there are no nodes")?;
        Ok(&first.name)
    }

    /// The configuration of this node's endpoint.
    ///
    /// # Errors
    /// When this node is not among the nodes, or its certificate cannot be read.
    pub fn endpoint(&self) -> Result<EndpointConfig> {
        let nodes = self.nodes.iter().map(|node| Peer {
            name: node.name.clone(),
            addresses: vec![node.address],
        });
        let nodes: Vec<_> = nodes.collect();
        let identity = Identity::of_node(&self.pki_dir, &self.name)?;
        let config = EndpointConfig::new(&self.name, &nodes, &[self.service], identity);
        let mut config = config.with_context(|| format!("no node is called {}", self.name))?;
        config.listen = self.listen;
        let clients = ClientLimits::new(MAX_CLIENTS, NewcomerLimits::default());
        config.clients = Arc::new(clients);
        let switch = self.switch.as_ref();
        config.switch = switch.map(|s| SwitchAddress::new(s.control, s.key_id, s.key));
        Ok(config)
    }
}
