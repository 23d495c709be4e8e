//! Fetching missed changes, and deleting keys that a node does not own.

use prism_cluster::replica::Pending;
use prism_cluster::{Phase, Status, View};

use crate::Mutation;
use crate::node::{CatchingUp, Effect, Held, Key, Message};
use crate::register::name;
use crate::world::{KEYS, NODES, World};

impl World {
    /// Begins to fetch missed changes, or goes on.
    pub(crate) fn catch_up(&mut self, node: usize) {
        let here = &self.nodes[node];
        let Some(view) = &here.view else { return };
        let Some(wanted) = view.state().fetches_since(name(node).as_str()) else {
            self.nodes[node].catching_up = None;
            return;
        };
        if here.caught_up >= wanted {
            return;
        }
        let epoch = view.epoch();
        let early = self.mutation == Some(Mutation::CatchUpEarly);
        let is_begun = here.catching_up.as_ref();
        let is_begun = is_begun.is_some_and(|c| c.since == epoch || c.unsettled.is_empty());
        if !is_begun || here.catching_up.as_ref().is_none_or(|c| c.since < wanted) {
            let others = (0..NODES).filter(|n| *n != node);
            let is_in = |n: &usize| {
                let status = view.state().status(name(*n).as_str());
                status.is_some_and(|status| status != Status::Out)
            };
            let catching_up = CatchingUp {
                since: epoch,
                unsettled: others.filter(|n| is_in(n) && !early).collect(),
                left: (0..KEYS).filter(|k| here.lacks(*k, node)).collect(),
            };
            self.nodes[node].catching_up = Some(catching_up);
        }
        self.go_on_catching_up(node);
    }

    fn go_on_catching_up(&mut self, node: usize) {
        let here = &mut self.nodes[node];
        let Some(catching_up) = &here.catching_up else {
            return;
        };
        let since = catching_up.since;
        let (unsettled, left) = (catching_up.unsettled.clone(), catching_up.left.clone());
        if !unsettled.is_empty() {
            for to in unsettled {
                self.send(node, to, Message::AskSettled(since));
            }
            return;
        }
        let is_certain = here.pending.values().all(|(p, _)| p.epoch >= since);
        if left.is_empty() && is_certain {
            here.caught_up = since;
            here.catching_up = None;
            self.met.caught_up += 1;
            self.keep_alive(node);
            return;
        }
        for key in left {
            let readers = self.nodes[node].readers_of(key);
            if let Some(source) = self.rng.choice(readers) {
                self.send(node, source, Message::AskHeld(key, since));
            }
        }
    }

    /// Another node wants to catch up. No earlier change may be open here, because it will not ask
    /// about open changes when it asks for keys.
    pub(crate) fn asked_settled(&mut self, node: usize, from: usize, since: u64) {
        let here = &self.nodes[node];
        let is_there = here.view.as_ref().is_some_and(|view| view.epoch() >= since);
        let mut open = here.pending.values();
        let unsettled = self.mutation == Some(Mutation::CatchUpUnsettled);
        if is_there && (unsettled || open.all(|(p, _)| p.epoch >= since)) {
            self.send(node, from, Message::Settled(since));
        }
    }

    pub(crate) fn told_settled(&mut self, node: usize, from: usize, since: u64) {
        let catching_up = self.nodes[node].catching_up.as_mut();
        if let Some(catching_up) = catching_up.filter(|c| c.since == since) {
            catching_up.unsettled.remove(&from);
            self.go_on_catching_up(node);
        }
    }

    /// Another node catches up.
    pub(crate) fn asked_held(&mut self, node: usize, from: usize, key: Key, since: u64) {
        let here = &self.nodes[node];
        let epoch = here.view.as_ref().map_or(0, View::epoch);
        let early = self.mutation == Some(Mutation::CatchUpEarly);
        if (epoch >= since || early) && here.readers_of(key).contains(&node) {
            let held = here.held.get(&key).copied();
            self.send(node, from, Message::Holds(key, held, since));
        }
    }

    /// Finds out the outcome of an open change.
    pub(crate) fn make_certain(&mut self, node: usize, key: Key, open: Pending) {
        let here = &self.nodes[node];
        if here.is_primary(key) {
            if open.epoch < here.epoch {
                self.resolve(node, key, open);
            }
        } else if let Some(primary) = here.primary(key) {
            let (stamp, caller, epoch) = (open.stamp, None, here.epoch);
            let ask = Message::Ask {
                key,
                stamp,
                caller,
                epoch,
            };
            self.send(node, primary, ask);
        }
    }

    pub(crate) fn told_held(&mut self, node: usize, key: Key, theirs: Option<Held>, since: u64) {
        let catching_up = self.nodes[node].catching_up.as_ref();
        if catching_up.is_some_and(|c| c.since == since && c.left.contains(&key)) {
            self.disk(node, Effect::TakeIn { key, theirs, since });
        }
    }

    pub(crate) fn taken_in(&mut self, node: usize, key: Key, since: u64) {
        let catching_up = self.nodes[node].catching_up.as_mut();
        if let Some(catching_up) = catching_up.filter(|c| c.since == since) {
            catching_up.left.remove(&key);
        }
    }

    /// Deletes the keys that this node does not own.
    pub(crate) fn trim(&mut self, node: usize) {
        let here = &self.nodes[node];
        let Some(view) = &here.view else { return };
        let epoch = view.epoch();
        let early = self.mutation == Some(Mutation::TrimEarly);
        let is_settled = view.state().phase == Phase::Settled && self.register.all_adopted(epoch);
        if !is_settled && !early {
            return;
        }
        let has_place = |key: Key| match early {
            // No reads are served here any more.
            true => here.readers_of(key).contains(&node) || here.lacks(key, node),
            false => here.has_place(key),
        };
        let extra: Vec<Key> = (0..KEYS).filter(|k| !has_place(*k)).collect();
        for key in extra {
            let here = &self.nodes[node];
            if here.held.contains_key(&key) || here.pending.contains_key(&key) {
                self.disk(node, Effect::Trim(key, epoch));
            }
        }
    }
}
