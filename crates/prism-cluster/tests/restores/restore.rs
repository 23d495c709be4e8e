//! Copies of etcd and of stores, and what happens when they are put back.

use prism_cluster::Status;

use crate::etcd::{Etcd, Progress, USERS};
use crate::node::{Node, Store};
use crate::world::{KEYS, LEASE, World};

/// Copies kept of each component.
const COPIES: usize = 3;

impl World {
    /// Copies a component as it is now, running or not.
    pub(crate) fn copy(&mut self) {
        let at = self.rng.usize(..=self.nodes.len());
        let place = self.rng.usize(..COPIES);
        match self.nodes.get(at).map(|node| node.store.clone()) {
            None => put(&mut self.etcd_copies, place, self.etcd.clone()),
            Some(Some(store)) => put(&mut self.store_copies[at], place, store),
            Some(None) => {}
        }
    }

    /// Puts back etcd, stores, or both.
    pub(crate) fn restore(&mut self) {
        let with_etcd = self.rng.bool();
        let stores = match (with_etcd, self.rng.u8(..4)) {
            (true, 0 | 1) => 0,
            (_, 2) => 2,
            _ => 1,
        };
        let mut backends: Vec<usize> = self.backends().map(|(at, _)| at).collect();
        self.rng.shuffle(&mut backends);
        backends.truncate(stores);
        match (with_etcd, stores) {
            (true, 0) => self.met.etcd_restored += 1,
            (true, _) => self.met.both_restored += 1,
            (false, 1) => self.met.store_restored += 1,
            (false, _) => self.met.stores_restored += 1,
        }
        for at in backends {
            self.restore_store(at);
        }
        if with_etcd {
            let copy = self.rng.choice(&self.etcd_copies).cloned();
            copy.into_iter().for_each(|copy| self.restore_etcd(copy));
        }
        if self.rng.bool() {
            self.start_some();
        }
        self.judge_last_state();
        self.have_told.clear();
        self.restored_at = self.now;
        self.judge_reverted_stores();
    }

    /// After a restore some nodes run again, and the others do not yet.
    fn start_some(&mut self) {
        for at in 0..self.nodes.len() {
            match (self.nodes[at].process.is_some(), self.rng.bool()) {
                (true, true) => self.kill(at),
                (false, _) => self.start(at),
                (true, false) => {}
            }
        }
    }

    fn restore_store(&mut self, at: usize) {
        let copy = self.rng.choice(&self.store_copies[at]).cloned();
        let (Some(copy), Some(present)) = (copy, self.nodes[at].store.clone()) else {
            return;
        };
        self.kill(at);
        if copy.commits != present.commits {
            self.reverted_stores.insert(at);
            self.unnoticed.insert(at);
        }
        self.nodes[at].store = Some(copy);
    }

    pub(crate) fn restore_etcd(&mut self, copy: Etcd) {
        if self.is_out_of_range(&copy) {
            self.met.out_of_range += 1;
            return;
        }
        let revision = self.etcd.revision;
        let is_of_this_recovery = copy.recovered_at == self.etcd.recovered_at;
        let is_same = is_of_this_recovery && copy.history == self.etcd.history;
        self.etcd = copy;
        if self.rng.bool() {
            self.etcd.revision = revision + 1_000;
        }
        self.forget_former_claims();
        let until = self.now + LEASE;
        self.etcd.living.values_mut().for_each(|l| l.until = until);
        if is_same {
            self.met.same_restored += 1;
            return;
        }
        self.reverted_since = Some(self.now);
        self.was_etcd_reverted = true;
        if !is_of_this_recovery {
            // Revisions repeat, so they do not tell which of two secrets is the later one.
            self.fork.users.extend(0..USERS);
        }
    }

    /// A copy that was taken while the contents were in doubt has the claims of that time. They are
    /// under leases of processes that are gone, and end by themselves.
    fn forget_former_claims(&mut self) {
        self.met.former_claims += u64::from(!self.etcd.testimonies.is_empty());
        self.etcd.testimonies.clear();
        self.etcd.claims.clear();
        self.etcd.user_claims.clear();
    }

