//! The owners of an object by rendezvous (highest random weight) hashing.
//!
//! Every node that knows the same names computes the same owners. Adding or removing one of
//! *n* nodes moves only the objects of that node, about 1/*n* of all. A node's weight for an
//! object is SipHash-2-4, under a fixed public key, of
//!
//! ```text
//! len(node) node len(bucket) bucket len(key) key
//! ```
//!
//! where each length is four bytes, big-endian. The nodes of greatest weight own the object.
//! Equal weights are ordered by name. The function is part of the data format: with another
//! function no node would find the stored objects.
//!
//! Not here: backends in sync, and changes with time.

use std::{borrow::Borrow, collections::BTreeSet, fmt, hash::Hasher, str::FromStr};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher24;

/// Longest node name, in bytes.
const NAME_MAX: usize = 255;

/// "prism placement1" as two little-endian words. The key is public, because placement only
/// spreads load.
const KEY: (u64, u64) = (
    u64::from_le_bytes(*b"prism pl"),
    u64::from_le_bytes(*b"acement1"),
);

/// The text is no name of a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("node name {0:?} is empty or too long")]
pub struct InvalidName(String);

/// The name of a node, which decides the objects that it owns. A node that returns under its
/// old name owns its old objects, whatever its address.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(String);

impl NodeName {
    /// Checks a name, which has 1 to 255 bytes.
    pub fn new(name: impl Into<String>) -> Result<Self, InvalidName> {
        let name = name.into();
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(InvalidName(name));
        }
        Ok(Self(name))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeName {
    type Err = InvalidName;

    fn from_str(name: &str) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl TryFrom<String> for NodeName {
    type Error = InvalidName;

    fn try_from(name: String) -> Result<Self, InvalidName> {
        Self::new(name)
    }
}

impl From<NodeName> for String {
    fn from(name: NodeName) -> Self {
        name.0
    }
}

impl Borrow<str> for NodeName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The owners of all objects.
#[derive(Debug, Clone)]
pub struct Placement {
    /// The nodes in the order of their names, so that a stable sort breaks ties by name.
    nodes: Vec<Node>,
}

#[derive(Debug, Clone)]
struct Node {
    name: NodeName,
    /// The hash state after the node's name, which begins every weight.
    state: SipHasher24,
}

impl Placement {
    /// A placement over `nodes`.
    pub fn new(nodes: &BTreeSet<NodeName>) -> Self {
        let nodes = nodes.iter().cloned().map(Node::new).collect();
        Self { nodes }
    }

    /// All nodes, in the order of their names.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.nodes.iter().map(|node| &node.name)
    }

    /// The `replicas` owners of an object, the heaviest first; all nodes when
    /// there are fewer. O(n log n) in the number of nodes, O(n) for one replica.
    pub fn owners<'a>(
        &'a self,
        bucket: &str,
        key: &str,
        replicas: usize,
    ) -> impl ExactSizeIterator<Item = &'a NodeName> + use<'a> {
        // A single node needs no weight.
        let weight = |node: &Node| match self.nodes.len() {
            1 => 0,
            _ => node.weight(bucket, key),
        };
        let nodes = self.nodes.iter();
        let mut ranked: Vec<(u64, &NodeName)> =
            nodes.map(|node| (weight(node), &node.name)).collect();
        let order = |a: &(u64, &NodeName), b: &(u64, &NodeName)| b.0.cmp(&a.0).then(a.1.cmp(b.1));
        if replicas < ranked.len() && replicas > 0 {
            ranked.select_nth_unstable_by(replicas - 1, order);
        }
        ranked.truncate(replicas);
        ranked.sort_unstable_by(order);
        ranked.into_iter().map(|(_, name)| name)
    }

    /// The heaviest owner.
    pub fn owner(&self, bucket: &str, key: &str) -> Option<&NodeName> {
        self.owners(bucket, key, 1).next()
    }
}

impl Node {
    fn new(name: NodeName) -> Self {
        let mut state = SipHasher24::new_with_keys(KEY.0, KEY.1);
        absorb(&mut state, name.as_str());
        Self { name, state }
    }

    fn weight(&self, bucket: &str, key: &str) -> u64 {
        let mut state = self.state;
        absorb(&mut state, bucket);
        absorb(&mut state, key);
        state.finish()
    }
}

/// A digest of everything that decides the owners of objects (docs/protocol.md, 1.7). Equal
/// placements have equal digests. Never 0. `names` are in ascending order.
pub(crate) fn digest<'a>(replicas: u16, names: impl Iterator<Item = &'a str>) -> u64 {
    let mut state = SipHasher24::new_with_keys(KEY.0, KEY.1);
    state.write(&replicas.to_be_bytes());
    names.for_each(|name| absorb(&mut state, name));
    state.finish().max(1)
}

/// Hashes the length first, so that no two different triples give the same bytes.
fn absorb(state: &mut SipHasher24, text: &str) {
    let len = u32::try_from(text.len()).unwrap_or(u32::MAX);
    state.write(&len.to_be_bytes());
    state.write(text.as_bytes());
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
