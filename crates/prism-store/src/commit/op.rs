//! The operations, and which of them may share a batch.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use prism_cluster::replica::{Bucket, Pending, Proof, Stamp, Standing};

use crate::{
    error::Error,
    files::BytesChange,
    layout::FileId,
    past::Past,
    record::{PutBytes, Record},
    scope::{Change, Prepare, Scope},
    types::{ObjectMeta, Removed, UploadId, VersionId, Versioning},
    uploads::{Garbage, Manifest, UploadRecord},
    version_summary::VersionSummary,
};

/// Most operations in one batch: with the largest inline objects and metadata
/// a batch stays below 20 MiB, typically far below 1 MiB.
const GROUP_MAX: usize = 256;

/// The condition of a write on the metadata that its object has at the moment of the commit.
pub type Condition = Box<dyn Fn(Option<&ObjectMeta>) -> bool + Send>;

/// Whether a write fits in its bucket's quota at the moment of the commit: by its bytes that are
/// not counted yet, and by the bytes of the object or part that it replaces. A bucket that keeps
/// versions replaces nothing.
pub type QuotaCheck = Box<dyn Fn(u64, Option<u64>) -> Result<(), Error> + Send>;

pub(crate) type MetaChange = Box<dyn FnOnce(&mut ObjectMeta) + Send>;

pub(crate) enum Op {
    Put(PutOp),
    Delete(DeleteOp),
    /// Changes metadata, never bytes.
    Change {
        object_key: Vec<u8>,
        /// The version; none for the object.
        version: Option<VersionId>,
        change: MetaChange,
    },
    /// Sets the record of a bucket.
    SetBucket {
        name: String,
        record: Bucket,
        by: SetBy,
    },
    /// Deletes the record of a bucket that is gone.
    ForgetBucket {
        name: String,
        stamp: Stamp,
    },
    /// Begins an upload. The stamp of its record is set by the commit.
    CreateUpload {
        object_key: Vec<u8>,
        id: UploadId,
        record: UploadRecord,
    },
    Complete(CompleteOp),
    Abort {
        object_key: Vec<u8>,
        id: UploadId,
    },
    Collect(Garbage),
    /// Changes of another primary. Their file has its name, or their bytes are here.
    Prepare(Prepare, Option<(PutBytes, FileId)>),
    /// The outcomes of prepared changes.
    Settle(Vec<(Scope, Stamp, Standing)>),
    /// Forgets deletions, by the keys of their objects.
    Forget(Vec<(Vec<u8>, Stamp)>),
    /// Adopts an epoch, and saves the cluster's state with it.
    Adopt(u64, Option<Vec<u8>>),
    /// Keeps documents of the caller by their names.
    Note(Vec<(String, Vec<u8>)>),
    /// Gives the store another identity and another past.
    Renew(Arc<Past>),
    /// A copy from another replica, of a scope or of all versions of a key.
    TakeIn(TakeInOp),
    /// Removes scopes that other replicas do not have, or that this node does not own.
    Discard(DiscardOp),
}

/// The condition on which a record is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetBy {
    /// The present record has this stamp, or there is none.
    Change(Option<Stamp>),
    /// The record was agreed elsewhere. Another life needs this proof that the present one has
    /// ended.
    Agreed(Proof),
    /// The record differs from the present one only in that its life is over.
    Over,
}

pub(crate) struct DiscardOp {
    pub(crate) scopes: Vec<Scope>,
    /// Only states from before this epoch; without it all.
    pub(crate) since: Option<u64>,
    /// Only if the bucket is gone. It may have another life by now.
    pub(crate) of_gone: bool,
}

/// A copy of a scope, as of an epoch.
pub(crate) struct TakeInOp {
    /// The epoch; none for a copy that replaces a damaged scope.
    pub(crate) since: Option<u64>,
    pub(crate) scope: Scope,
    /// The life of the bucket at the source.
    pub(crate) life: Stamp,
    /// The stamp of the scope's last change.
    pub(crate) stamp: Stamp,
    pub(crate) taken: Taken,
}

/// The contents of a copy.
pub(crate) enum Taken {
    /// An object, or a part.
    Scope(Fetched),
    Upload(UploadId, UploadRecord),
    /// All versions of a key, the newest first. The store has those that were not fetched.
    Versions(Vec<(VersionSummary, Option<Fetched>)>),
}

