//! The nodes of the cluster: names, addresses and roles.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use prism_config::{Config, HostAddrs, Role};
use serde::{Deserialize, Serialize};

/// Most nodes that are taken from etcd. A file may have as many.
const MAX_NODES: usize = 1_024;

/// One node. It is also the node's value in etcd. Release 0.2.0 reads it if it has an IPv4 address,
/// and passes over the other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// Its own addresses.
    #[serde(flatten, with = "Addresses")]
    pub address: HostAddrs,
    /// Its roles.
    pub roles: Vec<Role>,
}

/// The fields of [`HostAddrs`] in that value.
#[derive(Serialize, Deserialize)]
#[serde(remote = "HostAddrs")]
struct Addresses {
    #[serde(rename = "address", default, skip_serializing_if = "Option::is_none")]
    v4: Option<Ipv4Addr>,
    #[serde(
        rename = "address_v6",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    v6: Option<Ipv6Addr>,
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
            address: Ipv4Addr::new(10, 0, 0, last).into(),
            roles: vec![Role::Backend],
        };
        let file = Directory(BTreeMap::from([
            ("a".into(), host(1)),
            ("b".into(), host(2)),
        ]));
        let registered = BTreeMap::from([("b".into(), host(9)), ("c".into(), host(3))]);
        let all = file.with(&registered);
        let addresses: Vec<_> = all.iter().map(|(name, h)| (name, h.address)).collect();
        let at = |last| Ipv4Addr::new(10, 0, 0, last).into();
        assert_eq!(addresses, [("a", at(1)), ("b", at(9)), ("c", at(3))]);
    }

    #[test]
    fn a_node_in_etcd_reads_as_it_was_written() {
        let (v4, v6) = (Ipv4Addr::new(10, 0, 0, 1), Ipv6Addr::LOCALHOST);
        let host = |v4, v6| Host {
            address: HostAddrs { v4, v6 },
            roles: vec![Role::Frontend, Role::Backend],
        };
        let roles = r#""roles":["frontend","backend"]"#;
        for (host, fields) in [
            (host(Some(v4), None), r#""address":"10.0.0.1""#),
            (host(None, Some(v6)), r#""address_v6":"::1""#),
            (
                host(Some(v4), Some(v6)),
                r#""address":"10.0.0.1","address_v6":"::1""#,
            ),
        ] {
            let text = serde_json::to_string(&host).unwrap();
            assert_eq!(text, format!("{{{fields},{roles}}}"));
            assert_eq!(serde_json::from_str::<Host>(&text).unwrap(), host);
        }
    }

    /// A node's value as release 0.2.0 has it.
    #[derive(Deserialize)]
    struct OfRelease020 {
        address: Ipv4Addr,
        roles: Vec<Role>,
    }

    #[test]
    fn an_older_release_reads_a_node_with_both_families() {
        let host = Host {
            address: HostAddrs {
                v4: Some(Ipv4Addr::new(10, 0, 0, 1)),
                v6: Some(Ipv6Addr::LOCALHOST),
            },
            roles: vec![Role::Backend],
        };
        let text = serde_json::to_string(&host).unwrap();
        let read: OfRelease020 = serde_json::from_str(&text).unwrap();
        assert_eq!(Some(read.address), host.address.v4);
        assert_eq!(read.roles, host.roles);
    }
}
