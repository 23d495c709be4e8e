//! What a cluster has agreed on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::placement::{NODES_MAX, NodeName, digest};

/// Why a state or a placing makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// There would be nobody to hold a key.
    #[error("a cluster needs at least one backend")]
    NoMembers,
    /// More than [`NODES_MAX`] backends.
    #[error("more than {NODES_MAX} backends")]
    TooManyMembers,
    /// More replicas than backends, or none.
    #[error(
        "{replicas} replicas of each object on {members} backends: from 1 to {members} are possible"
    )]
    Replicas {
        /// Wanted.
        replicas: u16,
        /// There are.
        members: usize,
    },
    /// Not a state of ours: it was changed by hand, or by another version.
    #[error("nothing is known of the backend {0}, which holds keys")]
    Unknown(NodeName),
}

/// Which backends hold keys, and how many of them each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placing {
    /// All of them.
    pub members: BTreeSet<NodeName>,
    /// From 1 (partitioned) to all of them (replicated).
    pub replicas: u16,
}

impl Placing {
    /// A placing that makes sense.
    ///
    /// # Errors
    /// [`StateError`]: no members, too many, or not so many replicas.
    pub fn new(
        members: impl IntoIterator<Item = NodeName>,
        replicas: u16,
    ) -> Result<Self, StateError> {
        let members = members.into_iter().collect();
        let placing = Self { members, replicas };
        placing.check()?;
        Ok(placing)
    }

    /// A digest by which nodes find out that their files place objects differently. Never 0.
    #[must_use]
    pub fn digest(&self) -> u64 {
        digest(self.replicas, self.members.iter().map(NodeName::as_str))
    }

    /// The digest of all nodes that follow the state below `prefix` in etcd, which may
    /// change. Never 0.
    #[must_use]
    pub fn digest_in_etcd(prefix: &str) -> u64 {
        digest(0, std::iter::once(prefix))
    }

    fn check(&self) -> Result<(), StateError> {
        match self.members.len() {
            0 => Err(StateError::NoMembers),
            n if n > NODES_MAX => Err(StateError::TooManyMembers),
            members if self.replicas == 0 || usize::from(self.replicas) > members => {
                let replicas = self.replicas;
                Err(StateError::Replicas { replicas, members })
            }
            _ => Ok(()),
        }
    }
}

/// Whether a backend has what it is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It has: reads are served there.
    InSync,
    /// It gets every write, but has missed some: nothing is read there.
    Lagging,
    /// It does not answer, and gets nothing.
    Out,
}

/// A backend, as the cluster sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Whether it has what it is to have.
    pub status: Status,
    /// The epoch since which it gets every write; of one that gets none, the epoch
    /// that made it so.
    pub since: u64,
    /// The identity of the store that it has; 0 until that is known.
    pub store: u64,
}

/// How far a change of the placing has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// There is none.
    Settled,
    /// Writes are made by both placings, reads by the old one: those that hold
    /// more by the new one fetch it.
    Filling {
        /// The placing to be.
        to: Placing,
        /// The epoch in which it began.
        since: u64,
    },
    /// Writes are still made by both, reads by the new one.
    Moved {
        /// The placing that was.
        from: Placing,
    },
}

/// What a cluster has agreed on: small, and nothing about objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Grows by one with each change.
    pub epoch: u64,
    /// Tells this cluster's states from those that were founded at another time: drawn
    /// at random. 0: of before that was noted, and where nothing changes.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub founding: u64,
    /// Foundings whose states this one goes on from, in a later epoch.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaces: BTreeSet<u64>,
    /// By which keys are read.
    pub placing: Placing,
    /// Whether that is being changed.
    pub phase: Phase,
    /// Every member of any placing.
    pub backends: BTreeMap<NodeName, Backend>,
}

impl State {
    /// The first state of a cluster that has nothing yet.
    #[must_use]
    pub fn new(placing: Placing) -> Self {
        let backend = Backend {
            status: Status::InSync,
            since: 1,
            store: 0,
        };
        let backends = placing.members.iter().cloned();
        Self {
            epoch: 1,
            founding: 0,
            replaces: BTreeSet::new(),
            backends: backends.map(|name| (name, backend)).collect(),
            placing,
            phase: Phase::Settled,
        }
    }

    /// The same, told from every other first state by a number.
    #[must_use]
    pub fn founded(self, founding: u64) -> Self {
        Self { founding, ..self }
    }

    /// Whether this state goes on from one of that founding and epoch, or is it. Who
    /// has acted by one that it does not go on from must not act by this one.
    #[must_use]
    pub fn succeeds(&self, founding: u64, epoch: u64) -> bool {
        match self.founding == founding {
            true => self.epoch >= epoch,
            false => self.epoch > epoch && self.replaces.contains(&founding),
        }
    }

    /// Looks whether a state that comes from outside makes sense.
    ///
    /// # Errors
    /// [`StateError`] with what does not.
    pub fn check(&self) -> Result<(), StateError> {
        for placing in [Some(&self.placing), self.other()].into_iter().flatten() {
            placing.check()?;
            for name in &placing.members {
                if !self.backends.contains_key(name) {
                    return Err(StateError::Unknown(name.clone()));
                }
            }
        }
        Ok(())
    }

    /// The placing that counts for writes only.
    #[must_use]
    pub fn other(&self) -> Option<&Placing> {
        match &self.phase {
            Phase::Settled => None,
            Phase::Filling { to: other, .. } | Phase::Moved { from: other } => Some(other),
        }
    }

    /// A backend's status; none if it holds nothing.
    #[must_use]
    pub fn status(&self, name: &str) -> Option<Status> {
        self.backends.get(name).map(|backend| backend.status)
    }

    /// Whether this is the store of which the state speaks. A backend with another
    /// one, one that was lost and begun anew say, must not serve anything.
    #[must_use]
    pub fn is_store_of(&self, name: &str, store: u64) -> bool {
        let backend = self.backends.get(name);
        backend.is_some_and(|backend| backend.store == store)
    }

    /// Since which epoch a backend has to get hold of what it is to have, if it
    /// has to: from when all that live have adopted that epoch, every write
    /// reaches it, and what was there before is to be fetched.
    #[must_use]
    pub fn fetches_since(&self, name: &str) -> Option<u64> {
        let backend = self.backends.get(name)?;
        let filling = match &self.phase {
            Phase::Filling { to, since } if to.members.contains(name) => Some(*since),
            _ => None,
        };
        match backend.status {
            Status::Out => None,
            Status::Lagging => filling.max(Some(backend.since)),
            Status::InSync => filling.map(|since| since.max(backend.since)),
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}
