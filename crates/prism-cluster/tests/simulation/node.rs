//! A node: its state on disk and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use prism_cluster::replica::{
    Asked, Missed, Pending, Receipt, Refusal, Settlement, Stamp, StampClock, Standing, is_over,
    missed, origin, receive, settle,
};
use prism_cluster::{State, View};

use crate::Mutation;
use crate::client::Wish;
use crate::register::name;
use crate::world::NODES;

pub(crate) type Key = usize;
pub(crate) type Caller = (usize, u64);
/// A state of a key; deletions have no value. Each version is a bit of the value, and the stamp is
/// that of the last change of any version.
pub(crate) type Held = (Stamp, Option<u64>);

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The key gets this value.
    Hold(Option<u64>),
    /// The key gets a version, beside others or as the only one.
    Add { version: u64, is_first: bool },
    /// The key loses a version, which may be the last.
    Remove { version: u64, is_last: bool },
}

impl Change {
    fn apply(self, before: Option<u64>, mutation: Option<Mutation>) -> Option<u64> {
        match self {
            Self::Hold(value) => value,
            Self::Add {
                version,
                is_first: true,
            } if mutation != Some(Mutation::FirstKeepsOthers) => Some(version),
            Self::Add { version, .. } => Some(before.unwrap_or(0) | version),
            Self::Remove { version, .. } => before.map(|b| b & !version).filter(|b| *b != 0),
        }
    }

    fn removes(self) -> bool {
        match self {
            Self::Hold(value) => value.is_none(),
            Self::Add { .. } => false,
            Self::Remove { is_last, .. } => is_last,
        }
    }
}

const BUCKET: &str = "b";

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Prepare {
        key: Key,
        asked: Asked,
        change: Change,
    },
    Prepared(Key, Stamp),
    Refused(Key, Stamp, Refusal),
    /// Whether changes that are over were committed, as a node in this epoch says.
    Decided(Key, Stamp, bool, u64),
    Committed(Key, Stamp),
    Ask {
        key: Key,
        stamp: Stamp,
        caller: Option<Caller>,
        epoch: u64,
    },
    Told {
        key: Key,
        stamp: Stamp,
        standing: Standing,
        caller: Option<Caller>,
        epoch: u64,
    },
    /// Does the receiver have this change?
    AskHas(Key, Pending, u64),
    Has(Key, Stamp, bool, u64),
    /// Is the receiver in this epoch, without an earlier open change?
    AskSettled(u64),
    Settled(u64),
    /// Asks for the keys of the receiver, as of this epoch.
    AskHeld(Key, u64),
    Holds(Key, Option<Held>, u64),
}

/// A write to a disk, and the step after it.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Adopt(Box<State>),
    Prepare {
        from: usize,
        key: Key,
        asked: Asked,
        change: Change,
    },
    /// A change of the primary itself.
    Commit {
        key: Key,
        stamp: Stamp,
        change: Change,
        epoch: u64,
    },
    /// The decision of a primary about another's change.
    Resolve {
        key: Key,
        stamp: Stamp,
        happens: bool,
        epoch: u64,
    },
    Settle {
        key: Key,
        stamp: Stamp,
        standing: Standing,
        epoch: u64,
        then: Then,
    },
    TakeIn {
        key: Key,
        theirs: Option<Held>,
        since: u64,
    },
    Trim(Key, u64),
    Forget(Key, Stamp),
}

/// The step after a change is settled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    Read(Caller),
    Acknowledge(usize),
}

pub(crate) struct Current {
    pub(crate) stamp: Stamp,
    pub(crate) change: Change,
    pub(crate) asked: Asked,
    pub(crate) caller: Caller,
    pub(crate) begun: u64,
    /// The other replicas that have not prepared it.
    pub(crate) waiting: BTreeSet<usize>,
    pub(crate) others: Vec<usize>,
    pub(crate) committing: bool,
}