    /// Whether a node's last change counts as an ancestor of the copy, which does not have it: it
    /// is older than the numbers that the copy's lineage lists. Such a copy is from before a
    /// recovery that went on from fewer changes than an earlier one, after etcd and all stores were
    /// put back. Nobody can tell it.
    fn is_out_of_range(&self, copy: &Etcd) -> bool {
        let marks = self.nodes.iter().flat_map(|node| {
            let process = node.process.as_ref().and_then(|process| process.noted.mark);
            let store = node.store.as_ref().and_then(|store| store.noted.mark);
            [process, store]
        });
        let mut marks = marks.filter(Option::is_some);
        marks.any(|mark| copy.descends_from(mark) && !copy.has(mark))
    }

    /// If all stores are put back that were in sync by the last state and had adopted it, and etcd
    /// too, nobody can tell `recover` which backends have answered by it.
    fn judge_last_state(&mut self) {
        let Some(last) = &self.last_adopted else {
            return;
        };
        let knows = |node: &Node| {
            let store = node.store.as_ref();
            let is_in_sync = last.status(node.name.as_str()) == Some(Status::InSync);
            is_in_sync && store.is_some_and(|store| store.epoch >= last.epoch)
        };
        if self.etcd.epoch() < last.epoch && !self.nodes.iter().any(knows) {
            self.last_adopted = None;
            self.met.states_lost += 1;
            self.forgive_all();
        }
    }

    /// Decides for each reverted store whether it can be noticed.
    fn judge_reverted_stores(&mut self) {
        for at in self.unnoticed.clone() {
            let name = self.nodes[at].name.clone();
            let Some(store) = &self.nodes[at].store else {
                continue;
            };
            let is_known = self
                .etcd
                .reported
                .get(&name)
                .is_some_and(|p| !store.has_all(p));
            if is_known {
                self.outstanding.remove(&at);
            } else if self.holders(at).is_empty() {
                self.met.gaps += 1;
                self.forgive_store(at);
            } else {
                self.outstanding.insert(at);
            }
        }
    }

    /// The nodes whose stores have noted more of this one than it has.
    fn holders(&self, at: usize) -> Vec<usize> {
        let Some(store) = &self.nodes[at].store else {
            return Vec::new();
        };
        let name = &self.nodes[at].name;
        let knows = |other: &Store| {
            let progress: Option<&Progress> = other.others.get(name);
            progress.is_some_and(|progress| !store.has_all(progress))
        };
        let others = self.backends().filter(|(other, _)| *other != at);
        let holders = others.filter(|(_, node)| node.store.as_ref().is_some_and(knows));
        holders.map(|(other, _)| other).collect()
    }

    /// A store that was put back together with etcd reports its mark. It is noticed only if a
    /// store that has noted more of it has put that back before.
    pub(crate) fn forgive_if_nobody_could_tell(&mut self, at: usize) {
        let is_outstanding = self.outstanding.remove(&at);
        if is_outstanding && !self.is_told(at) {
            self.met.raced += 1;
            self.forgive_store(at);
        }
    }

    /// Whether a node that knows more of a reverted store could put back its mark.
    pub(crate) fn is_told(&self, at: usize) -> bool {
        let mut holders = self.holders(at).into_iter();
        holders.any(|holder| self.have_told.contains(&(holder, at)))
    }

    /// From now on no key has to be there.
    pub(crate) fn forgive_missing(&mut self) {
        for allowed in &mut self.allowed {
            allowed.insert(None);
        }
    }

    fn forgive_store(&mut self, at: usize) {
        self.unnoticed.remove(&at);
        self.forgive_all();
    }

    pub(crate) fn forgive_all(&mut self) {
        (0..KEYS).for_each(|index| self.forgive_objects(index));
        self.forgive_bucket();
    }

    /// The registry may lose the last change of the bucket.
    pub(crate) fn forgive_bucket(&mut self) {
        self.is_bucket_forgiven = true;
        self.agreed = None;
    }
}

fn put<T>(copies: &mut Vec<T>, place: usize, copy: T) {
    match copies.get_mut(place) {
        Some(present) => *present = copy,
        None => copies.push(copy),
    }
}
