//! What can be committed, and what may be committed together.

use std::collections::HashSet;

use prism_replica::{Bucket, Pending, Refusal, Stamp, Standing};

use super::taken::{TakeInOp, TakeVersionsOp, Taken, files_of};
use crate::{
    blocks::crc32c,
    error::Error,
    layout::FileId,
    record::{Payload, Record},
    replica::{Change as Prepared, Prepare, Scope as Changed},
    types::ObjectMeta,
    uploads::{Garbage, UploadId, UploadRecord},
    usage,
    versions::{Removed, VersionId},
};

/// Most operations in one batch: with the largest inline objects and metadata
/// a batch stays below 20 MiB, typically far below 1 MiB.
const GROUP_MAX: usize = 256;

/// Whether a write may go on, given the metadata of the object that its key
/// holds at the moment of the commit.
pub type Condition = Box<dyn Fn(Option<&ObjectMeta>) -> bool + Send>;

/// A change of an object's metadata.
pub(crate) type Change = Box<dyn FnOnce(&mut ObjectMeta) + Send>;

/// Something to be committed.
pub(crate) enum Op {
    Put(PutOp),
    Delete(DeleteOp),
    /// Changes metadata, never bytes.
    Change {
        bucket: String,
        object_key: Vec<u8>,
        /// The current one if none.
        version: Option<VersionId>,
        change: Change,
    },
    SetBucket(SetBucketOp),
    /// Deletes the record of a bucket that is gone.
    ForgetBucket {
        name: String,
        stamp: Stamp,
    },
    CreateUpload(CreateOp),
    PutPart(PartOp),
    Complete(CompleteOp),
    Abort {
        object_key: Vec<u8>,
        upload_key: Vec<u8>,
        id: UploadId,
    },
    Collect(Garbage),
    /// Changes that another node is the primary of.
    Prepare(PrepareOp),
    /// What became of such.
    Settle(SettleOp),
    /// Deletions that need not be remembered, by their objects' keys.
    Forget(Vec<(Vec<u8>, Stamp)>),
    /// Nothing of an earlier epoch counts from here on. With what is noted of it.
    Adopt(u64, Option<Vec<u8>>),
    /// What another replica has.
    TakeIn(TakeInOp),
    /// The versions that another replica has of a key.
    TakeVersions(TakeVersionsOp),
    /// What nobody else has, or what is not this node's.
    Discard(DiscardOp),
}

/// A bucket's record to be acted by.
pub(crate) struct SetBucketOp {
    pub(crate) name: String,
    pub(crate) record: Bucket,
    pub(crate) by: SetBy,
}

/// The condition on which a record is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetBy {
    /// The present record has this stamp, or there is none.
    Change(Option<Stamp>),
    /// The record was agreed elsewhere: it has to be the later one.
    Agreed,
    /// The record stays the same, except that this life is over.
    Over,
}

/// An upload to be begun.
pub(crate) struct CreateOp {
    pub(crate) bucket: String,
    pub(crate) object_key: Vec<u8>,
    pub(crate) upload_key: Vec<u8>,
    /// The commit gives it its stamp.
    pub(crate) record: UploadRecord,
}

/// Changes to be prepared, whose bytes are in place or at hand.
pub(crate) struct PrepareOp {
    pub(crate) prepare: Prepare,
    /// Of all changes.
    object_keys: Vec<Vec<u8>>,
    pub(crate) bytes: Option<(PutBytes, FileId)>,
}

/// What became of prepared changes.
pub(crate) struct SettleOp {
    pub(crate) items: Vec<(Changed, Stamp, Standing)>,
    object_keys: Vec<Vec<u8>>,
}

/// Scopes that are to go.
pub(crate) struct DiscardOp {
    pub(crate) scopes: Vec<Changed>,
    object_keys: Vec<Vec<u8>>,
    /// Only what is from before this epoch; all that there is if none.
    pub(crate) since: Option<u64>,
    /// Only what a bucket that is gone has left: it may have another life by now.
    pub(crate) of_gone: bool,
}

impl DiscardOp {
    pub(crate) fn new(scopes: Vec<Changed>, since: Option<u64>) -> Self {
        Self {
            object_keys: object_keys(scopes.iter()),
            scopes,
            since,
            of_gone: false,
        }
    }

    pub(crate) fn of_gone(scopes: Vec<Changed>) -> Self {
        Self {
            of_gone: true,
            ..Self::new(scopes, None)
        }
    }
}

impl PrepareOp {
    pub(crate) fn new(prepare: Prepare, bytes: Option<(PutBytes, FileId)>) -> Self {
        let object_keys = object_keys(prepare.changes.iter().map(|change| &change.scope));
        Self {
            prepare,
            object_keys,
            bytes,
        }
    }
}