/// The changes that were open when this node became the primary.
pub(crate) struct Resolving {
    pub(crate) pending: Pending,
    /// Whether each of the asked nodes has the change, as far as they have answered.
    pub(crate) answers: BTreeMap<usize, Option<bool>>,
    pub(crate) others: Vec<usize>,
    pub(crate) deciding: bool,
}

/// The progress of catching up.
pub(crate) struct CatchingUp {
    pub(crate) since: u64,
    /// The nodes that may have an earlier open change.
    pub(crate) unsettled: BTreeSet<usize>,
    pub(crate) left: BTreeSet<Key>,
}

pub(crate) struct Node {
    pub(crate) number: usize,
    // On the disk.
    pub(crate) held: BTreeMap<Key, Held>,
    pub(crate) pending: BTreeMap<Key, (Pending, Change)>,
    pub(crate) life: u64,
    pub(crate) epoch: u64,
    // Not on the disk.
    pub(crate) is_up: bool,
    pub(crate) skew: u64,
    pub(crate) clock: StampClock,
    pub(crate) floor: Stamp,
    pub(crate) view: Option<View>,
    pub(crate) lease_until: u64,
    pub(crate) current: HashMap<Key, Current>,
    pub(crate) waiting: HashMap<Key, VecDeque<(Caller, Wish)>>,
    pub(crate) readers: BTreeMap<Key, Vec<Caller>>,
    pub(crate) resolving: BTreeMap<Key, Resolving>,
    pub(crate) catching_up: Option<CatchingUp>,
    pub(crate) caught_up: u64,
    /// The replicas that have not heard of a commit.
    pub(crate) untold: BTreeMap<(Key, Stamp), BTreeSet<usize>>,
    /// The time since when a deletion has been remembered.
    pub(crate) deleted: BTreeMap<(Key, Stamp), u64>,
    pub(crate) disk_free: u64,
}

