//! The number of flows of each owner. The agent's walks count them, so that nobody else needs to
//! read the whole table for it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use libbpf_rs::{MapCore, MapFlags};
use parking_lot::Mutex;

use crate::error::{KernelError, kernel};
use crate::layout::{address, from_bytes};

/// The flows that a walk has found. One that changed during the walk is counted before or after
/// its change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Flows by the address of their owner's node.
    pub of_nodes: BTreeMap<IpAddr, u64>,
    /// Entries of flows that have ended.
    pub tombstones: u64,
}

impl Census {
    /// All entries of the table.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.of_nodes.values().sum::<u64>() + self.tombstones
    }
}

/// The census of the last complete walk.
#[derive(Debug, Default)]
pub struct LastCensus(Mutex<Option<Census>>);

impl LastCensus {
    /// The census; `None` before the end of the agent's first walk. Walks start at most once a
    /// second.
    pub fn get(&self) -> Option<Census> {
        let last = self.0.lock();
        last.clone()
    }

    pub(crate) fn set(&self, census: Census) {
        *self.0.lock() = Some(census);
    }
}

/// Sets all counts back, for a new walk.
pub(crate) fn clear(map: &impl MapCore) -> Result<(), KernelError> {
    let known: Vec<_> = map.keys().collect();
    let cleared = known.iter().try_for_each(|key| map.delete(key));
    cleared.map_err(kernel("clear the census"))
}

/// The counts of the walk that has just ended.
pub(crate) fn read(map: &impl MapCore) -> Result<Census, KernelError> {
    let mut census = Census::default();
    for key in map.keys() {
        let value = map.lookup(&key, MapFlags::ANY);
        let value = value.map_err(kernel("read the census"))?;
        let count = value.map_or(0, |value| from_bytes(&value));
        match address(from_bytes(&key)) {
            node if node.is_unspecified() => census.tombstones = count,
            node => drop(census.of_nodes.insert(node, count)),
        }
    }
    Ok(census)
}
