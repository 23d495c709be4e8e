//! Compares the state in etcd with the state that stores have acted by. Publishes the
//! testimony of this backend's store if they differ.
//!
//! etcd may lose its data, or be restored from an old copy. Its state could then call
//! backends in sync that are not. Each store therefore records the state that it acts by.
//! If one contradicts etcd, no node serves until the administrator has run `prism ctl
//! cluster recover`.
//!
//! Not here: the recovered state (`prism_cluster::recover`).

use std::time::Duration;

use prism_cluster::{NodeName, State, Testimonies, Testimony};
use prism_etcd::Change;

use super::etcd::Key;
use super::{Known, Me, Participant, replace};

/// Pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// A fault of the state in etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A store has acted by a state, and etcd has none.
    #[error(
        "etcd has lost the state of this cluster, by which the store of {0} has acted; no node serves until `prism ctl cluster recover` has restored it from the stores"
    )]
    Lost(NodeName),
    /// The state is not a successor of the one that a store has acted by.
    #[error(
        "etcd has an older state of this cluster than the store of {0}, or one that was founded again; no node serves until `prism ctl cluster recover` has restored it from the stores"
    )]
    Contradicted(NodeName),
    /// The state does not name this node's store, which was in another cluster.
    #[error(
        "this node's store was in another cluster, or in this one before it was founded again; stop the node and move its store away, and this cluster fills a new one"
    )]
    Foreign,
}

/// The fault of `state` by the testimonies of the other stores and this one.
fn fault(
    state: Option<&State>,
    others: &Testimonies,
    own: Option<(&NodeName, &Testimony)>,
) -> Option<Fault> {
    let mut testimonies = others.clone();
    if let Some((name, own)) = own {
        testimonies.insert(name.clone(), own.clone());
    }
    let Some(state) = state else {
        let mut all = testimonies.iter();
        let found = all.find(|(_, testimony)| !testimony.is_blank());
        return found.map(|(name, _)| Fault::Lost(name.clone()));
    };
    if let Some(name) = state.contradicted(&testimonies) {
        return Some(Fault::Contradicted(name.clone()));
    }
    let is_foreign = own.is_some_and(|(_, own)| !own.accepts(state));
    is_foreign.then_some(Fault::Foreign)
}

impl Participant {
    /// Whether this node may act by the state in etcd. Publishes and logs a new fault.
    pub(super) fn is_trusted(&self, known: &Known) -> bool {
        let state = known.state.as_ref().map(|(state, _)| state);
        let testimony = self.channels.testimony.borrow().clone();
        let own = self.me.as_ref().map(|me| &me.name).zip(testimony.as_ref());
        let found = fault(state, &known.testimonies, own);
        let is_new = replace(&self.channels.fault, found.clone());
        if let Some(fault) = found.as_ref().filter(|_| is_new) {
            tracing::error!(%fault, "this node serves nothing");
        }
        found.is_none()
    }

    /// Publishes this store's testimony while the state is in doubt. Never returns.
    pub(super) async fn vouch(&self) {
        let Some(me) = self.backend() else {
            return std::future::pending().await;
        };
        let (mut news, mut testimony) = (
            self.channels.known.subscribe(),
            self.channels.testimony.subscribe(),
        );
        loop {
            let known = news.borrow_and_update().clone();
            let own = testimony.borrow_and_update().clone();
            if let Err(error) = self.say(me, &known, own).await {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "cannot publish the store's testimony"
                );
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tokio::select! {
                _ = news.changed() => {}
                _ = testimony.changed() => {}
            }
        }
    }

    async fn say(&self, me: &Me, known: &Known, own: Option<Testimony>) -> anyhow::Result<()> {
        // A foreign store concerns this node only.
        let fault = self.channels.fault.borrow().clone();
        let is_asked = fault.is_some_and(|fault| fault != Fault::Foreign);
        let present = known.testimonies.get(&me.name);
        let key = Key::Testimony(me.name.as_str());
        let change = match (is_asked, own) {
            (true, Some(own)) if present != Some(&own) => self.keys.put(&key, &own)?,
            (false, _) if present.is_some() => Change::Delete(self.keys.path(&key)),
            _ => return Ok(()),
        };
        self.client.change(&[], &[change]).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_cluster::Placing;

    use super::*;

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
}
