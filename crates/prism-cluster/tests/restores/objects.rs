//! Objects: each key has the number of its last write, or none. The replication of single changes
//! is the subject of `simulation`; here a write is made at all replicas at once, or at none.

use prism_cluster::replica::Phase;
use prism_cluster::{LineageMark, NodeName, Status, View};

use crate::Mutation;
use crate::node::Store;
use crate::world::{Found, KEYS, World};

pub(crate) fn key(index: usize) -> String {
    format!("key{index}")
}

impl World {
    fn view(&self, at: usize) -> Option<&View> {
        let process = self.nodes[at].process.as_ref()?;
        process
            .view
            .as_ref()
            .filter(|_| self.nodes[at].serves(self.now))
    }

    pub(crate) fn index(&self, name: &NodeName) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == *name)
    }

    /// A client writes or deletes an object at a backend that takes itself for its primary.
    pub(crate) fn write(&mut self) {
        let index = self.rng.usize(..KEYS);
        let is_primary = |at: &usize| {
            let primary = self
                .view(*at)
                .and_then(|view| view.primary("b", &key(index)));
            primary == Some(&self.nodes[*at].name)
        };
        let primaries: Vec<usize> = (0..self.nodes.len()).filter(is_primary).collect();
        let Some(at) = self.rng.choice(primaries) else {
            return;
        };
        let Some(view) = self.view(at) else { return };
        let epoch = view.epoch();
        let writers = view.writers("b", &key(index)).into_iter();
        let writers: Option<Vec<usize>> = writers.map(|name| self.index(name)).collect();
        let life = self.live_bucket(at);
        let prepares = |other: &usize| {
            let is_of_epoch = self.view(*other).is_some_and(|view| view.epoch() <= epoch);
            is_of_epoch && self.live_bucket(*other) == life
        };
        let Some(writers) = writers.filter(|writers| writers.iter().all(prepares)) else {
            return;
        };
        if life.is_none() {
            return;
        }
        let number = self.number();
        let value = (self.rng.u8(..4) > 0).then_some(number);
        for writer in writers {
            self.commit(writer, |store| set(store, index, value));
        }
        self.met.writes += 1;
        self.answered[index] = value;
        self.allowed[index].clear();
        if self.reverted_since.is_some() {
            self.fork.written.insert(index);
        }
    }

    /// The life of the bucket, if the store accepts objects in it.
    fn live_bucket(&self, at: usize) -> Option<prism_cluster::replica::Stamp> {
        let record = self.nodes[at].store.as_ref()?.record.as_ref()?;
        (record.phase == Phase::Live).then_some(record.life)
    }

    /// A client reads an object at any backend that serves it, through a node that has the
    /// client's connection: a frontend, or the backend itself.
    pub(crate) fn read(&mut self, at: usize, index: usize) -> Found {
        let askers = self.nodes.iter().enumerate();
        let askers = askers.filter(|(other, node)| *other == at || node.store.is_none());
        let askers: Vec<usize> = askers.map(|(other, _)| other).collect();
        let asker = self.rng.choice(askers).unwrap_or(at);
        let Some(view) = self.view(at) else {
            return Ok(());
        };
        let name = &self.nodes[at].name;
        let mut readers = view.readers("b", &key(index));
        if !readers.any(|reader| reader == name) {
            return Ok(());
        }
        drop(readers);
        let told = self.told_by(asker);
        if self.is_behind(at, told) && !self.is(Mutation::AskerIgnored) {
            self.met.behind += 1;
            return Ok(());
        }
        let process = self.nodes[at].process.as_ref();
        if !process.is_some_and(|process| process.known.has(told)) {
            let asker = &self.nodes[asker].name;
            return Err(format!("{name} answers {asker}, which knows more"));
        }
        if self.is_on_a_fork(at) {
            return Ok(());
        }
        let store = self.nodes[at].store.as_ref();
        let found = store.and_then(|store| store.objects.get(&index).copied());
        if found != self.answered[index] && !self.allowed[index].contains(&found) {
            let expected = self.answered[index];
            let state = view.state();
            return Err(format!(
                "{name} has {found:?} of key {index}, not {expected:?}: {state:?}"
            ));
        }
        self.met.reads += 1;
        Ok(())
    }

    /// The change that a node names in its requests.
    fn told_by(&self, at: usize) -> Option<LineageMark> {
        let process = self.nodes[at].process.as_ref()?;
        process.settled.at(self.clock())
    }

    /// Mirrors `Cluster::hear_of`.
    fn is_behind(&self, at: usize, told: Option<LineageMark>) -> bool {
        let process = self.nodes[at].process.as_ref();
        let known = process.map(|process| process.known.contents());
        told.is_some_and(|told| !known.is_some_and(|known| known.descends_from(told)))
    }

    /// Whether the node acts by a restored etcd, has noted nothing of what that lacks, and cannot
    /// have heard of it yet.
    pub(crate) fn is_on_a_fork(&self, at: usize) -> bool {
        let process = self.nodes[at].process.as_ref();
        let mark = process.and_then(|process| process.noted.mark);
        self.reverted_since.is_some() && self.etcd.has(mark)
    }

    /// A backend that has missed writes copies all keys that it lacks (`catch_up.rs` of
    /// `prism-replicas`).
    pub(crate) fn catch_up(&mut self, at: usize) {
        let Some(since) = self.wanted_epoch(at) else {
            return;
        };
        let lacked = (0..KEYS).map(|index| self.fetched(at, index));
        let Some(fetched) = lacked.collect::<Option<Vec<_>>>() else {
            return;
        };
        self.commit(at, |store| {
            for (index, value) in fetched.into_iter().flatten() {
                set(store, index, value);
            }
        });
        self.process(at).caught_up = since;
        self.met.caught_up += 1;
    }

    /// The epoch since which the backend lacks writes, once all have adopted it.
    fn wanted_epoch(&self, at: usize) -> Option<u64> {
        let (node, state) = (&self.nodes[at], self.view(at)?.state());
        let since = state.fetches_since(node.name.as_str())?;
        let mut living = self.etcd.living.values();
        let record = &node.store.as_ref()?.record;
        let is_lagging = state.status(node.name.as_str()) == Some(Status::Lagging);
        let is_settled = living.all(|living| living.report.epoch >= since)
            && (!is_lagging || self.etcd.bucket.is_none() || *record == self.etcd.bucket);
        is_settled.then_some(since)
    }

    /// A key as its primary has it. The inner value is `None` if the backend lacks nothing of
    /// the key or no backend serves it, and the outer one if the primary cannot answer yet.
    fn fetched(&self, at: usize, index: usize) -> Option<Option<(usize, Option<u64>)>> {
        let view = self.view(at)?;
        let lacks = view.lacks(self.nodes[at].name.as_str(), "b", &key(index));
        let primary = view.primary("b", &key(index)).filter(|_| lacks);
        let Some(primary) = primary else {
            return Some(None);
        };
        let source = self.index(primary)?;
        self.view(source)?;
        let source = self.nodes[source].store.as_ref()?;
        let theirs = source.record.as_ref();
        match &self.etcd.bucket {
            Some(agreed) if agreed.phase != Phase::Gone => {
                let is_of_life = theirs.is_some_and(|theirs| theirs.life == agreed.life);
                is_of_life.then(|| Some((index, source.objects.get(&index).copied())))
            }
            // Catch-up waits until the registry has the buckets of the sources.
            None if theirs.is_some_and(|theirs| theirs.phase != Phase::Gone) => None,
            _ => Some(None),
        }
    }

    /// From now on a key may be as it is now at any backend that has it.
    pub(crate) fn forgive_objects(&mut self, index: usize) {
        let stores = self.nodes.iter().filter_map(|node| node.store.as_ref());
        let values = stores.map(|store| store.objects.get(&index).copied());
        self.allowed[index].extend(values);
    }
}

fn set(store: &mut Store, index: usize, value: Option<u64>) {
    match value {
        Some(value) => drop(store.objects.insert(index, value)),
        None => drop(store.objects.remove(&index)),
    }
}