impl SettleOp {
    pub(crate) fn new(items: Vec<(Changed, Stamp, Standing)>) -> Self {
        let object_keys = object_keys(items.iter().map(|(scope, ..)| scope));
        Self { items, object_keys }
    }
}

fn object_keys<'a>(scopes: impl Iterator<Item = &'a Changed>) -> Vec<Vec<u8>> {
    let mut keys: Vec<_> = scopes.map(Changed::object_key).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// What is to be noted in memory once a batch is on the disk.
#[derive(Debug, Clone)]
pub(crate) enum Mark {
    Pending(Vec<u8>, Changed, Pending),
    Over(Vec<u8>),
    Adopted(u64),
    /// Whether there is a bucket of this name that is not about to be deleted.
    Bucket(String, bool),
}

/// An object whose bytes are in place (file) or at hand (inline).
pub(crate) struct PutOp {
    pub(crate) bucket: String,
    pub(crate) object_key: Vec<u8>,
    /// The commit gives it its stamp.
    pub(crate) record: Record,
    pub(crate) id: FileId,
    pub(crate) bytes: PutBytes,
    pub(crate) condition: Option<Condition>,
}

pub(crate) enum PutBytes {
    /// The object itself.
    Inline(Vec<u8>),
    /// Encoded [`FileRecord`](crate::record::FileRecord).
    File(Vec<u8>),
}

impl PutBytes {
    /// The payload of a record for these bytes, which are stored as `id`.
    pub(crate) fn payload(&self, id: FileId) -> Payload {
        match self {
            Self::Inline(bytes) => {
                let crc = crc32c(bytes);
                Payload::Inline { id, crc }
            }
            Self::File(_) => Payload::File { id },
        }
    }
}

/// Objects of one bucket, or versions, one of each. A condition counts for each
/// of them.
pub(crate) struct DeleteOp {
    pub(crate) bucket: String,
    pub(crate) object_keys: Vec<Vec<u8>>,
    /// Which version of each; the object itself where none is named, or where
    /// this is shorter.
    pub(crate) versions: Vec<Option<VersionId>>,
    pub(crate) condition: Option<Condition>,
}

/// A part whose file is in place.
pub(crate) struct PartOp {
    pub(crate) object_key: Vec<u8>,
    pub(crate) upload_key: Vec<u8>,
    pub(crate) upload: UploadId,
    pub(crate) number: u16,
    /// The commit gives it its stamp.
    pub(crate) record: Record,
    pub(crate) id: FileId,
    /// Encoded [`FileRecord`](crate::record::FileRecord).
    pub(crate) file_record: Vec<u8>,
}

/// An upload to be made an object.
pub(crate) struct CompleteOp {
    pub(crate) bucket: String,
    pub(crate) object_key: Vec<u8>,
    pub(crate) upload_key: Vec<u8>,
    pub(crate) upload: UploadId,
    /// Numbers and files, ascending: what the caller has seen of the parts.
    pub(crate) parts: Vec<(u16, FileId)>,
    pub(crate) meta: ObjectMeta,
    pub(crate) condition: Option<Condition>,
    /// Of the manifest.
    pub(crate) id: FileId,
}

/// What an operation found and left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// Objects that were replaced or deleted.
    pub(crate) found: usize,
    /// Bytes of the object that was made of parts.
    pub(crate) len: u64,
    /// Of the change; none where nothing was stamped.
    pub(crate) stamp: Stamp,
    /// Bytes of objects and parts.
    pub(crate) bytes: usage::Change,
    /// Of the object that was made; none where no versions are kept.
    pub(crate) version: Option<VersionId>,
    /// What was done about each of the keys to be deleted; nothing is said where
    /// no versions are kept.
    pub(crate) removed: Vec<Option<Removed>>,
    /// What the caller has to see to.
    pub(crate) freed: Vec<Freed>,
    /// A change was not prepared, and nothing was changed.
    pub(crate) refusal: Option<Refusal>,
    pub(crate) marks: Vec<Mark>,
}

/// What nothing refers to any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Freed {
    /// To be removed.
    File(FileId),
    /// To be collected.
    Garbage(Garbage),
}

/// An operation that was not answered with success.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the operation may still turn up after a restart: its file must
    /// then stay, for the next opening to judge.
    pub(crate) in_doubt: bool,
}

