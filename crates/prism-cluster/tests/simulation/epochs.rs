//! Changes of the epoch: the changes that a node gives up when it adopts one, and the changes that
//! others have left open.

use std::collections::BTreeSet;

use prism_cluster::replica::{Pending, Stamp, Standing, happened, has};
use prism_cluster::{State, Status, View};

use crate::Mutation;
use crate::node::{Effect, Key, Message, Resolving};
use crate::register::name;
use crate::world::World;

impl World {
    /// The state is on the node's disk: from now on the node acts by it.
    pub(crate) fn adopted(&mut self, node: usize, state: State) {
        let here = &mut self.nodes[node];
        if here.view.as_ref().map_or(0, View::epoch) >= state.epoch {
            return;
        }
        let was_primary: Vec<Key> = here
            .held
            .keys()
            .copied()
            .filter(|k| here.is_primary(*k))
            .collect();
        here.view = Some(View::new(state).unwrap());
        here.resolving.clear();
        if self.mutation != Some(Mutation::CommitLate) {
            self.give_up_changes(node);
        }
        let here = &mut self.nodes[node];
        let untold = std::mem::take(&mut here.untold);
        for ((key, stamp), mut left) in untold {
            let others = here.others(key);
            left.retain(|n| others.contains(n));
            if here.is_primary(key) && !left.is_empty() {
                here.untold.insert((key, stamp), left);
            }
        }
        // The others may not know of a commit.
        let held: Vec<_> = here.held.iter().map(|(k, (s, _))| (*k, *s)).collect();
        for (key, stamp) in held {
            if here.is_primary(key) && !was_primary.contains(&key) {
                let others: BTreeSet<usize> = here.others(key).into_iter().collect();
                if !others.is_empty() {
                    here.untold.insert((key, stamp), others);
                }
            }
        }
        self.keep_alive(node);
        self.catch_up(node);
        for key in 0..crate::world::KEYS {
            self.go_on(node, key);
        }
    }

    /// A change counts only in the epoch in which it was begun.
    fn give_up_changes(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let mut begun: Vec<_> = here.current.drain().collect();
        begun.sort_unstable_by_key(|(key, _)| *key);
        for (key, current) in begun {
            self.answered(current.caller, key, Err(()));
            let here = &self.nodes[node];
            // A node that was its primary and still is knows that it will never be committed.
            if here.is_primary(key) {
                let epoch = here.view.as_ref().map_or(0, View::epoch);
                for to in here.others(key) {
                    let decided = Message::Decided(key, current.stamp, false, epoch);
                    self.send(node, to, decided);
                }
            }
        }
    }

    /// Serves the waiting requests of a key, or answers them with an error.
    pub(crate) fn go_on(&mut self, node: usize, key: Key) {
        let readers = self.nodes[node].readers.remove(&key).unwrap_or_default();
        for caller in readers {
            self.read(node, caller, key);
        }
        self.next_write(node, key);
    }

    /// A primary finds out the outcome of a change that another one has left open.
    pub(crate) fn resolve(&mut self, node: usize, key: Key, pending: Pending) {
        let here = &mut self.nodes[node];
        if !here.resolving.contains_key(&key) {
            let mut asked = here.witnesses(key, pending.epoch);
            match self.mutation {
                Some(Mutation::ResolveWithoutLagging) => {
                    asked.retain(|n| here.readers_of(key).contains(n) || !here.lacks(key, *n));
                }
                Some(Mutation::ResolveByReaders) => {
                    asked.retain(|n| here.readers_of(key).contains(n) || here.lacks(key, *n));
                }
                _ => {}
            }
            let resolving = Resolving {
                pending,
                answers: asked.into_iter().map(|n| (n, None)).collect(),
                others: here.others(key),
                deciding: false,
            };
            here.resolving.insert(key, resolving);
        }
        let Some(resolving) = here.resolving.get(&key) else {
            return;
        };
        let verdict = match self.mutation {
            Some(Mutation::ResolveAlone) => Some(true),
            Some(Mutation::ResolveNever) => Some(false),
            _ => happened(resolving.answers.values().copied()),
        };
        if let Some(happens) = verdict {
            return self.decide(node, key, happens);
        }
        let epoch = here.view.as_ref().map_or(0, View::epoch);
        for to in resolving.others.clone() {
            self.send(node, to, Message::AskHas(key, pending, epoch));
        }
    }

