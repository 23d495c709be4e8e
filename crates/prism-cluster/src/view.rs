//! A state in a form that answers questions quickly.

use crate::{
    placement::{NodeName, Placement},
    state::{Placing, State, StateError, Status},
};

/// The readers and writers of keys, by one state of the cluster.
#[derive(Debug, Clone)]
pub struct View {
    state: State,
    reads: Placement,
    /// The placement that only writes use.
    writes: Option<Placement>,
}

impl View {
    /// Makes the view of `state`.
    ///
    /// # Errors
    /// [`StateError`]: the state is invalid.
    pub fn new(state: State) -> Result<Self, StateError> {
        state.check()?;
        let placement = |placing: &Placing| Placement::new(&placing.members);
        Ok(Self {
            reads: placement(&state.placing),
            writes: state.other().map(placement),
            state,
        })
    }

    /// The state of this view.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The epoch of the state.
    pub fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// Whether keys are, or are about to be, on several backends, so that writes need others.
    pub fn is_replicated(&self) -> bool {
        let other = self.state.other();
        self.state.placing.replicas > 1 || other.is_some()
    }

    /// Every backend that holds keys by a placing of the state.
    pub fn backends(&self) -> impl ExactSizeIterator<Item = &NodeName> {
        self.state.backends.keys()
    }

