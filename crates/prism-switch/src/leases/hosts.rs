//! The addresses of nodes. A node has one for each family, and leases by one of them.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The nodes. Each is known by its first address.
#[derive(Debug, Default)]
pub(super) struct Hosts(HashMap<IpAddr, Arc<[IpAddr]>>);

impl Hosts {
    pub(super) fn new(nodes: impl IntoIterator<Item = Vec<IpAddr>>) -> Self {
        let entries = nodes.into_iter().flat_map(|addresses| {
            let all: Arc<[IpAddr]> = addresses.clone().into();
            addresses
                .into_iter()
                .map(move |address| (address, all.clone()))
        });
        Self(entries.collect())
    }

    /// The first address of the node that has `address`; `None` if no node has it.
    pub(super) fn node_of(&self, address: IpAddr) -> Option<IpAddr> {
        self.0.get(&address)?.first().copied()
    }

    /// All addresses of the node whose first is `node`. A former node has that one.
    pub(super) fn addresses(&self, node: IpAddr) -> Arc<[IpAddr]> {
        let known = self.0.get(&node).cloned();
        known.unwrap_or_else(|| Arc::new([node]))
    }

    /// The first addresses of all nodes.
    pub(super) fn nodes(&self) -> HashSet<IpAddr> {
        let all = self.0.values();
        all.filter_map(|addresses| addresses.first().copied())
            .collect()
    }
}
