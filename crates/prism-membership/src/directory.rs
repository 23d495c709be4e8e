//! The nodes of the cluster: names, addresses and roles.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use prism_config::{Config, Role};
use serde::{Deserialize, Serialize};

/// Most nodes that are taken from etcd. A file may have as many.
const MAX_NODES: usize = 1_024;

/// One node, in the form of its value in etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its own address.
    pub address: Ipv4Addr,
    /// Its roles.
    pub roles: Vec<Role>,
}

impl Host {
    /// The node as the configuration describes it.
    pub fn of(node: &prism_config::Node) -> Self {
        Self {
            address: node.address,
            roles: node.roles.clone(),
        }
    }

    /// Whether it accepts clients.
    pub fn is_frontend(&self) -> bool {
        self.roles.contains(&Role::Frontend)
    }

    /// Whether it stores objects.
    pub fn is_backend(&self) -> bool {
        self.roles.contains(&Role::Backend)
    }
}

/// All nodes, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Directory(BTreeMap<String, Host>);

impl Directory {
    /// The nodes of the file.
    pub fn of(config: &Config) -> Self {
        let nodes = config.nodes.iter();
        let hosts = nodes.map(|node| (node.name.clone(), Host::of(node)));
        Self(hosts.collect())
    }

    /// These nodes and the registered ones. A node's own registration outranks this file.
    pub(super) fn with(&self, registered: &BTreeMap<String, Host>) -> Self {
        let mut all = self.clone();
        for (name, host) in registered.iter().take(MAX_NODES) {
            all.0.insert(name.clone(), host.clone());
        }
        all
    }

    /// These nodes and the others. A node of both is as the others have it.
    #[must_use]
    pub fn joined_by(&self, others: &Self) -> Self {
        self.with(&others.0)
    }

    /// All nodes, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Host)> {
        self.0.iter().map(|(name, host)| (name.as_str(), host))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn what_a_node_says_of_itself_counts_more_than_a_file() {
        let host = |last| Host {
            address: Ipv4Addr::new(10, 0, 0, last),
            roles: vec![Role::Backend],
        };
        let file = Directory(BTreeMap::from([
            ("a".into(), host(1)),
            ("b".into(), host(2)),
        ]));
        let registered = BTreeMap::from([("b".into(), host(9)), ("c".into(), host(3))]);
        let all = file.with(&registered);
        let addresses: Vec<_> = all.iter().map(|(name, h)| (name, h.address)).collect();
        let at = |last| Ipv4Addr::new(10, 0, 0, last);
        assert_eq!(addresses, [("a", at(1)), ("b", at(9)), ("c", at(3))]);
    }

    #[test]
    fn a_node_in_etcd_reads_as_it_was_written() {
        let host = Host {
            address: Ipv4Addr::new(10, 0, 0, 1),
            roles: vec![Role::Frontend, Role::Backend],
        };
        let text = serde_json::to_string(&host).unwrap();
        assert_eq!(
            text,
            r#"{"address":"10.0.0.1","roles":["frontend","backend"]}"#
        );
        assert_eq!(serde_json::from_str::<Host>(&text).unwrap(), host);
    }
}