    /// The backends that serve reads of a key, the primary first. Empty if no owner is in sync.
    pub fn readers<'a>(
        &'a self,
        bucket: &str,
        key: &str,
    ) -> impl Iterator<Item = &'a NodeName> + use<'a> {
        let replicas = self.state.placing.replicas.into();
        let owners = self.reads.owners(bucket, key, replicas);
        owners.filter(|name| self.status(name) == Some(Status::InSync))
    }

    /// The backend that makes the changes of a key.
    pub fn primary(&self, bucket: &str, key: &str) -> Option<&NodeName> {
        self.readers(bucket, key).next()
    }

    /// The backends that take every change of a key, the primary first if there is one.
    pub fn writers(&self, bucket: &str, key: &str) -> Vec<&NodeName> {
        let mut found: Vec<&NodeName> = self.readers(bucket, key).collect();
        for name in self.owners(bucket, key) {
            let gets = self
                .status(name)
                .is_some_and(|status| status != Status::Out);
            if gets && !found.contains(&name) {
                found.push(name);
            }
        }
        found
    }

    /// The backends that decide an open change of `epoch`: all writers that took writes in that
    /// epoch already. They include every backend that may still serve reads by the view
    /// before this one.
    pub fn witnesses(&self, bucket: &str, key: &str, epoch: u64) -> Vec<&NodeName> {
        let mut found = self.writers(bucket, key);
        let readers: Vec<&NodeName> = self.readers(bucket, key).collect();
        found.retain(|name| {
            let since = self.state.fetches_since(name.as_str());
            readers.contains(name) || since.is_none_or(|since| since <= epoch)
        });
        found
    }

    /// Whether `name` takes the changes of a key, but may lack earlier ones, which it fetches:
    /// see [`State::fetches_since`].
    pub fn lacks(&self, name: &str, bucket: &str, key: &str) -> bool {
        let is = |other: &&NodeName| other.as_str() == name;
        self.writers(bucket, key).iter().any(is) && !self.readers(bucket, key).any(|n| is(&n))
    }

    /// Whether `name` owns a key by any placing. A backend may delete other keys.
    pub fn has_place(&self, name: &str, bucket: &str, key: &str) -> bool {
        let mut owners = self.owners(bucket, key);
        owners.any(|owner| owner.as_str() == name)
    }

    /// The owners of a key by the placing of reads, then by the one that only writes use.
    fn owners(&self, bucket: &str, key: &str) -> impl Iterator<Item = &NodeName> {
        let read = std::iter::once((&self.reads, &self.state.placing));
        let written = self.writes.iter().zip(self.state.other());
        let all = read.chain(written);
        all.flat_map(move |(placement, placing)| {
            placement.owners(bucket, key, placing.replicas.into())
        })
    }

    fn status(&self, name: &NodeName) -> Option<Status> {
        self.state.status(name.as_str())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::state::Phase;

    fn name(name: &str) -> NodeName {
        NodeName::new(name).unwrap()
    }

    fn placing(members: &[&str], replicas: u16) -> Placing {
        Placing::new(members.iter().map(|n| name(n)), replicas).unwrap()
    }

    fn readers(view: &View, key: &str) -> Vec<String> {
        view.readers("b", key).map(ToString::to_string).collect()
    }

    #[test]
    fn a_lagging_backend_is_written_to_and_not_read_and_one_that_is_out_neither() {
        let mut state = State::new(placing(&["be0", "be1", "be2"], 3));
        let all = readers(&View::new(state.clone()).unwrap(), "k");
        assert_eq!(all.len(), 3);
        let first = name(all.first().unwrap());
        for status in [Status::Lagging, Status::Out] {
            state.backends.get_mut(&first).unwrap().status = status;
            let view = View::new(state.clone()).unwrap();
            assert_eq!(readers(&view, "k"), all.get(1..).unwrap());
            assert_ne!(view.primary("b", "k"), Some(&first));
            let is_lagging = status == Status::Lagging;
            assert_eq!(view.writers("b", "k").contains(&&first), is_lagging);
            assert_eq!(view.lacks(first.as_str(), "b", "k"), is_lagging);
            assert!(view.has_place(first.as_str(), "b", "k"));
        }
    }

    #[test]
    fn who_got_every_write_or_was_read_until_now_can_tell_of_one_that_is_open() {
        let mut state = State::new(placing(&["be0", "be1", "be2"], 3));
        let late = state.backends.get_mut("be0").unwrap();
        (late.status, late.since) = (Status::Lagging, 5);
        let view = View::new(state.clone()).unwrap();
        assert_eq!(view.witnesses("b", "k", 4).len(), 2);
        assert_eq!(view.witnesses("b", "k", 5).len(), 3);
        // It has caught up, and a new placing gives it more keys.
        state.backends.get_mut("be0").unwrap().status = Status::InSync;
        let one = placing(&["be0"], 1);
        state.phase = Phase::Filling {
            to: one.clone(),
            since: 7,
        };
        state.placing = placing(&["be1", "be2"], 2);
        let view = View::new(state.clone()).unwrap();
        assert_eq!(view.witnesses("b", "k", 6).len(), 2);
        assert_eq!(view.witnesses("b", "k", 7).len(), 3);
        // The former owners may still serve the key.
        let from = std::mem::replace(&mut state.placing, one);
        state.phase = Phase::Moved { from };
        let view = View::new(state).unwrap();
        assert_eq!(view.witnesses("b", "k", 1).len(), 3);
    }

    #[test]
    fn while_keys_move_writes_go_to_both_and_reads_to_one() {
        let mut state = State::new(placing(&["be0", "be1"], 1));
        let wide = State::new(placing(&["be0", "be1", "be2"], 1));
        state.backends = wide.backends;
        let old = View::new(state.clone()).unwrap();
        state.phase = Phase::Filling {
            to: wide.placing.clone(),
            since: 2,
        };
        let filling = View::new(state.clone()).unwrap();
        state.phase = Phase::Moved {
            from: state.placing.clone(),
        };
        state.placing = wide.placing;
        let moved = View::new(state).unwrap();
        let keys = (0..100).map(|n| n.to_string());
        let moving = |key: &String| moved.primary("b", key) == Some(&name("be2"));
        let moving: Vec<String> = keys.filter(moving).collect();
        assert!((15..60).contains(&moving.len()), "{} move", moving.len());
        for key in moving {
            assert_eq!(readers(&filling, &key), readers(&old, &key));
            assert!(filling.lacks("be2", "b", &key) && !moved.lacks("be2", "b", &key));
            let mut writers = [filling.writers("b", &key), moved.writers("b", &key)];
            assert_ne!(writers.first(), writers.last());
            writers.iter_mut().for_each(|names| names.sort());
            assert_eq!(writers.first(), writers.last());
            assert!(!old.has_place("be2", "b", &key) && filling.has_place("be2", "b", &key));
        }
    }
}
