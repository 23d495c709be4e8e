//! Whether the state in etcd is the one that stores have acted by, and what this
//! backend's store says where it is not.
//!
//! etcd may lose its data, or be put back from an old copy. By what is there then,
//! backends could be in sync that are not. So each store notes the state that it
//! acts by, and as soon as one contradicts what etcd has, nobody serves anything until
//! an administrator has had the state made anew (`prism ctl cluster recover`), from what
//! the stores say. Not here: what that is (`prism_cluster::recover`).

use std::time::Duration;

use prism_cluster::{NodeName, State, Testimonies, Testimony};
use prism_etcd::Change;

use super::etcd::Key;
use super::{Keeper, Known, Me};

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// What is wrong with the state in etcd.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// There is none, and was one.
    #[error(
        "etcd has no state of this cluster any more, but the store of {0} was in one: nothing is served until `prism ctl cluster recover` has made it anew from what the stores have noted"
    )]
    Lost(NodeName),
    /// It does not go on from what a store has acted by.
    #[error(
        "etcd has an older state of this cluster than the store of {0} was in, or one that was founded anew: nothing is served until `prism ctl cluster recover` has made it anew from what the stores have noted"
    )]
    Contradicted(NodeName),
    /// This node's store is none that the state speaks of, and was in another cluster.
    #[error(
        "this node's store was in another cluster, or in this one before it was founded anew: to have it filled by this one, stop the node and move its store away"
    )]
    Foreign,
}

impl Fault {
    /// Whether all nodes are concerned, and not this one alone.
    fn is_of_all(&self) -> bool {
        !matches!(self, Self::Foreign)
    }
}

/// What is wrong with `state`, by what the other stores say and `own`.
fn fault(
    state: Option<&State>,
    others: &Testimonies,
    own: Option<(&NodeName, &Testimony)>,
) -> Option<Fault> {
    let mut said = others.clone();
    if let Some((name, own)) = own {
        said.insert(name.clone(), own.clone());
    }
    let Some(state) = state else {
        let mut said = said.iter();
        let found = said.find(|(_, testimony)| !testimony.is_blank());
        return found.map(|(name, _)| Fault::Lost(name.clone()));
    };
    if let Some(name) = state.contradicted(&said) {
        return Some(Fault::Contradicted(name.clone()));
    }
    let is_foreign = own.is_some_and(|(_, own)| !own.accepts(state));
    is_foreign.then_some(Fault::Foreign)
}

impl Keeper {
    /// Whether this node may act by what etcd has; whoever serves is told.
    pub(super) fn is_trusted(&self, known: &Known) -> bool {
        let state = known.state.as_ref().map(|(state, _)| state);
        let own = self.me.as_ref().map(|me| (me, me.said.borrow().clone()));
        let own = own.as_ref();
        let own = own.and_then(|(me, said)| Some((&me.name, said.as_ref()?)));
        let found = fault(state, &known.said, own);
        let is_trusted = found.is_none();
        self.fault.send_if_modified(|present| {
            let is_new = *present != found;
            if let (true, Some(fault)) = (is_new, &found) {
                tracing::error!(%fault, "nothing is served");
            }
            *present = found;
            is_new
        });
        is_trusted
    }

    /// Has this backend's store say what it was in, while that is in question. Never
    /// ends.
    pub(super) async fn vouch(&self) {
        let Some(me) = self.me.as_ref().filter(|me| me.host.is_backend()) else {
            return std::future::pending().await;
        };
        let (mut news, mut said) = (self.known.subscribe(), me.said.clone());
        loop {
            let known = news.borrow_and_update().clone();
            let own = said.borrow_and_update().clone();
            if let Err(error) = self.say(me, &known, own).await {
                tracing::debug!(
                    error = format!("{error:#}"),
                    "the store's state is not told"
                );
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            tokio::select! {
                _ = news.changed() => {}
                _ = said.changed() => {}
            }
        }
    }

    async fn say(&self, me: &Me, known: &Known, own: Option<Testimony>) -> anyhow::Result<()> {
        let is_asked = self.fault.borrow().as_ref().is_some_and(Fault::is_of_all);
        let present = known.said.get(&me.name);
        let change = match (is_asked, own) {
            (true, Some(own)) if present != Some(&own) => self.keys.put_said(&me.name, &own)?,
            (false, _) if present.is_some() => {
                Change::Delete(self.keys.path(&Key::Said(me.name.as_str())))
            }
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
        let mut state = State::new(placing).founded(founding);
        state.epoch = epoch;
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
        // One whose own store is in order hears it of another.
        let b = name("b");
        let said = Testimonies::from([(a.clone(), was_in(1, &last))]);
        let other = was_in(2, &old);
        assert_eq!(fault(Some(&old), &said, Some((&b, &other))), contradicted);
        assert_eq!(fault(None, &said, None), Some(Fault::Lost(a)));
    }

    #[test]
    fn a_store_of_another_cluster_stops_nobody_else() {
        let (a, last) = (name("a"), state(7, 5));
        let foreign = was_in(99, &state(8, 9));
        assert_eq!(
            fault(Some(&last), &Testimonies::new(), Some((&a, &foreign))),
            Some(Fault::Foreign)
        );
        let said = Testimonies::from([(a, foreign)]);
        let (b, own) = (name("b"), was_in(2, &last));
        assert_eq!(fault(Some(&last), &said, Some((&b, &own))), None);
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
