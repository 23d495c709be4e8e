//! Whether a node may act by the contents of etcd, as far as nodes and stores remember earlier
//! ones.
//!
//! etcd may lose its data, or be put back from an older copy. Its state could then call backends
//! in sync that are not, a key that was deleted would be let in again, and a bucket would be that
//! of an earlier life. Each store therefore records the state that it acts by, and each node the
//! last change of the [`Lineage`]. If one of them contradicts etcd, no node acts by it until the
//! administrator has run `prism ctl cluster recover`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    lineage::{Lineage, LineageMark},
    placement::NodeName,
    state::State,
    testimony::{Testimonies, Testimony},
};

/// A fault of the contents of etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A node has acted by a state, and etcd has none.
    #[error(
        "etcd has lost the state of this cluster, by which the store of {0} has acted; no node serves until `prism ctl cluster recover` has restored it from the stores"
    )]
    Lost(NodeName),
    /// The state is not a successor of the one that a store has acted by.
    #[error(
        "etcd has an older state of this cluster than the store of {0}, or one that was founded again; no node serves until `prism ctl cluster recover` has restored it from the stores"
    )]
    Contradicted(NodeName),
    /// The contents do not descend from those that a node has acted by.
    #[error(
        "etcd has an older copy of this cluster's keys than {0} has acted by, or one that was changed apart; no node serves until `prism ctl cluster recover` has put back what the stores know"
    )]
    Behind(NodeName),
    /// The state does not name this node's store, which was in another cluster.
    #[error(
        "this node's store was in another cluster, or in this one before it was founded again; if etcd has the right cluster, stop the node and move its store away, and this cluster fills a new one"
    )]
    Foreign,
}

/// The last change that a node has noted, published while the contents are in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The identity of the node's store; 0 for a frontend, which notes it in memory.
    pub store: u64,
    /// The change.
    pub mark: LineageMark,
}

/// Claims, by the names of nodes.
pub type Claims = BTreeMap<NodeName, Claim>;

/// The contents of etcd that are judged, with what other nodes say of them.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// The state, if there is one.
    pub state: Option<&'a State>,
    /// The lineage; none before the first change by a release that has one.
    pub lineage: Option<&'a Lineage>,
    /// The testimonies of stores.
    pub testimonies: &'a Testimonies,
    /// The claims of nodes.
    pub claims: &'a Claims,
}

/// The memory of the node that judges.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The node.
    pub name: NodeName,
    /// The testimony of its store, if it has one.
    pub testimony: Option<Testimony>,
    /// The last change that it has noted.
    pub mark: Option<LineageMark>,
}

impl Memory {
    /// The claim that the node makes.
    pub fn claim(&self) -> Option<Claim> {
        let store = self.testimony.as_ref();
        let store = store.map_or(0, |testimony| testimony.store);
        self.mark.map(|mark| Claim { store, mark })
    }
}

impl Contents<'_> {
    /// The reason for which a node with this memory must not act by the contents.
    pub fn fault(&self, own: Option<&Memory>) -> Option<Fault> {
        let mut testimonies = self.testimonies.clone();
        let own_testimony = own.and_then(|own| own.testimony.as_ref());
        if let (Some(own), Some(testimony)) = (own, own_testimony) {
            testimonies.insert(own.name.clone(), testimony.clone());
        }
        let own_claim = own.and_then(|own| Some((&own.name, own.claim()?)));
        let Some(state) = self.state else {
            let mut all = testimonies.iter();
            let found = all.find(|(_, testimony)| !testimony.is_blank());
            let name = found.map(|(name, _)| name);
            let name = name.or(own_claim.map(|(name, _)| name));
            return name.map(|name| Fault::Lost(name.clone()));
        };
        if let Some(name) = state.contradicted(&testimonies) {
            return Some(Fault::Contradicted(name.clone()));
        }
        if own_testimony.is_some_and(|own| !own.accepts(state)) {
            return Some(Fault::Foreign);
        }
        // A node's own memory counts even if the state names another store, or none: the store
        // was renewed, or is no member. It is no foreign one.
        if let Some((name, claim)) = own_claim
            && !self.descends_from(claim.mark)
        {
            return Some(Fault::Behind(name.clone()));
        }
        // A frontend's memory counts for itself only: nobody could prove it wrong.
        let mut others = self.claims.iter().filter(|(_, claim)| claim.store != 0);
        let is_behind = |(name, claim): &(&NodeName, &Claim)| {
            claim.is_of(state, name) && !self.descends_from(claim.mark)
        };
        let behind = others.find(is_behind);
        behind.map(|(name, _)| Fault::Behind(name.clone()))
    }

    /// Whether the contents are as a node with this mark has left them, or later.
    pub fn descends_from(&self, mark: LineageMark) -> bool {
        self.lineage
            .is_some_and(|lineage| lineage.descends_from(mark))
    }

    /// Whether any node or store has seen contents that these do not succeed.
    pub fn are_contradicted(&self) -> bool {
        let mut claims = self.claims.iter();
        let is_behind = |(name, claim): (&NodeName, &Claim)| {
            let counts = self.state.is_none_or(|state| claim.is_of(state, name));
            counts && !self.descends_from(claim.mark)
        };
        claims.any(is_behind) || self.fault(None).is_some()
    }
}

