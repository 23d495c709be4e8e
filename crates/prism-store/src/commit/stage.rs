//! One operation at a time: its conditions are checked against the state before the batch,
//! and its writes are added to the batch.

use prism_replica::{Phase, Stamp};

use super::{
    Committer, Given,
    op::{
        CompleteOp, Condition, CreateOp, DeleteOp, Freed, Op, OpResult, Outcome, PartOp, PutBytes,
        PutOp,
    },
    succession::{Base, How, effective_versioning},
};
use crate::{
    error::Error,
    layout::FileId,
    lsm::{Batch, Lsm},
    record::{Payload, Record},
    types::{BucketInfo, OBJECT_LEN_MAX},
    uploads::{Garbage, Manifest, ManifestPart, UploadId, part_key},
    usage::Change,
    versions::Versioning,
    view::View,
};

/// An operation while it is staged: what it reads, the batch that it writes to, and what
/// comes of it.
pub(super) struct Stage<'a> {
    pub(super) committer: &'a Committer,
    pub(super) lsm: &'a Lsm,
    pub(super) view: &'a View<'a>,
    pub(super) batch: &'a mut Batch,
    pub(super) outcome: Outcome,
}

impl<'a> Stage<'a> {
    /// Stages one operation. On error the batch is as before.
    pub(super) fn run(
        committer: &'a Committer,
        view: &'a View<'a>,
        batch: &'a mut Batch,
        op: Op,
        given: Option<Given>,
    ) -> OpResult {
        let before = batch.len();
        let mut stage = Self {
            committer,
            lsm: &committer.lsm,
            view,
            batch,
            outcome: Outcome::default(),
        };
        match stage.op(op, given) {
            Ok(()) => Ok(stage.outcome),
            Err(error) => {
                stage.batch.truncate(before);
                Err(error.into())
            }
        }
    }
}

