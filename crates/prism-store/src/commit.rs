//! The single point at which anything changes: conditions checked, one batch
//! written, one flush, for as many callers as happen to wait.
//!
//! Eight callers at once do not pay eight flushes (see `group`). Nothing is
//! visible to readers before it is as durable as configured.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use fjall::{OwnedWriteBatch, PersistMode};

use crate::{
    config::Durability,
    error::Error,
    files::Files,
    group::Group,
    layout::FileId,
    lsm::{Lsm, View},
    record::{Payload, bucket_prefix},
    store::BUCKETS_MAX,
};

/// Most operations in one batch: with the largest inline objects and metadata
/// a batch stays below 20 MiB, typically far below 1 MiB.
const GROUP_MAX: usize = 256;

/// Something to be committed.
pub(crate) enum Op {
    Put(PutOp),
    Delete { bucket: String, object_key: Vec<u8> },
    CreateBucket { name: String, created_ms: u64 },
    DeleteBucket { name: String },
}

/// An object whose bytes are in place (file) or at hand (inline).
pub(crate) struct PutOp {
    pub(crate) bucket: String,
    pub(crate) object_key: Vec<u8>,
    /// Encoded [`Record`](crate::record::Record).
    pub(crate) record: Vec<u8>,
    pub(crate) id: FileId,
    pub(crate) bytes: PutBytes,
}

pub(crate) enum PutBytes {
    /// The object itself.
    Inline(Vec<u8>),
    /// Encoded [`FileRecord`](crate::record::FileRecord).
    File(Vec<u8>),
}

/// What an operation found. The caller removes a replaced file.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Outcome {
    pub(crate) replaced: Option<Payload>,
}

/// An operation that was not answered with success.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the operation may still turn up after a restart: its file must
    /// then stay, for the next opening to judge.
    pub(crate) in_doubt: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            error,
            in_doubt: false,
        }
    }
}

type OpResult = Result<Outcome, Failure>;

/// How many commits shared how many flushes, since the store was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitStats {
    /// Operations committed or refused.
    pub operations: u64,
    /// Batches they were committed in; each costs one flush of the journal.
    pub batches: u64,
}

/// The queue of operations.
pub(crate) struct Committer {
    lsm: Arc<Lsm>,
    files: Arc<Files>,
    durability: Durability,
    group: Group<Op, OpResult>,
    operations: AtomicU64,
    batches: AtomicU64,
}

impl Committer {
    pub(crate) fn new(lsm: Arc<Lsm>, files: Arc<Files>, durability: Durability) -> Self {
        Self {
            lsm,
            files,
            durability,
            group: Group::new(),
            operations: AtomicU64::new(0),
            batches: AtomicU64::new(0),
        }
    }

    pub(crate) fn stats(&self) -> CommitStats {
        CommitStats {
            operations: self.operations.load(Ordering::Relaxed),
            batches: self.batches.load(Ordering::Relaxed),
        }
    }

    /// Commits `op`, together with whatever else is waiting. Blocks on disk.
    pub(crate) fn submit(&self, op: Op) -> OpResult {
        self.group
            .submit(op, independent, |ops| self.commit(ops))
            .unwrap_or(Err(Failure {
                error: Error::WritesDisabled,
                in_doubt: true,
            }))
    }

    /// One result per operation, in order.
    fn commit(&self, ops: Vec<Op>) -> Vec<OpResult> {
        self.operations
            .fetch_add(ops.len() as u64, Ordering::Relaxed);
        let mut shards = BTreeSet::new();
        let mut batch = self.lsm.batch();
        let view = self.lsm.view();
        let mut results: Vec<OpResult> = ops
            .into_iter()
            .map(|op| {
                let shard = op.shard();
                let outcome = self.stage(&view, &mut batch, op)?;
                shards.extend(shard);
                Ok(outcome)
            })
            .collect();
        if let Err(failure) = self.write(&shards, batch) {
            for result in results.iter_mut().filter(|result| result.is_ok()) {
                *result = Err(failure.clone());
            }
        }
        results
    }

    fn write(&self, shards: &BTreeSet<u16>, batch: OwnedWriteBatch) -> Result<(), Failure> {
        if batch.is_empty() {
            return Ok(());
        }
        let mode = match self.durability {
            Durability::Fsync => {
                for shard in shards {
                    self.files.sync_shard(*shard)?;
                }
                PersistMode::SyncData
            }
            Durability::None => PersistMode::Buffer,
        };
        self.lsm.wait_for_room()?;
        self.batches.fetch_add(1, Ordering::Relaxed);
        // The tree's journal is flushed before its memory changes, so that no
        // reader sees what a power cut could take back.
        batch
            .durability(Some(mode))
            .commit()
            .map_err(|error| Failure {
                error: error.into(),
                in_doubt: true,
            })
    }

