//! Nodes and the switch by the names that operators give.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::model::{Config, Node};

/// The name of the switch, unless a node has it.
const SWITCH: &str = "switch";

/// A name that the configuration does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnknownName {
    /// There is no such node.
    #[error("{file} has no node {name:?}; its nodes are {nodes}")]
    Node {
        /// The configuration file.
        file: String,
        /// The name.
        name: String,
        /// The names that it has.
        nodes: String,
    },
    /// There is no switch.
    #[error("{0} has no [switch]; add one, or name a node")]
    Switch(String),
    /// The node is one of another service.
    #[error("the node {0} does not have this service")]
    OfService(String),
}

impl<S> Config<S> {
    /// The node called `name`.
    ///
    /// # Errors
    /// There is no such node.
    pub fn known_node(&self, name: &str) -> Result<&Node, UnknownName> {
        self.node(name).ok_or_else(|| {
            let names: Vec<&str> = self.nodes.iter().map(|node| node.name.as_str()).collect();
            UnknownName::Node {
                file: self.shown_file(),
                name: name.to_owned(),
                nodes: names.join(", "),
            }
        })
    }

    /// The node called `name`; `None` for the switch.
    ///
    /// # Errors
    /// There is no such node, or no switch.
    pub fn node_or_switch(&self, name: &str) -> Result<Option<&Node>, UnknownName> {
        if name != SWITCH || self.node(name).is_some() {
            return self.known_node(name).map(Some);
        }
        if self.switch.is_none() {
            return Err(UnknownName::Switch(self.shown_file()));
        }
        Ok(None)
    }

    /// The host names at which nodes and the agent of the switch answer for their pages, besides
    /// `localhost` and addresses.
    pub fn admin_names(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|node| node.name.clone());
        self.admin.names.iter().cloned().chain(nodes).collect()
    }

    /// The addresses at which the agent of the switch shows its pages, the likeliest one first;
    /// none without a switch, and if it shows none.
    pub fn switch_pages(&self) -> Vec<SocketAddr> {
        let (Some(listen), Some(switch)) = (self.admin.switch_listen, &self.switch) else {
            return Vec::new();
        };
        if !listen.ip().is_unspecified() {
            return vec![listen];
        }
        let control = switch.control.hosts.iter();
        let mut all: Vec<_> = control.map(|ip| (ip, listen.port()).into()).collect();
        all.sort_by_key(|address: &SocketAddr| address.is_ipv4() != listen.is_ipv4());
        all
    }
}

/// The admin sockets of node `name`, one for each service that it has.
///
/// # Errors
/// There is no such node, or it has none of these services.
pub fn admin_sockets(parts: &[Config], name: &str) -> Result<Vec<PathBuf>, UnknownName> {
    let with = parts.iter().filter(|part| part.node(name).is_some());
    let sockets: Vec<_> = with.map(|part| part.admin_socket(name)).collect();
    if let ([], Some(part)) = (sockets.as_slice(), parts.first()) {
        match &part.whole {
            Some(file) => file.known_node(name)?,
            None => part.known_node(name)?,
        };
        return Err(UnknownName::OfService(name.to_owned()));
    }
    Ok(sockets)
}
