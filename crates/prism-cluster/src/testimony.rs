//! What a store has noted of the cluster that it was in, and whether a state goes on
//! from there. A state that does not is not the one that the store's cluster had: it
//! was lost, and founded anew or put back from a copy.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{placement::NodeName, state::State};

/// What a store says of the cluster that it was in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Testimony {
    /// Its identity.
    pub store: u64,
    /// The epoch by which it acted last; 1 if it was never in another.
    pub epoch: u64,
    /// The state by which it acted last, if it has noted one.
    pub state: Option<State>,
}

/// What the stores say, by the backends that have them.
pub type Testimonies = BTreeMap<NodeName, Testimony>;

impl Testimony {
    /// Whether the store may act by this state: it goes on where the store was.
    #[must_use]
    pub fn accepts(&self, state: &State) -> bool {
        let succeeds = |own: &State| state.succeeds(own.founding, own.epoch);
        state.epoch >= self.epoch && self.state.as_ref().is_none_or(succeeds)
    }

    /// The store was never in a cluster that changes.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.state.is_none() && self.epoch <= 1
    }
}

impl State {
    /// A backend whose store shows that this is not the cluster's state: the store is
    /// the one of which the state speaks, and was in one that this does not go on
    /// from. A store of another cluster shows nothing.
    #[must_use]
    pub fn contradicted<'a>(&self, said: &'a Testimonies) -> Option<&'a NodeName> {
        let speaks_of = |name: &NodeName, store: u64| {
            let backend = self.backends.get(name);
            // One that is not noted yet may be any.
            backend.is_some_and(|backend| [0, store].contains(&backend.store))
        };
        let mut said = said.iter();
        let found = said.find(|(name, t)| speaks_of(name, t.store) && !t.accepts(self));
        found.map(|(name, _)| name)
    }
}