    /// Checks one operation's conditions and adds its changes to the batch. On
    /// error the batch is as before.
    fn stage(&self, view: &View<'_>, batch: &mut OwnedWriteBatch, op: Op) -> OpResult {
        match op {
            Op::Put(put) => self.stage_put(view, batch, put),
            Op::Delete { bucket, object_key } => {
                let replaced = view.object(&object_key)?.map(|record| record.payload);
                if replaced.is_none() && view.bucket(&bucket)?.is_none() {
                    return Err(Error::NoSuchBucket.into());
                }
                if let Some(payload) = replaced {
                    batch.remove(&self.lsm.objects, object_key);
                    self.stage_removal(batch, payload);
                }
                Ok(Outcome { replaced })
            }
            Op::CreateBucket { name, created_ms } => {
                if view.bucket(&name)?.is_some() {
                    return Err(Error::AlreadyExists.into());
                }
                if view.buckets(BUCKETS_MAX)?.len() == BUCKETS_MAX {
                    return Err(Error::TooManyBuckets.into());
                }
                batch.insert(&self.lsm.buckets, name, created_ms.to_be_bytes());
                Ok(Outcome::default())
            }
            Op::DeleteBucket { name } => {
                if view.bucket(&name)?.is_none() {
                    return Err(Error::NoSuchBucket.into());
                }
                if view.any_object(&bucket_prefix(&name))? {
                    return Err(Error::NotEmpty.into());
                }
                batch.remove(&self.lsm.buckets, name);
                Ok(Outcome::default())
            }
        }
    }

    fn stage_put(&self, view: &View<'_>, batch: &mut OwnedWriteBatch, put: PutOp) -> OpResult {
        if view.bucket(&put.bucket)?.is_none() {
            return Err(Error::NoSuchBucket.into());
        }
        let replaced = view.object(&put.object_key)?.map(|record| record.payload);
        if let Some(payload) = replaced {
            self.stage_removal(batch, payload);
        }
        match put.bytes {
            PutBytes::Inline(bytes) => batch.insert(&self.lsm.inline, put.id.to_bytes(), bytes),
            PutBytes::File(record) => batch.insert(&self.lsm.files, put.id.to_bytes(), record),
        }
        batch.insert(&self.lsm.objects, put.object_key, put.record);
        Ok(Outcome { replaced })
    }

    fn stage_removal(&self, batch: &mut OwnedWriteBatch, payload: Payload) {
        match payload {
            Payload::Inline { id, .. } => batch.remove(&self.lsm.inline, id.to_bytes()),
            Payload::File { id } => batch.remove(&self.lsm.files, id.to_bytes()),
        }
    }
}

impl Op {
    /// The directory that must be durable before this operation is.
    fn shard(&self) -> Option<u16> {
        match self {
            Self::Put(PutOp {
                id,
                bytes: PutBytes::File(_),
                ..
            }) => Some(id.shard()),
            _ => None,
        }
    }

    /// The object concerned; `None` if a whole bucket is.
    fn object_key(&self) -> Option<&[u8]> {
        match self {
            Self::Put(put) => Some(&put.object_key),
            Self::Delete { object_key, .. } => Some(object_key),
            Self::CreateBucket { .. } | Self::DeleteBucket { .. } => None,
        }
    }
}

/// The length of the longest head of the queue whose operations do not depend on
/// each other: a key at most once, and an operation on a bucket alone. Each may
/// then be judged by the state before the batch.
fn independent(queued: &mut dyn Iterator<Item = &Op>) -> usize {
    let mut keys = HashSet::new();
    for op in queued.take(GROUP_MAX) {
        match op.object_key() {
            Some(key) if keys.insert(key) => {}
            _ => break,
        }
    }
    // At least one goes; if it is on a bucket, no other was counted.
    keys.len().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delete(key: &str) -> Op {
        Op::Delete {
            bucket: "b".into(),
            object_key: key.into(),
        }
    }

    fn bucket() -> Op {
        Op::DeleteBucket { name: "b".into() }
    }

    #[test]
    fn a_group_ends_before_a_key_repeats_or_a_bucket_is_concerned() {
        let len = |ops: &[Op]| independent(&mut ops.iter());
        assert_eq!(
            len(&[delete("1"), delete("2"), delete("1"), delete("3")]),
            2
        );
        assert_eq!(len(&[delete("1"), bucket(), delete("2")]), 1);
        assert_eq!(len(&[bucket(), delete("1")]), 1);
        assert_eq!(len(&[bucket(), bucket()]), 1);
        let many: Vec<Op> = (0..1000).map(|k| delete(&k.to_string())).collect();
        assert_eq!(len(&many), GROUP_MAX);
    }
}