/// The copy of an object, a part or a version. Its files have their names.
pub(crate) struct Fetched {
    pub(crate) record: Record,
    /// The bytes, or those of each part; none of a delete marker.
    pub(crate) bytes: Vec<(FileId, PutBytes)>,
    /// The parts, by the id in the record.
    pub(crate) manifest: Option<(FileId, Manifest)>,
}

/// A change of the state in memory, made once the batch is on the disk.
#[derive(Debug, Clone)]
pub(crate) enum Mark {
    Pending(Scope, Pending),
    Over(Scope),
    Adopted(u64),
    Renewed(Arc<Past>),
    /// Whether a bucket of this name exists that is not being deleted.
    Bucket(String, bool),
}

/// A new object, or a new part of an upload. Its file has its name, or its bytes are here.
pub(crate) struct PutOp {
    pub(crate) object_key: Vec<u8>,
    /// The upload and the number of a part.
    pub(crate) part: Option<(UploadId, u16)>,
    /// Its stamp is set by the commit.
    pub(crate) record: Record,
    pub(crate) id: FileId,
    pub(crate) bytes: PutBytes,
    pub(crate) condition: Option<Condition>,
    pub(crate) quota: Option<QuotaCheck>,
}

/// Objects of one bucket, or one version of each. The condition applies to each of them.
pub(crate) struct DeleteOp {
    pub(crate) bucket: String,
    /// The key of each, and the version; without one the object itself.
    pub(crate) deletions: Vec<(Vec<u8>, Option<VersionId>)>,
    pub(crate) condition: Option<Condition>,
}

/// An upload that becomes an object.
pub(crate) struct CompleteOp {
    pub(crate) object_key: Vec<u8>,
    pub(crate) upload: UploadId,
    /// Ascending numbers, and the files that the caller has seen.
    pub(crate) parts: Vec<(u16, FileId)>,
    pub(crate) meta: ObjectMeta,
    pub(crate) condition: Option<Condition>,
    pub(crate) quota: Option<QuotaCheck>,
    /// The id of the manifest.
    pub(crate) id: FileId,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Whether a copy from another replica was wanted.
    pub(crate) is_taken: bool,
    /// The length of an object made of parts, in bytes.
    pub(crate) len: u64,
    /// The change of the bytes of objects and parts.
    pub(crate) bytes: BytesChange,
    /// The name of the new version; none without versions.
    pub(crate) version: Option<VersionId>,
    /// The result of each deletion, in order; none for a key without versions.
    pub(crate) removed: Vec<Option<Removed>>,
    /// Files and garbage to which no record refers any more. The caller removes them.
    pub(crate) freed: Vec<FileId>,
    pub(crate) garbage: Vec<Garbage>,
    pub(crate) marks: Vec<Mark>,
}

#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the operation may still take effect after a restart. Its file stays then,
    /// until the next opening finds out.
    pub(crate) in_doubt: bool,
}

impl Failure {
    /// Whether one of several keys may be the cause, so that the operation succeeds with the
    /// others.
    pub(crate) fn is_of_one_key(&self) -> bool {
        let is_of_one = matches!(
            self.error,
            Error::Busy
                | Error::Unsettled
                | Error::NoSuchVersion
                | Error::TooManyVersions
                | Error::Corrupt(_)
        );
        is_of_one && !self.in_doubt
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            in_doubt: false,
        }
    }
}

pub(crate) type OpResult = Result<Outcome, Failure>;

/// The epochs in which an operation counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Always,
    /// In this epoch only.
    In(u64),
    /// Up to this epoch.
    Until(u64),
}

impl When {
    pub(super) fn counts(self, epoch: u64) -> bool {
        match self {
            Self::Always => true,
            Self::In(wanted) => wanted == epoch,
            Self::Until(said) => epoch <= said,
        }
    }
}

/// The stamp that a change has on all replicas, and how all of them treat its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) stamp: Stamp,
    pub(crate) versioning: Versioning,
}

pub(crate) struct Queued {
    pub(crate) op: Op,
    pub(crate) given: Option<Given>,
    pub(crate) when: When,
}