    fn decide(&mut self, node: usize, key: Key, happens: bool) {
        let here = &mut self.nodes[node];
        let epoch = here.view.as_ref().map_or(0, View::epoch);
        let Some(resolving) = here.resolving.get_mut(&key) else {
            return;
        };
        if std::mem::replace(&mut resolving.deciding, true) {
            return;
        }
        let stamp = resolving.pending.stamp;
        let effect = Effect::Resolve {
            key,
            stamp,
            happens,
            epoch,
        };
        self.disk(node, effect);
    }

    pub(crate) fn asked_has(
        &mut self,
        node: usize,
        from: usize,
        (key, open, epoch): (Key, Pending, u64),
    ) {
        let here = &self.nodes[node];
        // In the same epoch, so that no earlier change is prepared later.
        if here.view.as_ref().map(View::epoch) == Some(epoch) {
            let has = has(open, here.holds(key), here.pending(key));
            self.send(node, from, Message::Has(key, open.stamp, has, epoch));
        }
    }

    pub(crate) fn heard_has(
        &mut self,
        node: usize,
        from: usize,
        (key, stamp, has, epoch): (Key, Stamp, bool, u64),
    ) {
        let here = &mut self.nodes[node];
        if here.view.as_ref().map(View::epoch) != Some(epoch) {
            return;
        }
        let Some(resolving) = here.resolving.get_mut(&key) else {
            return;
        };
        if resolving.pending.stamp != stamp {
            return;
        }
        if let Some(answer) = resolving.answers.get_mut(&from) {
            answer.get_or_insert(has);
        }
        if let Some(happens) = happened(resolving.answers.values().copied()) {
            self.decide(node, key, happens);
        }
    }

    /// The primary's decision is on its disk, or came too late.
    pub(crate) fn resolved(&mut self, node: usize, key: Key, stamp: Stamp, happened: Option<bool>) {
        let here = &mut self.nodes[node];
        here.resolving.remove(&key);
        if let Some(happened) = happened {
            self.met.resolved += 1;
            let here = &mut self.nodes[node];
            let others = here.others(key);
            let epoch = here.view.as_ref().map_or(0, View::epoch);
            for to in &others {
                let decided = Message::Decided(key, stamp, happened, epoch);
                self.send(node, *to, decided);
            }
            if happened {
                let here = &mut self.nodes[node];
                here.untold.retain(|(k, _), _| *k != key);
                if !others.is_empty() {
                    let others = others.into_iter().collect();
                    here.untold.insert((key, stamp), others);
                }
            }
        }
        self.go_on(node, key);
    }

    /// The standing of a change, if this node is its primary and knows.
    pub(crate) fn asked_standing(
        &mut self,
        node: usize,
        (key, stamp, asker): (Key, Stamp, u64),
    ) -> Option<(Standing, u64)> {
        let here = &self.nodes[node];
        let epoch = here.view.as_ref().map_or(0, View::epoch);
        let is_old = epoch < asker && self.mutation != Some(Mutation::OldVerdicts);
        if is_old || !here.is_primary(key) {
            return None;
        }
        if let Some(pending) = here.left_open(key) {
            self.resolve(node, key, pending);
            return None;
        }
        Some((self.standing(node, key, stamp), epoch))
    }

    /// Whether this node serves reads, by its own view.
    pub(crate) fn may_serve(&self, node: usize, key: Key) -> bool {
        let here = &self.nodes[node];
        if self.mutation == Some(Mutation::LaggingServes) {
            let status = here.view.as_ref().map(View::state);
            let status = status.and_then(|s| s.status(name(node).as_str()));
            return status.is_some_and(|s| s != Status::Out) && here.has_place(key);
        }
        here.readers_of(key).contains(&node)
    }

    pub(crate) fn has_lease(&self, node: usize) -> bool {
        self.nodes[node].lease_until > self.now || self.mutation == Some(Mutation::NoFence)
    }
}
