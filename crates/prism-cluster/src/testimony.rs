//! The testimony of a store: the state of the cluster that it acted by last. A state that does
//! not succeed it was founded again after a loss, or restored from a copy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{placement::NodeName, state::State};

/// A store's record of the cluster that it was in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Testimony {
    /// The store's identity.
    pub store: u64,
    /// The epoch by which it acted last; 1 for a new store.
    pub epoch: u64,
    /// The state by which it acted last, if it has recorded one.
    pub state: Option<State>,
}

/// The testimonies of stores, by the names of their backends.
pub type Testimonies = BTreeMap<NodeName, Testimony>;

impl Testimony {
    /// Whether the store may act by this state, which has to succeed its own.
    pub fn accepts(&self, state: &State) -> bool {
        let succeeds = |own: &State| state.succeeds(own.founding, own.epoch);
        state.epoch >= self.epoch && self.state.as_ref().is_none_or(succeeds)
    }

    /// Whether the store has acted by a state that was made from this one, or by later steps of
    /// the same founding. It was in this cluster then, whatever its identity.
    pub fn is_later_than(&self, state: &State) -> bool {
        // Clusters of older releases all have the founding 0.
        let succeeds = |own: &State| own.succeeds(state.founding, state.epoch);
        let is_proven = state.founding != 0 && self.state.as_ref().is_some_and(succeeds);
        is_proven && !self.accepts(state)
    }

    /// Whether the store was never in a cluster with etcd.
    pub fn is_blank(&self) -> bool {
        self.state.is_none() && self.epoch <= 1
    }
}

impl State {
    /// A backend whose store contradicts this state: the state does not succeed the store's
    /// state, and has the store as that of the backend, or is an older one of the store's
    /// cluster. The store may have become the backend's since then. A store of another cluster
    /// contradicts nothing.
    pub fn contradicted<'a>(&self, testimonies: &'a Testimonies) -> Option<&'a NodeName> {
        let speaks_of = |name: &NodeName, store: u64| {
            let backend = self.backends.get(name);
            // A state that does not know the backend's store yet accepts any.
            backend.is_some_and(|backend| [0, store].contains(&backend.store))
        };
        let mut testimonies = testimonies.iter();
        let found = testimonies.find(|(name, testimony)| {
            let is_named = speaks_of(name, testimony.store) && !testimony.accepts(self);
            is_named || testimony.is_later_than(self)
        });
        found.map(|(name, _)| name)
    }
}