/// The keys that an operation reads and changes.
enum Keys<'a> {
    /// Too many keys to name: the operation has a batch of its own.
    Alone,
    Object(Cow<'a, [u8]>),
    /// Different ones.
    Objects(Vec<Cow<'a, [u8]>>),
    /// A part of an upload of this object.
    Part(Cow<'a, [u8]>, UploadId, u16),
}

impl<'a> Keys<'a> {
    fn one(object_key: impl Into<Cow<'a, [u8]>>, part: Option<(UploadId, u16)>) -> Self {
        match part {
            Some((id, number)) => Self::Part(object_key.into(), id, number),
            None => Self::Object(object_key.into()),
        }
    }

    fn of_scope(scope: &Scope) -> Self {
        Self::one(scope.object_key(), scope.part())
    }

    fn of_scopes<'s>(scopes: impl Iterator<Item = &'s Scope>) -> Self {
        let mut keys: Vec<_> = scopes.map(|scope| Cow::from(scope.object_key())).collect();
        keys.sort_unstable();
        keys.dedup();
        Self::Objects(keys)
    }
}

impl Op {
    /// The directories that must be durable before this operation.
    pub(super) fn shards(&self) -> Vec<u16> {
        match self {
            Self::Put(PutOp {
                id,
                bytes: PutBytes::File(_),
                ..
            })
            | Self::Prepare(_, Some((PutBytes::File(_), id))) => vec![id.shard()],
            Self::TakeIn(op) => op.taken.files().into_iter().map(FileId::shard).collect(),
            _ => Vec::new(),
        }
    }

    fn keys(&self) -> Keys<'_> {
        match self {
            Self::Put(put) => Keys::one(&put.object_key, put.part),
            Self::Delete(DeleteOp { deletions, .. }) => {
                Keys::Objects(deletions.iter().map(|(key, _)| key.into()).collect())
            }
            Self::Change { object_key, .. }
            | Self::CreateUpload { object_key, .. }
            | Self::Abort { object_key, .. } => Keys::one(object_key, None),
            Self::Settle(items) => match items.as_slice() {
                [(scope, ..)] => Keys::of_scope(scope),
                _ => Keys::of_scopes(items.iter().map(|(scope, ..)| scope)),
            },
            Self::Prepare(prepare, _) => match prepare.changes.as_slice() {
                [one] if matches!(one.change, Change::Complete { .. }) => Keys::Alone,
                [one] => Keys::of_scope(&one.scope),
                changes => Keys::of_scopes(changes.iter().map(|change| &change.scope)),
            },
            Self::Discard(discard) => Keys::of_scopes(discard.scopes.iter()),
            Self::TakeIn(op) => match &op.taken {
                Taken::Scope(fetched) if fetched.manifest.is_none() => Keys::of_scope(&op.scope),
                Taken::Upload(..) => Keys::of_scope(&op.scope),
                Taken::Scope(_) | Taken::Versions(_) => Keys::Alone,
            },
            Self::SetBucket { .. }
            | Self::ForgetBucket { .. }
            | Self::Complete(_)
            | Self::Forget(_)
            | Self::Adopt(..)
            | Self::Note(_)
            | Self::Renew(_)
            | Self::Collect(_) => Keys::Alone,
        }
    }
}

impl Taken {
    pub(super) fn files(&self) -> Vec<FileId> {
        match self {
            Self::Scope(fetched) => fetched.files().collect(),
            Self::Upload(..) => Vec::new(),
            Self::Versions(versions) => {
                let fetched = versions.iter().filter_map(|(_, fetched)| fetched.as_ref());
                fetched.flat_map(Fetched::files).collect()
            }
        }
    }
}

impl Fetched {
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> {
        let files = self.bytes.iter();
        files.filter_map(|(id, bytes)| matches!(bytes, PutBytes::File(_)).then_some(*id))
    }
}

/// The length of the longest head of the queue whose operations are independent, so that
/// each can be checked against the state before the batch. It has a key at most once, or
/// several of its parts.
pub(super) fn independent(queued: &mut dyn Iterator<Item = &Op>) -> usize {
    let mut objects: HashSet<Cow<'_, [u8]>> = HashSet::new();
    let mut with_parts = HashSet::new();
    let mut parts = HashSet::new();
    let mut count = 0;
    for op in queued.take(GROUP_MAX) {
        let mut is_free = |key| !with_parts.contains(&key) && objects.insert(key);
        let free = match op.keys() {
            Keys::Alone => false,
            Keys::Object(key) => is_free(key),
            Keys::Objects(keys) => keys.into_iter().all(is_free),
            Keys::Part(key, upload, number) => {
                let free = !objects.contains(&key) && parts.insert((upload, number));
                with_parts.insert(key);
                free
            }
        };
        if !free {
            break;
        }
        count += 1;
    }
    // At least one. If that needs a batch of its own, no other was counted.
    count.max(1)
}

#[cfg(test)]
mod op_tests;