impl Claim {
    /// Whether the state has the store as that of the node, or the node has none. A store of
    /// another cluster claims nothing.
    fn is_of(&self, state: &State, name: &NodeName) -> bool {
        let backend = state.backends.get(name);
        self.store == 0 || backend.is_some_and(|backend| [0, self.store].contains(&backend.store))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;
    use crate::state::Placing;

    fn name(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    fn state(founding: u64, epoch: u64) -> State {
        let placing = Placing::new([name("a"), name("b")], 2).unwrap();
        let mut state = State::new(placing);
        (state.founding, state.epoch) = (founding, epoch);
        for (store, backend) in (1..).zip(state.backends.values_mut()) {
            backend.store = store;
        }
        state
    }

    fn was_in(store: u64, state: &State) -> Testimony {
        Testimony {
            store,
            epoch: state.epoch,
            state: Some(state.clone()),
        }
    }

    fn fault(
        state: Option<&State>,
        testimonies: &Testimonies,
        own: Option<(&NodeName, &Testimony)>,
    ) -> Option<Fault> {
        let contents = Contents {
            state,
            lineage: None,
            testimonies,
            claims: &Claims::new(),
        };
        let own = own.map(|(name, testimony)| Memory {
            name: name.clone(),
            testimony: Some(testimony.clone()),
            mark: None,
        });
        contents.fault(own.as_ref())
    }

    #[test]
    fn a_state_that_is_gone_or_older_than_a_store_is_not_acted_by() {
        let (old, last) = (state(7, 3), state(7, 5));
        let (a, own) = (name("a"), was_in(1, &last));
        let own = Some((&a, &own));
        let none = Testimonies::new();
        assert_eq!(fault(Some(&last), &none, own), None);
        assert_eq!(fault(Some(&state(7, 6)), &none, own), None);
        let contradicted = Some(Fault::Contradicted(a.clone()));
        assert_eq!(fault(Some(&old), &none, own), contradicted);
        assert_eq!(fault(Some(&state(8, 50)), &none, own), contradicted);
        assert_eq!(fault(None, &none, own), Some(Fault::Lost(a.clone())));
        // A node whose own store agrees learns the fault from another store.
        let b = name("b");
        let testimonies = Testimonies::from([(a.clone(), was_in(1, &last))]);
        let other = was_in(2, &old);
        assert_eq!(
            fault(Some(&old), &testimonies, Some((&b, &other))),
            contradicted
        );
        assert_eq!(fault(None, &testimonies, None), Some(Fault::Lost(a)));
    }

    #[test]
    fn a_store_of_another_cluster_stops_nobody_else() {
        let (a, last) = (name("a"), state(7, 5));
        let foreign = was_in(99, &state(8, 9));
        assert_eq!(
            fault(Some(&last), &Testimonies::new(), Some((&a, &foreign))),
            Some(Fault::Foreign)
        );
        let testimonies = Testimonies::from([(a, foreign)]);
        let (b, own) = (name("b"), was_in(2, &last));
        assert_eq!(fault(Some(&last), &testimonies, Some((&b, &own))), None);
    }

    /// etcd is put back from before a recovery since which the stores have other identities.
    #[test]
    fn a_state_that_a_store_has_gone_on_from_is_contradicted_though_it_names_another_store() {
        let (a, old, mut last) = (name("a"), state(7, 3), state(8, 1_000_005));
        last.replaces.insert(7);
        let contradicted = Some(Fault::Contradicted(a.clone()));
        let none = Testimonies::new();
        for last in [&last, &state(7, 5)] {
            let renewed = was_in(99, last);
            assert_eq!(fault(Some(&old), &none, Some((&a, &renewed))), contradicted);
            // A node of a store that was put back as well learns it.
            let testimonies = Testimonies::from([(a.clone(), renewed)]);
            assert_eq!(fault(Some(&old), &testimonies, None), contradicted);
        }
        // It is of another cluster if nothing proves that it is of this one.
        let (oldest, other) = (state(0, 3), was_in(99, &state(0, 5)));
        let foreign = fault(Some(&oldest), &none, Some((&a, &other)));
        assert_eq!(foreign, Some(Fault::Foreign));
    }

    #[test]
    fn a_cluster_of_new_stores_may_be_founded() {
        let (a, blank) = (
            name("a"),
            Testimony {
                store: 1,
                epoch: 1,
                state: None,
            },
        );
        let own = Some((&a, &blank));
        assert_eq!(fault(None, &Testimonies::new(), own), None);
        assert_eq!(fault(Some(&state(7, 9)), &Testimonies::new(), own), None);
    }

    /// A cluster in one state, after two changes.
    struct Changed {
        state: State,
        first: Lineage,
        second: Lineage,
    }

    impl Changed {
        fn new() -> Self {
            let first = Lineage::next(None, 11);
            Self {
                state: state(7, 5),
                second: Lineage::next(Some(&first), 12),
                first,
            }
        }

        fn contents<'a>(
            &'a self,
            lineage: Option<&'a Lineage>,
            claims: &'a Claims,
        ) -> Contents<'a> {
            const NONE: &Testimonies = &Testimonies::new();
            Contents {
                state: Some(&self.state),
                lineage,
                testimonies: NONE,
                claims,
            }
        }
    }