impl Failure {
    /// Whether an operation on several keys may have failed because of one of them, and
    /// succeeds with the others.
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

impl Outcome {
    /// One object is gone, and with it what its payload was.
    pub(super) fn lost(&mut self, payload: Payload) {
        self.found += 1;
        match payload {
            Payload::Inline { .. } | Payload::Marker => {}
            Payload::File { id } => self.freed.push(Freed::File(id)),
            Payload::Parts { id } => self.freed.push(Freed::Garbage(Garbage::Manifest(id))),
        }
    }
}

/// What an operation reads and changes.
enum Scope<'a> {
    /// More than can be said, or so much that it had better be alone.
    Alone,
    Objects(&'a [Vec<u8>]),
    Object(&'a [u8]),
    /// A part of an upload of this object.
    Part(&'a [u8], UploadId, u16),
}

impl Op {
    /// The directories that must be durable before this operation is.
    pub(super) fn shards(&self) -> Vec<u16> {
        match self {
            Self::Put(PutOp {
                id,
                bytes: PutBytes::File(_),
                ..
            }) => vec![id.shard()],
            Self::PutPart(part) => vec![part.id.shard()],
            Self::Prepare(PrepareOp {
                bytes: Some((PutBytes::File(_), id)),
                ..
            }) => vec![id.shard()],
            Self::TakeIn(op) => files_of(&op.taken).map(FileId::shard).collect(),
            Self::TakeVersions(op) => op.taken().flat_map(files_of).map(FileId::shard).collect(),
            _ => Vec::new(),
        }
    }

    /// Whether other replicas have to make this change as well.
    pub(crate) fn is_replicated(&self) -> bool {
        matches!(
            self,
            Self::Put(_)
                | Self::Delete(_)
                | Self::Change { .. }
                | Self::CreateUpload(_)
                | Self::PutPart(_)
                | Self::Complete(_)
                | Self::Abort { .. }
        )
    }

    fn scope(&self) -> Scope<'_> {
        match self {
            Self::Put(put) => Scope::Object(&put.object_key),
            Self::Delete(delete) => Scope::Objects(&delete.object_keys),
            Self::Change { object_key, .. }
            | Self::CreateUpload(CreateOp { object_key, .. })
            | Self::Abort { object_key, .. } => Scope::Object(object_key),
            Self::Settle(settle) => match settle.items.as_slice() {
                [(scope, ..)] => of(scope, &settle.object_keys),
                _ => Scope::Objects(&settle.object_keys),
            },
            Self::Prepare(op) => match op.prepare.changes.as_slice() {
                [one] if matches!(one.change, Prepared::Complete { .. }) => Scope::Alone,
                [one] => of(&one.scope, &op.object_keys),
                _ => Scope::Objects(&op.object_keys),
            },
            Self::PutPart(part) => Scope::Part(&part.object_key, part.upload, part.number),
            Self::Discard(discard) => Scope::Objects(&discard.object_keys),
            Self::TakeIn(op) => match (&op.taken, op.scope.upload) {
                (Taken::Parts(..), _) => Scope::Alone,
                (_, Some((id, Some(number)))) => Scope::Part(&op.object_key, id, number),
                _ => Scope::Object(&op.object_key),
            },
            Self::SetBucket(_)
            | Self::ForgetBucket { .. }
            | Self::Complete(_)
            | Self::TakeVersions(_)
            | Self::Forget(_)
            | Self::Adopt(..)
            | Self::Collect(_) => Scope::Alone,
        }
    }
}

fn of<'a>(scope: &Changed, object_keys: &'a [Vec<u8>]) -> Scope<'a> {
    match (scope.upload, object_keys) {
        (Some((id, Some(number))), [object_key]) => Scope::Part(object_key, id, number),
        _ => Scope::Objects(object_keys),
    }
}

/// The length of the longest head of the queue whose operations do not depend on
/// each other: a key at most once, or several of its parts, and an operation on
/// a bucket alone. Each may then be judged by the state before the batch.
pub(super) fn independent(queued: &mut dyn Iterator<Item = &Op>) -> usize {
    let mut objects: HashSet<&[u8]> = HashSet::new();
    let mut with_parts: HashSet<&[u8]> = HashSet::new();
    let mut parts = HashSet::new();
    let mut count = 0;
    for op in queued.take(GROUP_MAX) {
        let free = match op.scope() {
            Scope::Alone => false,
            Scope::Object(key) => !with_parts.contains(key) && objects.insert(key),
            Scope::Objects(keys) => keys
                .iter()
                .all(|key| !with_parts.contains(key.as_slice()) && objects.insert(key)),
            Scope::Part(key, upload, number) => {
                with_parts.insert(key);
                !objects.contains(key) && parts.insert((upload, number))
            }
        };
        if !free {
            break;
        }
        count += 1;
    }
    // At least one goes; if it is to be alone, no other was counted.
    count.max(1)
}

#[cfg(test)]
#[path = "op_tests.rs"]
mod tests;