impl Stage<'_> {
    fn op(&mut self, op: Op, given: Option<Given>) -> Result<(), Error> {
        let stamp = given.map(|given| given.stamp);
        match op {
            Op::Put(put) => self.put(put, given),
            Op::Delete(delete) => self.delete(&delete, given),
            Op::Change {
                bucket,
                object_key,
                version,
                change,
            } => {
                let info = existing(self.view, &bucket)?;
                let how = How::of_bucket(self.view, &info, given, &object_key)?;
                self.change_meta(how, &bucket, object_key, version, change)
            }
            Op::CreateUpload(create) => self.create_upload(create, stamp),
            Op::PutPart(part) => self.put_part(part, stamp),
            Op::Complete(complete) => self.complete(complete, given),
            Op::Prepare(prepare) => self.prepare(prepare),
            Op::Settle(settle) => self.settle(settle),
            Op::Forget(deletions) => self.forget(deletions),
            Op::Adopt(epoch, state) => {
                self.adopt(epoch, state);
                Ok(())
            }
            Op::TakeIn(take_in) => self.take_in(take_in),
            Op::TakeVersions(taken) => self.take_versions(taken),
            Op::Discard(discard) => self.discard(&discard),
            Op::Abort { upload_key, id, .. } => {
                self.view.upload(&upload_key)?.ok_or(Error::NoSuchUpload)?;
                self.batch.remove(&self.lsm.uploads, upload_key);
                self.discard_parts(id);
                Ok(())
            }
            Op::Collect(garbage) => self.collect(garbage),
            Op::SetBucket(set) => self.set_bucket(set),
            Op::ForgetBucket { name, stamp } => self.forget_bucket(name, stamp),
        }
    }

    fn put(&mut self, put: PutOp, given: Option<Given>) -> Result<(), Error> {
        let bucket = open_bucket(self.view, &put.bucket)?;
        let current = self.view.object(&put.object_key)?;
        check(put.condition.as_ref(), current.as_ref())?;
        let how = How::of_bucket(self.view, &bucket, given, &put.object_key)?;
        let base = Base::for_change(self.view, how, &put.object_key, current)?;
        let succession = self.succession(how, base)?;
        self.insert_bytes(put.id, put.bytes);
        self.admit(put.record.len, succession.lost())?;
        self.make_current(&put.object_key, put.record, succession)
    }

    fn delete(&mut self, delete: &DeleteOp, given: Option<Given>) -> Result<(), Error> {
        let bucket = existing(self.view, &delete.bucket)?;
        let versioning = given.map_or(bucket.versioning, |given| given.versioning);
        if is_of_versions(self.view, versioning, delete)? {
            return self.delete_versions(&bucket, given, delete);
        }
        let mut found = Vec::with_capacity(delete.object_keys.len());
        for object_key in &delete.object_keys {
            let current = self.view.object(object_key)?;
            check(delete.condition.as_ref(), current.as_ref())?;
            found.extend(current.map(|record| (object_key.as_slice(), record)));
        }
        for (object_key, record) in found {
            self.batch.remove(&self.lsm.objects, object_key);
            if let Some(Given { stamp, .. }) = given {
                let deletions = &self.lsm.deletions;
                self.batch.insert(deletions, object_key, stamp.to_bytes());
            }
            self.lose(Some(record));
        }
        Ok(())
    }

    fn put_part(&mut self, mut part: PartOp, stamp: Option<Stamp>) -> Result<(), Error> {
        let upload = self.view.upload(&part.upload_key)?;
        upload.ok_or(Error::NoSuchUpload)?;
        let replaced = self.view.part(part.upload, part.number)?;
        part.record.stamp = self.stamp(stamp, replaced.as_ref().map(|record| record.stamp));
        let record = part.record.encode()?;
        self.admit(part.record.len, replaced.as_slice())?;
        self.outcome.stamp = part.record.stamp;
        self.lose(replaced);
        let (id, key) = (part.id.to_bytes(), part_key(part.upload, part.number));
        self.batch.insert(&self.lsm.files, id, part.file_record);
        self.batch.insert(&self.lsm.parts, key, record);
        Ok(())
    }

    fn complete(&mut self, complete: CompleteOp, given: Option<Given>) -> Result<(), Error> {
        let upload = self.view.upload(&complete.upload_key)?;
        upload.ok_or(Error::NoSuchUpload)?;
        let bucket = open_bucket(self.view, &complete.bucket)?;
        let current = self.view.object(&complete.object_key)?;
        check(complete.condition.as_ref(), current.as_ref())?;
        let is_seen = |part: &Record, seen: &FileId| part.payload == Payload::File { id: *seen };
        let manifest = manifest_of(self.view, complete.upload, &complete.parts, is_seen)?;
        let len = manifest.parts.iter().map(|part| part.len).sum();
        if len > OBJECT_LEN_MAX {
            return Err(Error::TooLarge);
        }
        let how = How::of_bucket(self.view, &bucket, given, &complete.object_key)?;
        let base = Base::for_change(self.view, how, &complete.object_key, current)?;
        let succession = self.succession(how, base)?;
        let record = Record {
            stamp: Stamp::NONE,
            version: None,
            payload: Payload::Parts { id: complete.id },
            len,
            meta: complete.meta,
        };
        self.make_current(&complete.object_key, record, succession)?;
        self.end_upload(complete.upload_key, complete.id, &manifest)?;
        self.outcome.len = len;
        Ok(())
    }

    /// Stores the manifest of a completed upload. Parts that are not in it become garbage.
    pub(super) fn end_upload(
        &mut self,
        upload_key: Vec<u8>,
        id: FileId,
        manifest: &Manifest,
    ) -> Result<(), Error> {
        let encoded = manifest.encode()?;
        self.batch
            .insert(&self.lsm.manifests, id.to_bytes(), encoded);
        self.batch.remove(&self.lsm.uploads, upload_key);
        for part in &manifest.parts {
            let key = part_key(manifest.upload, part.number);
            self.batch.remove(&self.lsm.parts, key);
        }
        self.discard_parts(manifest.upload);
        Ok(())
    }

    fn create_upload(&mut self, mut create: CreateOp, stamp: Option<Stamp>) -> Result<(), Error> {
        open_bucket(self.view, &create.bucket)?;
        create.record.stamp = self.stamp(stamp, None);
        let value = create.record.encode()?;
        self.batch
            .insert(&self.lsm.uploads, create.upload_key, value);
        Ok(())
    }

    fn forget(&mut self, deletions: Vec<(Vec<u8>, Stamp)>) -> Result<(), Error> {
        for (object_key, stamp) in deletions {
            if self.view.deletion(&object_key)? == Some(stamp) {
                self.batch.remove(&self.lsm.deletions, object_key);
            }
        }
        Ok(())
    }

    /// The stamp of a change: the given one, or one above `current`.
    pub(super) fn stamp(&self, given: Option<Stamp>, current: Option<Stamp>) -> Stamp {
        let committer = self.committer;
        given.unwrap_or_else(|| committer.stamp(committer.epoch(), current))
    }

    /// Turns the parts that are left of an upload into garbage.
    pub(super) fn discard_parts(&mut self, id: UploadId) {
        let garbage = Garbage::Upload(id);
        self.batch.insert(&self.lsm.garbage, garbage.key(), []);
        self.outcome.freed.push(Freed::Garbage(garbage));
    }

    /// Removes the records of garbage. Its files are removed after the commit.
    fn collect(&mut self, garbage: Garbage) -> Result<(), Error> {
        if !self.view.is_garbage(garbage)? {
            return Ok(());
        }
        match garbage {
            Garbage::Manifest(id) => {
                let parts = self.view.manifest(id)?.map(|manifest| manifest.parts);
                for part in parts.unwrap_or_default() {
                    self.lose_file(part.file, part.len);
                }
                self.batch.remove(&self.lsm.manifests, id.to_bytes());
            }
            Garbage::Upload(id) => {
                let parts: Vec<_> = self.view.parts(id, 0).collect::<Result<_, _>>()?;
                for (number, record) in parts {
                    self.batch.remove(&self.lsm.parts, part_key(id, number));
                    self.lose(Some(record));
                }
            }
        }
        self.batch.remove(&self.lsm.garbage, garbage.key());
        Ok(())
    }

    /// Counts `len` bytes that replace the lost records, if the quota allows them.
    pub(super) fn admit(&mut self, len: u64, lost: &[Record]) -> Result<(), Error> {
        let whole = |record: &&Record| !matches!(record.payload, Payload::Parts { .. });
        let given = lost.iter().filter(whole).map(|record| record.len).sum();
        let usage = &self.committer.files.usage;
        usage.check(Change { taken: len, given })?;
        // `lose` counts the bytes that are given back.
        self.outcome.bytes.taken += len;
        Ok(())
    }

    pub(super) fn insert_bytes(&mut self, id: FileId, bytes: PutBytes) {
        match bytes {
            PutBytes::Inline(bytes) => self.batch.insert(&self.lsm.inline, id.to_bytes(), bytes),
            PutBytes::File(record) => self.batch.insert(&self.lsm.files, id.to_bytes(), record),
        }
    }

    /// Removes what the payloads of records refer to. The parts of an object become garbage.
    pub(super) fn lose(&mut self, records: impl IntoIterator<Item = Record>) {
        for Record { payload, len, .. } in records {
            self.outcome.found += 1;
            match payload {
                Payload::Inline { id, .. } => {
                    self.outcome.bytes.given += len;
                    self.batch.remove(&self.lsm.inline, id.to_bytes());
                }
                Payload::File { id } => self.lose_file(id, len),
                Payload::Parts { id } => {
                    let garbage = Garbage::Manifest(id);
                    self.batch.insert(&self.lsm.garbage, garbage.key(), []);
                    self.outcome.freed.push(Freed::Garbage(garbage));
                }
                Payload::Marker => {}
            }
        }
    }

    /// Removes the record of a file, and after the commit the file.
    pub(super) fn lose_file(&mut self, id: FileId, len: u64) {
        self.outcome.bytes.given += len;
        self.outcome.freed.push(Freed::File(id));
        self.batch.remove(&self.lsm.files, id.to_bytes());
    }
}

