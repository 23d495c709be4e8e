//! An object, or a part of one, while it is written: in memory while it is small, then in a
//! file without a name. No reader sees it before its commit. Parts are files from the start.

use std::{fs::File, io::Write, sync::Arc};

use crate::{
    blocks::BlockCrcs,
    commit::{Condition, Op, Outcome, PutOp, QuotaCheck},
    config::{Durability, INLINE_MAX},
    error::Error,
    keys::checked_key,
    layout::FileId,
    primary::Primary,
    record::{FileRecord, PutBytes, Record},
    scope::Prepare,
    storage::Storage,
    store::Store,
    types::{Committed, ObjectMeta, UploadId},
    write_behind::WriteBehind,
};

/// Bytes written between two checks of the room on the file system.
const ROOM_CHECK_INTERVAL: u64 = 4 * 1024 * 1024;

/// An object being written, made by [`Store::begin_put`](crate::Store::begin_put),
/// or a part of one, by [`Uploads::begin_part`](crate::Uploads::begin_part).
///
/// Dropped without a commit, or killed with its process, it leaves no trace. It has at most
/// [`INLINE_MAX`] bytes of the object in memory, and 4 bytes for each MiB of it.
#[must_use = "an object that is not committed is discarded"]
pub struct PutWriter {
    store: Arc<Primary>,
    target: Target,
    object_key: Vec<u8>,
    expected: Option<u64>,
    written: u64,
    /// Bytes of the quota that the replaced object gives back.
    replaces: u64,
    /// Value of `written` at which the room is checked next.
    next_room_check: u64,
    sink: Sink,
}

/// The purpose of the bytes.
pub(crate) enum Target {
    Object,
    /// A part of an upload, by its number.
    Part(UploadId, u16),
    /// A change of another primary.
    Prepare(Prepare),
    /// A piece of a copy, which the caller refers to. It may go to a file although it is short.
    Piece {
        in_file: bool,
    },
}

enum Sink {
    Memory(Vec<u8>),
    File {
        file: File,
        crcs: Box<BlockCrcs>,
        behind: WriteBehind,
    },
    /// A write failed, and an unknown part of it is in the file.
    Failed(Error),
}

impl Sink {
    /// The bytes to commit, and their file.
    fn into_bytes(self, len: u64, object_key: Vec<u8>) -> Result<(PutBytes, Option<File>), Error> {
        match self {
            Self::Failed(error) => Err(error),
            Self::Memory(bytes) => Ok((PutBytes::Inline(bytes), None)),
            Self::File { file, crcs, .. } => {
                let crcs = crcs.finish();
                let record = FileRecord {
                    len,
                    object_key,
                    crcs,
                };
                Ok((PutBytes::File(record.encode()), Some(file)))
            }
        }
    }
}

impl Store {
    /// Begins to write an object of `expected_len` bytes, or of any length if that is `None`.
    /// Reads the tree, as [`Store::head`] does. The first bytes that need a file make it.
    ///
    /// # Errors
    /// [`Error::NoSpace`] or [`Error::TooLarge`] if the announced length does not fit;
    /// [`Error::NoSuchBucket`].
    pub fn begin_put(
        &self,
        bucket: &str,
        key: &str,
        expected_len: Option<u64>,
    ) -> Result<PutWriter, Error> {
        let object_key = checked_key(bucket, key)?;
        self.existing_bucket(bucket)?;
        PutWriter::new(&self.primary, Target::Object, object_key, expected_len)
    }
}

impl PutWriter {
    /// The announced bytes that are still to come.
    pub(crate) fn left(&self) -> u64 {
        self.expected.unwrap_or(0).saturating_sub(self.written)
    }

    /// Gives a file its name. The commit that refers to the file makes the name durable;
    /// without a commit the caller removes the file.
    pub(crate) fn finish_piece(self) -> Result<(FileId, PutBytes), Error> {
        self.check_complete()?;
        let id = self.store.storage.files.new_id()?;
        let (bytes, file) = self.sink.into_bytes(self.written, self.object_key)?;
        if let Some(file) = file {
            self.store.storage.files.publish(&file, id)?;
        }
        Ok((id, bytes))
    }

