//! A store as one of several replicas: changes are made together with those of
//! other nodes.
//!
//! The rules are those of [`prism_replica`]; here they are carried out. `primary`
//! makes a change on all replicas, before anything else of this crate hears of
//! it; `commit::prepare` keeps what another node's store is the primary of. Who
//! the others are, and how they are reached, is given as [`Replicas`].

mod catch_up;
mod fetch;
mod fetch_versions;
mod index;
mod open_changes;
mod plan;
mod primary;
mod state;

use std::{fs::File, sync::mpsc::Receiver};

use prism_replica::{Refusal, Stamp};
use serde::{Deserialize, Serialize};

pub use catch_up::{CatchUp, Missing, PageRequest, ScopePage};
pub use fetch::{Handed, Piece, TakeIn};
pub use fetch_versions::{TakeVersions, VersionName, VersionSummary};
pub(crate) use index::{Index, Locks};
pub use open_changes::OpenChanges;
pub use state::Deletion;

use crate::{
    error::Error,
    record::object_key,
    types::ObjectMeta,
    uploads::{UploadId, part_key, upload_key},
    versions::{VersionId, Versioning},
};

/// What is changed by itself: the changes of one scope come one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    /// The bucket.
    pub bucket: String,
    /// The key of the object, or of the object to be.
    pub key: String,
    /// An upload to that key, or a part of one; none: the object itself.
    pub upload: Option<(UploadId, Option<u16>)>,
}

impl Scope {
    /// The scope of an object.
    #[must_use]
    pub fn object(bucket: &str, key: &str) -> Self {
        Self {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            upload: None,
        }
    }

    /// Whether this is a part of an upload. An upload that is removed takes its parts along.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.upload, Some((_, Some(_))))
    }

    pub(crate) fn object_key(&self) -> Vec<u8> {
        object_key(&self.bucket, &self.key)
    }

    /// Its key in the tree `pending`.
    pub(crate) fn tree_key(&self) -> Vec<u8> {
        let (kind, key) = match self.upload {
            None => (b'o', self.object_key()),
            Some((id, None)) => (b'u', upload_key(&self.bucket, &self.key, id)),
            Some((id, Some(number))) => (b'p', part_key(id, number).to_vec()),
        };
        [&[kind], key.as_slice()].concat()
    }
}

/// A change of a scope, as it travels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// An object, or a part, with the bytes that follow.
    Write {
        /// Its metadata.
        meta: ObjectMeta,
        /// Length in bytes.
        len: u64,
    },
    /// Other metadata for an object.
    SetMeta(ObjectMeta),
    /// The end of an object, or of an upload.
    Remove,
    /// The same to a key of which versions are kept: what is written becomes a version,
    /// and what is removed is hidden by a delete marker.
    Kept(Keeps, Box<Change>),
    /// The end of one version, of a key of which they are kept.
    RemoveVersion {
        /// Which.
        version: VersionId,
        /// The key has no other.
        is_last: bool,
    },
    /// Other metadata for one version.
    SetMetaOf(VersionId, ObjectMeta),
    /// A new upload.
    Begin(ObjectMeta),
    /// An object of the parts with these numbers and stamps.
    Complete {
        /// Which upload.
        upload: UploadId,
        /// Of the object.
        meta: ObjectMeta,
        /// Ascending.
        parts: Vec<(u16, Stamp)>,
    },
}

/// How a change treats the versions of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// As the primary's bucket says: others may hear of that sooner or later.
    pub versioning: Versioning,
    /// The key has versions at the primary; only who has the same can make the change.
    /// Without it the key has none before, whatever a replica finds.
    pub builds: bool,
}

impl Change {
    /// What is done, whether versions are kept or not.
    #[must_use]
    pub fn what(&self) -> &Self {
        match self {
            Self::Kept(_, change) => change,
            change => change,
        }
    }

    /// How versions are treated, where they are kept.
    #[must_use]
    pub fn keeps(&self) -> Option<Keeps> {
        match self {
            Self::Kept(keeps, _) => Some(*keeps),
            _ => None,
        }
    }