/// The bucket, if it exists and takes writes.
pub(crate) fn open_bucket(view: &View<'_>, bucket: &str) -> Result<BucketInfo, Error> {
    let info = existing(view, bucket)?;
    match info.which.phase {
        Phase::Live => Ok(info),
        Phase::Deleting | Phase::Gone => Err(Error::Busy),
    }
}

/// Whether a deletion names versions, or meets a key that keeps them.
pub(crate) fn is_of_versions(
    view: &View<'_>,
    versioning: Versioning,
    delete: &DeleteOp,
) -> Result<bool, Error> {
    if versioning != Versioning::Never || !delete.versions.is_empty() {
        return Ok(true);
    }
    for object_key in &delete.object_keys {
        if effective_versioning(view, versioning, object_key)? != Versioning::Never {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn existing(view: &View<'_>, bucket: &str) -> Result<BucketInfo, Error> {
    view.bucket(bucket)?.ok_or(Error::NoSuchBucket)
}

/// The object.
///
/// # Errors
/// [`Error::NoSuchBucket`] or [`Error::NoSuchObject`].
pub(crate) fn present(view: &View<'_>, bucket: &str, object_key: &[u8]) -> Result<Record, Error> {
    match view.object(object_key)? {
        Some(record) => Ok(record),
        None => existing(view, bucket).and(Err(Error::NoSuchObject)),
    }
}

pub(crate) fn check(condition: Option<&Condition>, current: Option<&Record>) -> Result<(), Error> {
    match condition {
        Some(holds) if !holds(current.map(|record| &record.meta)) => Err(Error::ConditionFailed {
            exists: current.is_some(),
        }),
        _ => Ok(()),
    }
}

/// The manifest of an upload's parts. [`Error::PartChanged`] if one of them is missing, or
/// is not the one that the caller has seen.
pub(super) fn manifest_of<T>(
    view: &View<'_>,
    upload: UploadId,
    wanted: &[(u16, T)],
    is_seen: impl Fn(&Record, &T) -> bool,
) -> Result<Manifest, Error> {
    let mut parts = Vec::with_capacity(wanted.len());
    for (number, seen) in wanted {
        let record = view.part(upload, *number)?;
        let record = record.filter(|record| is_seen(record, seen));
        let record = record.ok_or(Error::PartChanged)?;
        let Payload::File { id: file } = record.payload else {
            return Err(Error::corrupt("part without a file"));
        };
        parts.push(ManifestPart {
            number: *number,
            file,
            len: record.len,
            headers: record.meta.headers,
        });
    }
    Ok(Manifest { upload, parts })
}