    /// The caller has checked the names, and the bucket or the upload.
    pub(crate) fn new(
        store: &Arc<Primary>,
        target: Target,
        object_key: Vec<u8>,
        expected: Option<u64>,
    ) -> Result<Self, Error> {
        let announced = expected.unwrap_or(0);
        if announced > store.config.max_object_len {
            return Err(Error::TooLarge);
        }
        if matches!(target, Target::Object | Target::Part(..)) {
            store.check_copies(&object_key)?;
        }
        let is_long = announced > INLINE_MAX as u64;
        let (is_part, in_file) = match &target {
            // The caller may not block, so the first bytes that need a file make it.
            Target::Object => (false, false),
            Target::Part(..) => (true, true),
            Target::Prepare(prepare) => {
                let is_part = prepare
                    .body()
                    .is_some_and(|(scope, _)| scope.upload.is_some());
                (is_part, is_part || is_long)
            }
            Target::Piece { in_file } => (false, *in_file || is_long),
        };
        let replaces = if is_part {
            0
        } else {
            replaceable(&store.storage, &object_key)?
        };
        store.storage.files.usage.check(announced, replaces)?;
        store.storage.files.check_room(announced)?;
        let mut writer = Self {
            store: Arc::clone(store),
            target,
            object_key,
            expected,
            written: 0,
            replaces,
            next_room_check: ROOM_CHECK_INTERVAL,
            sink: Sink::Memory(Vec::new()),
        };
        if in_file {
            writer.spill()?;
        }
        Ok(writer)
    }

    /// Appends `data`. Blocks on disk once the object exceeds [`INLINE_MAX`].
    /// After an error the object can only be dropped.
    pub fn write(&mut self, data: &[u8]) -> Result<(), Error> {
        let written = self.check_len(data.len() as u64)?;
        let appended = self.append(data, written);
        self.noted(appended)?;
        self.written = written;
        Ok(())
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Waits for a part of the bytes on their way to the disk, and returns whether there were
    /// any. After `false` the commit takes little time. Blocks on disk.
    ///
    /// # Errors
    /// As for [`PutWriter::write`].
    pub fn wait_for_disk(&mut self) -> Result<bool, Error> {
        let waited = match &mut self.sink {
            Sink::File { file, behind, .. } => behind.step(file),
            Sink::Memory(_) | Sink::Failed(_) => Ok(false),
        };
        self.noted(waited)
    }

    /// Makes the object visible under its key, or adds the part to its upload, as durably as
    /// configured. Replaces the object or part that is there. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`] if fewer bytes were written than announced;
    /// [`Error::NoSuchBucket`] or [`Error::NoSuchUpload`]; [`Error::Busy`] if the bucket is
    /// being deleted. After an error of the disk the object is not visible, but may become so
    /// when the store is opened again.
    pub fn commit(self, meta: ObjectMeta) -> Result<Committed, Error> {
        self.ready(meta, None)?.commit()
    }

    /// Whether [`Store::commit_all`] commits it together with others after `more` bytes: they
    /// stay in memory, and the store has no other replicas.
    #[must_use]
    pub fn goes_with_others(&self, more: u64) -> bool {
        let fits = self.written.saturating_add(more) <= INLINE_MAX as u64;
        fits && matches!(self.sink, Sink::Memory(_)) && self.store.replicas.get().is_none()
    }

    /// Prepares the change of another primary as durably as configured. It takes effect when
    /// that says that it is committed. Blocks on disk.
    ///
    /// # Errors
    /// Errors of the disk; [`Error::Busy`] and [`Error::NoSuchBucket`];
    /// [`Error::Refused`] by the rules of replication.
    pub fn prepare(self) -> Result<(), Error> {
        self.check_complete()?;
        let Target::Prepare(prepare) = self.target else {
            return Err(Error::WritesDisabled);
        };
        let has_body = prepare.body().is_some();
        let id = self.store.storage.files.new_id()?;
        let (bytes, file) = self.sink.into_bytes(self.written, self.object_key)?;
        let op = Op::Prepare(prepare, has_body.then_some((bytes, id)));
        commit_op(&self.store, op, id, file.as_ref()).map(drop)
    }

    fn check_complete(&self) -> Result<(), Error> {
        match self.expected {
            Some(expected) if expected != self.written => Err(Error::LengthMismatch {
                expected,
                written: self.written,
            }),
            _ => Ok(()),
        }
    }

    /// The object, to be committed if the condition holds at that moment.
    ///
    /// # Errors
    /// [`Error::LengthMismatch`], [`Error::MetaTooLarge`].
    pub fn ready(self, meta: ObjectMeta, condition: Option<Condition>) -> Result<Commit, Error> {
        self.check_complete()?;
        let id = self.store.storage.files.new_id()?;
        let object_key = self.object_key;
        let (bytes, file) = self.sink.into_bytes(self.written, object_key.clone())?;
        let part = match self.target {
            Target::Object => None,
            Target::Part(upload, number) => Some((upload, number)),
            Target::Prepare(_) | Target::Piece { .. } => return Err(Error::WritesDisabled),
        };
        let record = Record::new(bytes.payload(id), self.written, meta);
        // Fails for too much metadata before the file has a name.
        record.encode()?;
        let op = Op::Put(PutOp {
            object_key,
            part,
            record,
            id,
            bytes,
            condition,
            quota: None,
        });
        Ok(Commit {
            store: self.store,
            op,
            id,
            file,
            len: self.written,
        })
    }

    /// The length after `more` bytes. Checks the announced length, the limit and the room.
    fn check_len(&mut self, more: u64) -> Result<u64, Error> {
        if let Sink::Failed(error) = &self.sink {
            return Err(error.clone());
        }
        let written = self.written.saturating_add(more);
        if let Some(expected) = self.expected.filter(|expected| written > *expected) {
            return Err(Error::LengthMismatch { expected, written });
        }
        if written > self.store.config.max_object_len {
            return Err(Error::TooLarge);
        }
        if written >= self.next_room_check {
            let files = &self.store.storage.files;
            files.usage.check(written, self.replaces)?;
            files.check_room(more)?;
            self.next_room_check = written + ROOM_CHECK_INTERVAL;
        }
        Ok(written)
    }

    /// Appends `data`, which ends at `written`, and sends it to the disk if it has to be there.
    fn append(&mut self, data: &[u8], written: u64) -> Result<(), Error> {
        if let Sink::Memory(bytes) = &mut self.sink {
            if bytes.len() + data.len() <= INLINE_MAX {
                bytes.extend_from_slice(data);
                return Ok(());
            }
            self.spill()?;
        }
        match &mut self.sink {
            Sink::File { file, crcs, behind } => {
                file.write_all(data)?;
                crcs.update(data);
                match self.store.config.durability {
                    Durability::Fsync => Ok(behind.advance(file, written)?),
                    Durability::None => Ok(()),
                }
            }
            Sink::Failed(error) => Err(error.clone()),
            Sink::Memory(_) => Err(Error::WritesDisabled),
        }
    }

    fn spill(&mut self) -> Result<(), Error> {
        if let Sink::Memory(bytes) = &self.sink {
            let mut file = self.store.storage.files.create()?;
            let mut crcs = Box::<BlockCrcs>::default();
            file.write_all(bytes)?;
            crcs.update(bytes);
            let behind = WriteBehind::default();
            self.sink = Sink::File { file, crcs, behind };
        }
        Ok(())
    }

    /// Notes a failure: an unknown part of the bytes is in the file.
    fn noted<T>(&mut self, result: Result<T, impl Into<Error>>) -> Result<T, Error> {
        let result = result.map_err(Into::into);
        result.inspect_err(|error| self.sink = Sink::Failed(error.clone()))
    }
}

/// An object, or a part, that is complete.
#[must_use = "an object that is not committed is discarded"]
pub struct Commit {
    store: Arc<Primary>,
    op: Op,
    id: FileId,
    file: Option<File>,
    len: u64,
}

impl Commit {
    /// The same, to be committed if it fits in the quota of its bucket at that moment.
    pub fn within(mut self, quota: QuotaCheck) -> Self {
        if let Op::Put(put) = &mut self.op {
            put.quota = Some(quota);
        }
        self
    }

