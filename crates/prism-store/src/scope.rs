//! The scopes of changes, and the changes as replicas send and prepare them. The file has formats
//! alone: `primary` makes changes, and `commit` applies them.

use prism_cluster::replica::Stamp;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    keys::{object_key, part_key, split_object_key, upload_key},
    types::{ObjectMeta, UploadId, VersionId, Versioning, check_bucket, check_key},
};

/// The unit of changes: those of one scope come one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Scope {
    /// The bucket.
    pub bucket: String,
    /// The key of the object, or of the object to be.
    pub key: String,
    /// An upload to that key, or a part of one; none for the object itself.
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

    /// The scope of an object by its key in the trees.
    pub(crate) fn of_object_key(object_key: &[u8]) -> Result<Self, Error> {
        let split = split_object_key(object_key);
        let (bucket, key) = split.ok_or_else(|| Error::corrupt("object key"))?;
        Ok(Self::object(bucket, key))
    }

    /// The scope of an upload to the same key, or of a part of one.
    pub(crate) fn with_upload(self, id: UploadId, part: Option<u16>) -> Self {
        let upload = Some((id, part));
        Self { upload, ..self }
    }

    /// The upload and the number of a part. An upload that is removed takes its parts along.
    pub(crate) fn part(&self) -> Option<(UploadId, u16)> {
        let (id, number) = self.upload?;
        Some((id, number?))
    }

    pub(crate) fn object_key(&self) -> Vec<u8> {
        object_key(&self.bucket, &self.key)
    }

    /// Checks names that come from another node.
    pub(crate) fn check(&self) -> Result<(), Error> {
        check_bucket(&self.bucket)?;
        check_key(&self.key)
    }

    /// Its key in the tree `pending`.
    pub(crate) fn tree_key(&self) -> Vec<u8> {
        let (kind, key) = match self.upload {
            None => (b'o', self.object_key()),
            Some((id, None)) => (b'u', upload_key(&self.object_key(), id)),
            Some((id, Some(number))) => (b'p', part_key(id, number).to_vec()),
        };
        [&[kind], key.as_slice()].concat()
    }
}

/// A change of a scope, as it is sent to replicas.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// An object, or a part, with the bytes that follow.
    Write {
        /// Its metadata.
        meta: ObjectMeta,
        /// Length in bytes.
        len: u64,
    },
    /// New metadata of an object.
    SetMeta(ObjectMeta),
    /// The end of an object, or of an upload.
    Remove,
    /// A change of a key with versions: a write makes a version, and a removal makes a delete
    /// marker.
    Kept(Keeps, Box<Change>),
    /// The end of one version of a key.
    RemoveVersion {
        /// The version.
        version: VersionId,
        /// Whether the key has no other version.
        is_last: bool,
    },
    /// New metadata of one version.
    SetMetaOf(VersionId, ObjectMeta),
    /// A new upload.
    Begin(ObjectMeta),
    /// An object of the parts with these numbers and stamps.
    Complete {
        /// The upload.
        upload: UploadId,
        /// The metadata of the object.
        meta: ObjectMeta,
        /// Ascending part numbers, with their stamps.
        parts: Vec<(u16, Stamp)>,
    },
}

/// How a change treats the versions of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keeps {
    /// As the primary's bucket says. Other replicas may not know the setting yet.
    pub versioning: Versioning,
    /// Whether the key has a state at the primary. Then only a replica with the same state can
    /// make the change. Otherwise the replica first removes whatever it has of the key.
    pub builds: bool,
}

impl Change {
    /// The change itself, with or without versions.
    #[must_use]
    pub fn what(&self) -> &Self {
        match self {
            Self::Kept(_, change) => change,
            change => change,
        }
    }

    /// How the change treats versions, if the key has them.
    #[must_use]
    pub fn keeps(&self) -> Option<Keeps> {
        match self {
            Self::Kept(keeps, _) => Some(*keeps),
            _ => None,
        }
    }

    /// Whether only a replica with the primary's state can make the change.
    #[must_use]
    pub fn builds_on_before(&self) -> bool {
        match self {
            Self::Kept(keeps, _) => keeps.builds,
            change => matches!(change, Self::SetMeta(_)),
        }
    }

    /// Whether the key, or the upload, has no state afterwards.
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
    /// The scope.
    pub scope: Scope,
    /// The stamp of the scope at the primary.
    pub before: Option<Stamp>,
    /// The change.
    pub change: Change,
}

impl ScopedChange {
    /// The upload and the parts on which a change builds, with the stamps of the parts.
    #[must_use]
    pub fn built_on(&self) -> Vec<(Scope, Option<Stamp>)> {
        let of_upload = |id, part| self.scope.clone().with_upload(id, part);
        match (self.change.what(), self.scope.upload) {
            (Change::Write { .. }, Some((id, _))) => vec![(of_upload(id, None), None)],
            (Change::Complete { upload, parts, .. }, _) => {
                let parts = parts.iter();
                let parts = parts.map(|(n, stamp)| (of_upload(*upload, Some(*n)), Some(*stamp)));
                let upload = (of_upload(*upload, None), None);
                std::iter::once(upload).chain(parts).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Changes to prepare, all or none. Bytes follow a single [`Change::Write`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepare {
    /// The epoch, in which the sender is the primary of all scopes.
    pub epoch: u64,
    /// The bucket's life at the sender. A change does not apply to another life.
    pub life: Stamp,
    /// The stamp of all changes.
    pub stamp: Stamp,
    /// The changes.
    pub changes: Vec<ScopedChange>,
}

impl Prepare {
    /// The number of bytes that follow.
    #[must_use]
    pub fn body_len(&self) -> u64 {
        self.body().map_or(0, |(_, len)| len)
    }

    /// The scope and the length of the bytes that follow, if any do.
    pub(crate) fn body(&self) -> Option<(&Scope, u64)> {
        let [one] = self.changes.as_slice() else {
            return None;
        };
        match one.change.what() {
            Change::Write { len, .. } => Some((&one.scope, *len)),
            _ => None,
        }
    }
}