    /// It means nothing to who does not have what the primary has.
    #[must_use]
    pub fn builds_on_before(&self) -> bool {
        match self {
            Self::Kept(keeps, _) => keeps.builds,
            change => matches!(change, Self::SetMeta(_)),
        }
    }

    /// The key, or upload, holds nothing afterwards.
    pub(crate) fn removes(&self) -> bool {
        match self {
            Self::Kept(_, change) => matches!(**change, Self::RemoveVersion { is_last: true, .. }),
            change => matches!(change, Self::Remove),
        }
    }
}

/// A change of one scope.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScopedChange {
    /// Of what.
    pub scope: Scope,
    /// What the primary holds there.
    pub before: Option<Stamp>,
    /// Which.
    pub change: Change,
}

/// Changes that are to be prepared, all or none. Bytes follow where there is one
/// change, of the kind [`Change::Write`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// In which the sender is the primary of all scopes.
    pub epoch: u64,
    /// The bucket's life at the sender: a change is not taken into another life.
    pub life: Stamp,
    /// The stamp of all changes.
    pub stamp: Stamp,
    /// The changes.
    pub changes: Vec<ScopedChange>,
}

impl Prepare {
    /// Whether bytes that follow are to replace those of an object.
    pub(crate) fn is_of_object(&self) -> bool {
        let one = self.changes.first().filter(|_| self.changes.len() == 1);
        one.is_some_and(|change| change.scope.upload.is_none())
    }

    /// How many bytes follow; none if none do.
    #[must_use]
    pub fn body_len(&self) -> Option<u64> {
        let [one] = self.changes.as_slice() else {
            return None;
        };
        match one.change.what() {
            Change::Write { len, .. } => Some(*len),
            _ => None,
        }
    }
}

/// The bytes of a change, at its primary.
#[derive(Debug)]
pub enum Bytes {
    /// There are none.
    None,
    /// These.
    Inline(Vec<u8>),
    /// All of this file; to be read by offset.
    File(File),
}

/// Changes that are over.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decided {
    /// What was changed.
    pub scopes: Vec<Scope>,
    /// Of the changes.
    pub stamp: Stamp,
    /// Whether they have happened.
    pub committed: bool,
    /// The one in which whoever says so is.
    pub epoch: u64,
}

/// Why a change was not prepared everywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unprepared {
    /// A replica is out of reach.
    Unreachable(String),
    /// A replica refused.
    Refused(String, Refusal),
    /// A replica's store failed, or was told to wait, with this message.
    Failed(String, String),
    /// A replica has no room, by its quota or on its disk.
    NoSpace,
    /// A replica is about to delete the bucket.
    Busy,
    /// This node has too much to do.
    Overloaded,
}

/// The other replicas. Nothing here waits, except where it says so.
pub trait Replicas: Send + Sync {
    /// The epoch of what follows: what is told later may be of a later one.
    fn epoch(&self) -> u64;

    /// The other replicas of a key that this node may change now.
    ///
    /// # Errors
    /// [`Error::NotPrimary`], [`Error::TooFewCopies`].
    fn others(&self, bucket: &str, key: &str) -> Result<Vec<String>, Error>;

    /// Has all of `others` prepare changes. The one answer comes when all have,
    /// or one will not, within a bounded time; wait for it where blocking is
    /// allowed.
    fn prepare(
        &self,
        others: &[String],
        prepare: Prepare,
        bytes: Bytes,
    ) -> Receiver<Result<(), Unprepared>>;

    /// Tells all of `others`. It may be lost: they ask in time.
    fn decided(&self, others: &[String], decided: Decided);
}

impl From<Unprepared> for Error {
    fn from(unprepared: Unprepared) -> Self {
        match unprepared {
            Unprepared::Unreachable(node) => Self::Unreplicated {
                node,
                why: "is out of reach".into(),
            },
            Unprepared::Refused(node, refusal) => Self::Unreplicated {
                node,
                why: format!("refused: {refusal}").into(),
            },
            Unprepared::Failed(node, why) => Self::Unreplicated {
                node,
                why: format!("failed: {why}").into(),
            },
            Unprepared::NoSpace => Self::NoSpace,
            Unprepared::Busy => Self::Busy,
            Unprepared::Overloaded => Self::Stalled,
        }
    }
}
