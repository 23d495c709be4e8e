//! A node: the primary of one key in three, a replica of all; what it has on its
//! disk and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use prism_replica::{
    Asked, Pending, Receipt, Refusal, Settlement, Stamp, StampClock, Standing, Write, origin,
    receive, settle,
};

use crate::Mutation;
use crate::world::NODES;

pub(crate) const EPOCH: u64 = 1;
pub(crate) type Key = usize;
pub(crate) type Caller = (usize, u64);

#[derive(Clone, Debug)]
pub(crate) enum Message {
    Prepare {
        key: Key,
        asked: Asked,
        value: Option<u64>,
    },
    Prepared(Key, Stamp),
    Refused(Key, Stamp, Refusal),
    Commit(Key, Stamp),
    Committed(Key, Stamp),
    Abort(Key, Stamp),
    Ask {
        key: Key,
        stamp: Stamp,
        caller: Option<Caller>,
    },
    Told {
        key: Key,
        stamp: Stamp,
        standing: Standing,
        caller: Option<Caller>,
    },
}

/// What a disk is told to do, and what follows.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    Prepare {
        from: usize,
        key: Key,
        asked: Asked,
        value: Option<u64>,
    },
    /// The primary's own.
    Commit {
        key: Key,
        stamp: Stamp,
        value: Option<u64>,
    },
    /// A replica's.
    Apply {
        from: usize,
        key: Key,
        stamp: Stamp,
    },
    Settle {
        key: Key,
        stamp: Stamp,
        standing: Standing,
        caller: Option<Caller>,
    },
    Forget(Key, Stamp),
}

pub(crate) struct Current {
    pub(crate) stamp: Stamp,
    pub(crate) value: Option<u64>,
    pub(crate) asked: Asked,
    pub(crate) caller: Caller,
    pub(crate) begun: u64,
    pub(crate) write: Write<usize>,
    pub(crate) committing: bool,
}

pub(crate) struct Node {
    // On the disk.
    /// Deletions have no value.
    pub(crate) held: BTreeMap<Key, (Stamp, Option<u64>)>,
    pub(crate) pending: BTreeMap<Key, (Stamp, Option<u64>)>,
    pub(crate) life: u64,
    // Not on the disk.
    pub(crate) is_up: bool,
    pub(crate) skew: u64,
    pub(crate) clock: StampClock,
    pub(crate) floor: Stamp,
    pub(crate) current: HashMap<Key, Current>,
    pub(crate) waiting: HashMap<Key, VecDeque<(Caller, Option<u64>, bool)>>,
    /// Who has not heard of a commit.
    pub(crate) untold: BTreeMap<(Key, Stamp), BTreeSet<usize>>,
    /// Since when a deletion has been remembered.
    pub(crate) deleted: BTreeMap<(Key, Stamp), u64>,
    pub(crate) disk_free: u64,
}

impl Node {
    pub(crate) fn new(number: usize) -> Self {
        Self {
            held: BTreeMap::new(),
            pending: BTreeMap::new(),
            life: 0,
            is_up: false,
            skew: 0,
            clock: StampClock::new(origin(&number.to_string(), 0)),
            floor: Stamp::NONE,
            current: HashMap::new(),
            waiting: HashMap::new(),
            untold: BTreeMap::new(),
            deleted: BTreeMap::new(),
            disk_free: 0,
        }
    }

    pub(crate) fn crash(&mut self) {
        let disk = (
            std::mem::take(&mut self.held),
            std::mem::take(&mut self.pending),
        );
        let life = self.life + 1;
        *self = Self::new(0);
        (self.held, self.pending) = disk;
        self.life = life;
    }

    pub(crate) fn boot(&mut self, number: usize, skew: u64) {
        self.is_up = true;
        self.skew = skew;
        self.clock = StampClock::new(origin(&number.to_string(), self.life));
        // Others may not have heard of what was committed.
        let own = self.held.iter().filter(|(key, _)| *key % NODES == number);
        let others: BTreeSet<usize> = (0..NODES).filter(|n| *n != number).collect();
        self.untold = own
            .map(|(key, (stamp, _))| ((*key, *stamp), others.clone()))
            .collect();
    }

    pub(crate) fn holds(&self, key: Key) -> Option<Stamp> {
        self.held.get(&key).map(|(stamp, _)| *stamp)
    }

    pub(crate) fn value(&self, key: Key) -> Option<u64> {
        self.held.get(&key).and_then(|(_, value)| *value)
    }

    pub(crate) fn pending(&self, key: Key) -> Option<Pending> {
        self.pending.get(&key).map(|(stamp, value)| Pending {
            stamp: *stamp,
            removes: value.is_none(),
        })
    }

    fn settle(&mut self, key: Key, settlement: Settlement, mutation: Option<Mutation>) {
        if settlement == Settlement::Keep {
            return;
        }
        let Some((stamp, value)) = self.pending.remove(&key) else {
            return;
        };
        if settlement == Settlement::Apply {
            self.hold(key, stamp, value, mutation);
        }
    }

    fn hold(&mut self, key: Key, stamp: Stamp, value: Option<u64>, mutation: Option<Mutation>) {
        match value {
            None if mutation == Some(Mutation::NoTombstones) => self.held.remove(&key),
            _ => self.held.insert(key, (stamp, value)),
        };
    }

    /// What an effect does to the disk: whether a prepared change is there.
    pub(crate) fn change(&mut self, effect: &Effect, mutation: Option<Mutation>) -> Receipt {
        match effect {
            Effect::Prepare {
                key, asked, value, ..
            } => {
                let mut receipt = receive(asked, EPOCH, self.holds(*key), self.pending(*key));
                if let Receipt::Prepare { older } = &mut receipt {
                    if mutation == Some(Mutation::DropOlder) && older.is_some() {
                        *older = Some(Settlement::Drop);
                    }
                    self.settle(*key, older.unwrap_or(Settlement::Drop), mutation);
                    match mutation {
                        Some(Mutation::ApplyAtOnce) => {
                            self.hold(*key, asked.stamp, *value, mutation)
                        }
                        _ => drop(self.pending.insert(*key, (asked.stamp, *value))),
                    }
                }
                return receipt;
            }
            Effect::Commit { key, stamp, value } => self.hold(*key, *stamp, *value, mutation),
            Effect::Apply { key, stamp, .. } => {
                if self.pending(*key).is_some_and(|p| p.stamp == *stamp) {
                    self.settle(*key, Settlement::Apply, mutation);
                }
            }
            Effect::Settle {
                key,
                stamp,
                standing,
                ..
            } => {
                if let Some(pending) = self.pending(*key).filter(|p| p.stamp == *stamp) {
                    let mut settlement = settle(pending, *standing);
                    if mutation == Some(Mutation::PresumeCommitted)
                        && settlement == Settlement::Drop
                    {
                        settlement = Settlement::Apply;
                    }
                    self.settle(*key, settlement, mutation);
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
}