    #[test]
    fn contents_that_a_node_has_seen_later_ones_of_are_not_acted_by() {
        let changed = Changed::new();
        let none = Claims::new();
        let mark = Some(changed.second.mark());
        let backend = Memory {
            name: name("a"),
            testimony: Some(was_in(1, &changed.state)),
            mark,
        };
        let frontend = Memory {
            name: name("fe"),
            testimony: None,
            mark,
        };
        let apart = Lineage::next(Some(&changed.first), 13);
        for own in [&backend, &frontend] {
            let fault = |lineage| changed.contents(lineage, &none).fault(Some(own));
            assert_eq!(fault(Some(&changed.second)), None);
            let later = Lineage::next(Some(&changed.second), 14);
            assert_eq!(fault(Some(&later)), None);
            let behind = Some(Fault::Behind(own.name.clone()));
            for lineage in [None, Some(&changed.first), Some(&apart)] {
                assert_eq!(fault(lineage), behind);
            }
        }
        // A backend's claim counts for all nodes, and a frontend's for recovery.
        for (own, is_heard) in [(&backend, true), (&frontend, false)] {
            let claims = Claims::from([(own.name.clone(), own.claim().unwrap())]);
            let contents = changed.contents(Some(&changed.first), &claims);
            let behind = is_heard.then(|| Fault::Behind(own.name.clone()));
            assert_eq!(contents.fault(None), behind);
            assert!(contents.are_contradicted());
            let recovered = Lineage::recovered(Some(&changed.first), mark, 15);
            assert!(
                !changed
                    .contents(Some(&recovered), &claims)
                    .are_contradicted()
            );
        }
    }

    #[test]
    fn a_store_of_another_cluster_claims_nothing() {
        let changed = Changed::new();
        let (a, mark) = (name("a"), changed.second.mark());
        let claims = Claims::from([(a, Claim { store: 99, mark })]);
        let contents = changed.contents(Some(&changed.first), &claims);
        assert_eq!(contents.fault(None), None);
        assert!(!contents.are_contradicted());
    }

    #[test]
    fn a_node_remembers_what_it_has_acted_by_though_its_store_is_another_one_or_no_member() {
        let changed = Changed::new();
        for (own, store) in [("a", 99), ("z", 1)] {
            let own = name(own);
            let memory = Memory {
                name: own.clone(),
                testimony: Some(was_in(store, &changed.state)),
                mark: Some(changed.second.mark()),
            };
            let none = Claims::new();
            let fault = |lineage| changed.contents(Some(lineage), &none).fault(Some(&memory));
            assert_eq!(fault(&changed.second), None);
            assert_eq!(fault(&changed.first), Some(Fault::Behind(own.clone())));
        }
    }
}