    /// Commits it as [`PutWriter::commit`] does, if the condition holds. Blocks on disk.
    ///
    /// # Errors
    /// As for [`PutWriter::commit`]; [`Error::ConditionFailed`], [`Error::QuotaExceeded`].
    pub fn commit(self) -> Result<Committed, Error> {
        let outcome = commit_op(&self.store, self.op, self.id, self.file.as_ref())?;
        Ok(committed(&outcome, self.len))
    }
}

impl Store {
    /// Commits objects as [`Commit::commit`] does, with one flush of the disk if all of them
    /// [go with others](PutWriter::goes_with_others). The results come in their order. Blocks
    /// on disk.
    pub fn commit_all(&self, commits: Vec<Commit>) -> Vec<Result<Committed, Error>> {
        let store = &self.primary;
        if store.replicas.get().is_some() || commits.iter().any(|commit| commit.file.is_some()) {
            return commits.into_iter().map(Commit::commit).collect();
        }
        if let Err(error) = store.storage.files.check_room(0) {
            return commits.iter().map(|_| Err(error.clone())).collect();
        }
        let commits = commits.into_iter().map(|commit| (commit.op, commit.len));
        let (ops, lens): (Vec<_>, Vec<_>) = commits.unzip();
        let committer = &store.committer;
        let results = committer.submit_all(ops).into_iter().zip(lens);
        results
            .map(|(result, len)| Ok(committed(&committer.finish(result)?, len)))
            .collect()
    }
}

pub(crate) fn committed(outcome: &Outcome, len: u64) -> Committed {
    Committed {
        len,
        version: outcome.version,
    }
}

/// Commits, and removes what was replaced.
fn commit_op(store: &Primary, op: Op, id: FileId, file: Option<&File>) -> Result<Outcome, Error> {
    store.storage.files.check_room(0)?;
    store.commit(op, file.map(|file| (file, id)))
}

/// The bytes that the replacement of an object gives back to the quota; 0 without a quota. The
/// commit asks again.
fn replaceable(storage: &Storage, object_key: &[u8]) -> Result<u64, Error> {
    if !storage.files.usage.is_limited() {
        return Ok(0);
    }
    let current = storage.lsm.view().object(object_key)?;
    Ok(current.map_or(0, |record| record.len))
}
