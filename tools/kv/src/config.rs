//! The configuration file of a node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use prism_handoff::pki::Identity;
use prism_handoff::{EndpointConfig, Peer, SwitchAddress};
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// This node's name.
    pub(crate) name: String,
    /// The directory with its certificate and the authority's.
    pki_dir: PathBuf,
    /// The address that clients connect to, at the primary.
    service: SocketAddr,
    /// The size of a value from which on its reader moves to a replica, and that of a command
    /// from which on a writer moves to the primary, in bytes.
    pub(crate) move_from_bytes: usize,
    /// The first one is the primary.
    nodes: Vec<Member>,
    switch: SwitchAccess,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Member {
    name: String,
    address: IpAddr,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SwitchAccess {
    /// Its control address.
    control: SocketAddr,
    /// The switch knows the key by this number.
    key_id: u32,
    key: [u8; 16],
}

impl Config {
    pub(crate) fn primary(&self) -> &str {
        self.nodes.first().map_or("", |node| &node.name)
    }

    pub(crate) fn is_primary(&self) -> bool {
        self.primary() == self.name
    }

    /// One of the replicas; each gets its turn.
    pub(crate) fn replica(&self, turn: usize) -> Option<&str> {
        let replicas = self.nodes.get(1..)?;
        let replica = replicas.get(turn.checked_rem(replicas.len())?)?;
        Some(&replica.name)
    }

    /// The configuration of this node's endpoint.
    pub(crate) fn endpoint(&self) -> Result<EndpointConfig> {
        let nodes = self.nodes.iter().map(|node| Peer {
            name: node.name.clone(),
            addresses: vec![node.address],
        });
        let nodes: Vec<_> = nodes.collect();
        let identity = Identity::of_node(&self.pki_dir, &self.name)?;
        let config = EndpointConfig::new(&self.name, &nodes, &[self.service], identity);
        let mut config = config.with_context(|| format!("no node is called {}", self.name))?;
        config.listen = self.is_primary();
        let switch = &self.switch;
        config.switch = Some(SwitchAddress::new(
            switch.control,
            switch.key_id,
            switch.key,
        ));
        Ok(config)
    }
}
