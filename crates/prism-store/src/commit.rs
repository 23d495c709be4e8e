//! The single point at which anything changes: conditions checked, one batch
//! written, one flush, for as many callers as happen to wait.
//!
//! There is no committing thread. The first caller to find nobody committing
//! leads: it takes what has queued up, itself first, commits it as one batch
//! and wakes the others with their results. Whoever queued meanwhile is next,
//! led by the first of them. A lone caller pays no switch of threads, and eight
//! at once do not pay eight flushes. Nothing is visible to readers before it
//! is as durable as configured.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fjall::{OwnedWriteBatch, PersistMode};

use crate::{
    config::Durability,
    error::Error,
    files::Files,
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
    queue: Mutex<Queue>,
    operations: AtomicU64,
    batches: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Op, Arc<Slot>)>,
    /// Somebody leads, and will see to whatever is queued.
    led: bool,
}

/// Where a caller waits.
#[derive(Default)]
struct Slot {
    turn: Mutex<Option<Turn>>,
    wake: Condvar,
}

enum Turn {
    Lead,
    Done(OpResult),
}

impl Committer {
    pub(crate) fn new(lsm: Arc<Lsm>, files: Arc<Files>, durability: Durability) -> Self {
        Self {
            lsm,
            files,
            durability,
            queue: Mutex::default(),
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
        let slot = Arc::new(Slot::default());
        let lead = {
            let mut queue = locked(&self.queue);
            queue.waiting.push_back((op, Arc::clone(&slot)));
            !std::mem::replace(&mut queue.led, true)
        };
        if !lead && let Turn::Done(result) = slot.wait() {
            return result;
        }
        // The queue's first is our own: when nobody led it was empty, and
        // leadership is passed to the first.
        self.lead();
        match slot.wait() {
            Turn::Done(result) => result,
            Turn::Lead => Err(abandoned()),
        }
    }

    fn lead(&self) {
        let mut leadership = Leadership {
            committer: self,
            slots: Vec::new(),
        };
        let group = take_group(&mut locked(&self.queue).waiting);
        let mut ops = Vec::with_capacity(group.len());
        for (op, slot) in group {
            ops.push(op);
            leadership.slots.push(slot);
        }
        let results = self.commit(ops);
        for (slot, result) in leadership.slots.drain(..).zip(results) {
            slot.give(Turn::Done(result));
        }
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

/// The longest head of the queue whose operations do not depend on each other:
/// a key at most once, and an operation on a bucket alone. Each may then be
/// judged by the state before the batch.
fn take_group(waiting: &mut VecDeque<(Op, Arc<Slot>)>) -> Vec<(Op, Arc<Slot>)> {
    let mut keys = HashSet::new();
    let mut len = 0;
    for (op, _) in waiting.iter().take(GROUP_MAX) {
        match op.object_key() {
            Some(key) if keys.insert(key) => len += 1,
            Some(_) => break,
            None => {
                len = len.max(1);
                break;
            }
        }
    }
    waiting.drain(..len).collect()
}

/// The duty to answer a group and to pass on the lead, however the leader
/// leaves, even by a panic in the tree.
struct Leadership<'a> {
    committer: &'a Committer,
    slots: Vec<Arc<Slot>>,
}

impl Drop for Leadership<'_> {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            slot.give(Turn::Done(Err(abandoned())));
        }
        let mut queue = locked(&self.committer.queue);
        match queue.waiting.front() {
            Some((_, slot)) => slot.give(Turn::Lead),
            None => queue.led = false,
        }
    }
}

impl Slot {
    fn wait(&self) -> Turn {
        let mut turn = locked(&self.turn);
        loop {
            match turn.take() {
                Some(turn) => return turn,
                None => turn = self.wake.wait(turn).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn give(&self, turn: Turn) {
        *locked(&self.turn) = Some(turn);
        self.wake.notify_one();
    }
}

fn abandoned() -> Failure {
    Failure {
        error: Error::WritesDisabled,
        in_doubt: true,
    }
}

/// No lock here guards anything a panic could leave half-changed.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