impl Node {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            number,
            held: BTreeMap::new(),
            pending: BTreeMap::new(),
            life: 0,
            epoch: 0,
            is_up: false,
            skew: 0,
            clock: StampClock::new(origin(&number.to_string(), 0)),
            floor: Stamp::NONE,
            view: None,
            lease_until: 0,
            current: HashMap::new(),
            waiting: HashMap::new(),
            readers: BTreeMap::new(),
            resolving: BTreeMap::new(),
            catching_up: None,
            caught_up: 0,
            untold: BTreeMap::new(),
            deleted: BTreeMap::new(),
            disk_free: 0,
        }
    }

    pub(crate) fn crash(&mut self) {
        let old = std::mem::replace(self, Self::new(self.number));
        (self.held, self.pending) = (old.held, old.pending);
        (self.life, self.epoch) = (old.life + 1, old.epoch);
    }

    pub(crate) fn boot(&mut self, skew: u64) {
        self.is_up = true;
        self.skew = skew;
        self.clock = StampClock::new(origin(&self.number.to_string(), self.life));
    }

    pub(crate) fn holds(&self, key: Key) -> Option<Stamp> {
        self.held.get(&key).map(|(stamp, _)| *stamp)
    }

    pub(crate) fn value(&self, key: Key) -> Option<u64> {
        self.held.get(&key).and_then(|(_, value)| *value)
    }

    pub(crate) fn pending(&self, key: Key) -> Option<Pending> {
        self.pending.get(&key).map(|(pending, _)| *pending)
    }

    /// Prepares a change of an earlier epoch.
    pub(crate) fn left_open(&self, key: Key) -> Option<Pending> {
        self.pending(key).filter(|p| p.epoch < self.epoch)
    }

    pub(crate) fn is_primary(&self, key: Key) -> bool {
        self.primary(key) == Some(self.number)
    }

    pub(crate) fn primary(&self, key: Key) -> Option<usize> {
        self.readers_of(key).first().copied()
    }

    pub(crate) fn readers_of(&self, key: Key) -> Vec<usize> {
        readers_of(self.view.as_ref(), key)
    }

    /// All other nodes that make a change.
    pub(crate) fn others(&self, key: Key) -> Vec<usize> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let writers = view.writers(BUCKET, &key.to_string());
        let all = (0..NODES).filter(|n| *n != self.number);
        all.filter(|n| writers.contains(&&name(*n))).collect()
    }

    /// All other nodes that can tell the outcome of a change of this epoch.
    pub(crate) fn witnesses(&self, key: Key, epoch: u64) -> Vec<usize> {
        let Some(view) = &self.view else {
            return Vec::new();
        };
        let witnesses = view.witnesses(BUCKET, &key.to_string(), epoch);
        let all = (0..NODES).filter(|n| *n != self.number);
        all.filter(|n| witnesses.contains(&&name(*n))).collect()
    }

    /// Whether a node has to fetch a key.
    pub(crate) fn lacks(&self, key: Key, node: usize) -> bool {
        let state = self.view.as_ref().map(View::state);
        let fetches = state.and_then(|s| s.fetches_since(name(node).as_str()));
        let lacks = |view: &View| view.lacks(name(node).as_str(), BUCKET, &key.to_string());
        fetches.is_some() && self.view.as_ref().is_some_and(lacks)
    }

    pub(crate) fn has_place(&self, key: Key) -> bool {
        let view = self.view.as_ref();
        view.is_none_or(|view| has_place(view, self.number, key))
    }

    fn settle(&mut self, key: Key, settlement: Settlement, mutation: Option<Mutation>) {
        if settlement == Settlement::Keep {
            return;
        }
        let Some((pending, change)) = self.pending.remove(&key) else {
            return;
        };
        if settlement == Settlement::Apply {
            self.apply(key, pending.stamp, change, mutation);
        }
    }

    fn apply(&mut self, key: Key, stamp: Stamp, change: Change, mutation: Option<Mutation>) {
        let value = change.apply(self.value(key), mutation);
        let stamp = match (mutation, change) {
            (Some(Mutation::OnlyNewVersionsCount), Change::Remove { is_last: false, .. }) => {
                self.holds(key).unwrap_or(stamp)
            }
            _ => stamp,
        };
        self.hold(key, (stamp, value), mutation);
    }

    fn hold(&mut self, key: Key, held: Held, mutation: Option<Mutation>) {
        match held.1 {
            None if mutation == Some(Mutation::NoTombstones) => self.held.remove(&key),
            _ => self.held.insert(key, held),
        };
    }

    /// Writes an effect to the disk.
    pub(crate) fn change(&mut self, effect: &Effect, mutation: Option<Mutation>) -> Receipt {
        match effect {
            Effect::Adopt(state) => self.epoch = self.epoch.max(state.epoch),
            Effect::Prepare {
                key, asked, change, ..
            } => return self.prepare(*key, asked, *change, mutation),
            Effect::Commit {
                key,
                stamp,
                change,
                epoch,
            } => {
                if *epoch != self.epoch && mutation != Some(Mutation::CommitLate) {
                    return Receipt::Refuse(Refusal::Epoch(self.epoch));
                }
                self.apply(*key, *stamp, *change, mutation);
            }
            Effect::Resolve {
                key,
                stamp,
                happens,
                epoch,
            } => {
                let is_open = self.pending(*key).is_some_and(|p| p.stamp == *stamp);
                if *epoch != self.epoch || !is_open {
                    return Receipt::Refuse(Refusal::Epoch(self.epoch));
                }
                let settlement = match happens {
                    true => Settlement::Apply,
                    false => Settlement::Drop,
                };
                self.settle(*key, settlement, mutation);
            }
            Effect::Settle {
                key,
                stamp,
                standing,
                epoch,
                ..
            } => {
                let standing = match mutation {
                    Some(Mutation::OldVerdicts) => *standing,
                    // Another node may have been the primary: the change stays open.
                    _ if *epoch < self.epoch => Standing::UnderWay,
                    _ => *standing,
                };
                if let Some(pending) = self.pending(*key).filter(|p| p.stamp == *stamp) {
                    let mut settlement = settle(pending, standing);
                    if mutation == Some(Mutation::PresumeCommitted)
                        && settlement == Settlement::Drop
                    {
                        settlement = Settlement::Apply;
                    }
                    self.settle(*key, settlement, mutation);
                }
            }
            Effect::TakeIn { key, theirs, since } => self.take_in(*key, *theirs, *since, mutation),
            Effect::Trim(key, epoch) => {
                if *epoch == self.epoch {
                    self.held.remove(key);
                    self.pending.remove(key);
                }
            }
            Effect::Forget(key, stamp) => {
                if self.held.get(key) == Some(&(*stamp, None)) {
                    self.held.remove(key);
                }
            }
        }
        Receipt::Known
    }

    fn prepare(
        &mut self,
        key: Key,
        asked: &Asked,
        change: Change,
        mutation: Option<Mutation>,
    ) -> Receipt {
        let epoch = match mutation {
            Some(Mutation::OldEpoch) if asked.epoch < self.epoch => asked.epoch,
            _ => self.epoch,
        };
        let mut receipt = receive(asked, epoch, self.holds(key), self.pending(key));
        if let Receipt::Prepare { older } = &mut receipt {
            if mutation == Some(Mutation::DropOlder) && older.is_some() {
                *older = Some(Settlement::Drop);
            }
            self.settle(key, older.unwrap_or(Settlement::Drop), mutation);
            let pending = Pending {
                epoch: asked.epoch,
                stamp: asked.stamp,
                removes: change.removes(),
            };
            match mutation {
                Some(Mutation::ApplyAtOnce) => self.apply(key, asked.stamp, change, mutation),
                _ => drop(self.pending.insert(key, (pending, change))),
            }
        }
        receipt
    }

    fn take_in(&mut self, key: Key, theirs: Option<Held>, since: u64, mutation: Option<Mutation>) {
        let stamp = theirs.map(|(stamp, _)| stamp);
        match (missed(since, self.holds(key), stamp), theirs) {
            (Missed::Take, Some(held)) => self.hold(key, held, mutation),
            (Missed::Remove, _) if mutation != Some(Mutation::KeepDeleted) => {
                self.held.remove(&key);
            }
            _ => {}
        }
        if self.pending(key).is_some_and(|p| is_over(since, p, stamp)) {
            self.pending.remove(&key);
        }
    }
}

/// The change that a primary with this state makes of a wish, and whether it builds on the state.
/// None for a version that the key does not have.
pub(crate) fn change(wish: Wish, held: Option<u64>) -> Option<(Change, bool)> {
    let is_held = held.is_some();
    match wish {
        // Without a state to change, it is a write like others.
        Wish::Write { value, builds } => Some((Change::Hold(value), builds && is_held)),
        Wish::Add(version) => {
            let is_first = !is_held;
            Some((Change::Add { version, is_first }, is_held))
        }
        Wish::Remove(version) => {
            let held = held.filter(|held| held & version != 0)?;
            let is_last = held == version;
            Some((Change::Remove { version, is_last }, true))
        }
        Wish::Read => None,
    }
}

pub(crate) fn readers_of(view: Option<&View>, key: Key) -> Vec<usize> {
    let Some(view) = view else {
        return Vec::new();
    };
    let key = key.to_string();
    let readers = view.readers(BUCKET, &key);
    let number = |reader: &prism_cluster::NodeName| (0..NODES).find(|n| name(*n) == *reader);
    readers.filter_map(number).collect()
}

pub(crate) fn has_place(view: &View, node: usize, key: Key) -> bool {
    view.has_place(name(node).as_str(), BUCKET, &key.to_string())
}
