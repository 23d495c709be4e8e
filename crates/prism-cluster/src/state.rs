//! The state that a cluster agrees on.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::placement::{NodeName, digest};

/// Most backends of one placing.
pub const NODES_MAX: usize = 4096;

/// The reason why a state or a placing is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The placing has no member.
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
        /// The wanted number.
        replicas: u16,
        /// The number of backends.
        members: usize,
    },
    /// The state lacks a member. It was changed by hand, or by another version.
    #[error("the state has no record of the backend {0}, which holds keys")]
    Unknown(NodeName),
}

/// The backends that hold keys, and the number of replicas of each key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placing {
    /// The backends.
    pub members: BTreeSet<NodeName>,
    /// The replicas of each key: 1 to the number of members.
    pub replicas: u16,
}

impl Placing {
    /// Checks and makes a placing.
    ///
    /// # Errors
    /// [`StateError`]: no members, too many of them, or fewer than replicas.
    pub fn new(
        members: impl IntoIterator<Item = NodeName>,
        replicas: u16,
    ) -> Result<Self, StateError> {
        let members = members.into_iter().collect();
        let placing = Self { members, replicas };
        placing.check()?;
        Ok(placing)
    }

    /// A digest by which nodes notice that their files place objects differently. Never 0.
    pub fn digest(&self) -> u64 {
        digest(self.replicas, self.members.iter().map(NodeName::as_str))
    }

    /// The digest of all nodes that follow the state below `prefix` in etcd. It does not depend
    /// on the state. Never 0.
    pub fn digest_in_etcd(prefix: &str) -> u64 {
        digest(0, std::iter::once(prefix))
    }

    pub(crate) fn check(&self) -> Result<(), StateError> {
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

/// The status of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// It has every answered write of its keys, and serves reads.
    InSync,
    /// It gets every write, has missed earlier ones, and serves no reads.
    Lagging,
    /// It gets no writes and serves no reads.
    Out,
}

impl Status {
    /// Every status with its name.
    pub const ALL: [(Self, &str); 3] = [
        (Self::InSync, "in-sync"),
        (Self::Lagging, "lagging"),
        (Self::Out, "out"),
    ];
}

/// The cluster's record of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Backend {
    /// Its status.
    pub status: Status,
    /// The epoch since which it gets every write or, if it gets none, since which it is out.
    pub since: u64,
    /// The identity of its store; 0 until that is known.
    pub store: u64,
}

/// The progress of a change of the placing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// The placing does not change.
    Settled,
    /// Writes use both placings, and reads the old one. Backends fetch the keys that the new
    /// placing gives them.
    Filling {
        /// The new placing.
        to: Placing,
        /// The epoch in which it began.
        since: u64,
    },
    /// Writes still use both placings, and reads the new one.
    Moved {
        /// The old placing.
        from: Placing,
    },
}

/// The state that a cluster agrees on. It is small, and has nothing about objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// The number of the state, which grows by one with each step.
    pub epoch: u64,
    /// A random number of the founding, which tells its states from those of another founding.
    /// 0 for older releases and for clusters without etcd.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub founding: u64,
    /// Foundings whose states this one succeeds, in a later epoch.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub replaces: BTreeSet<u64>,
    /// The placing that reads use.
    pub placing: Placing,
    /// The progress of a change of the placing.
    pub phase: Phase,
    /// Every member of the placings.
    pub backends: BTreeMap<NodeName, Backend>,
}

impl State {
    /// The first state of a new cluster.
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

    /// Whether this state is or succeeds the one of that founding and epoch. A store that has
    /// acted by another state must not act by this one.
    pub fn succeeds(&self, founding: u64, epoch: u64) -> bool {
        if self.founding == founding {
            self.epoch >= epoch
        } else {
            self.epoch > epoch && self.replaces.contains(&founding)
        }
    }

    /// Checks a state that comes from outside.
    ///
    /// # Errors
    /// [`StateError`]: the state is invalid.
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

    /// The placing that only writes use, while the placing changes.
    pub fn other(&self) -> Option<&Placing> {
        match &self.phase {
            Phase::Settled => None,
            Phase::Filling { to: other, .. } | Phase::Moved { from: other } => Some(other),
        }
    }

    /// A backend's status; `None` if it holds no keys.
    pub fn status(&self, name: &str) -> Option<Status> {
        self.backends.get(name).map(|backend| backend.status)
    }

    /// Whether the state has this store as that of the backend. A backend with another store,
    /// for instance a new one after a loss, must not serve.
    pub fn is_store_of(&self, name: &str, store: u64) -> bool {
        let backend = self.backends.get(name);
        backend.is_some_and(|backend| backend.store == store)
    }

    /// The epoch since which a backend has to fetch keys; `None` if it has all. Once all backends
    /// that live have adopted that epoch, every write reaches it, and it fetches older ones.
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
