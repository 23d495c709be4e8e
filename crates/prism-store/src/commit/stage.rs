//! One operation at a time: its conditions checked against the state before
//! the batch, its changes added to the batch.

use prism_replica::{Phase, Stamp};

use super::{
    Committer, Given,
    op::{
        CompleteOp, Condition, CreateOp, DeleteOp, Freed, Op, OpResult, Outcome, PartOp, PutBytes,
        PutOp,
    },
    succession::{Base, How, mode},
};
use crate::{
    error::Error,
    lsm::Batch,
    record::{Payload, Record},
    types::{BucketInfo, OBJECT_LEN_MAX},
    uploads::{Garbage, Manifest, ManifestPart, UploadId, part_key},
    usage::Change,
    versions::Versioning,
    view::View,
};

impl Committer {
    /// Checks one operation's conditions and adds its changes to the batch. On
    /// error the batch is as before.
    pub(super) fn stage(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: Op,
        given: Option<Given>,
    ) -> OpResult {
        let before = batch.len();
        let done = self.stage_writes(view, batch, op, given);
        // It may have failed halfway.
        if done.is_err() {
            batch.truncate(before);
        }
        Ok(done?)
    }

    fn stage_writes(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: Op,
        given: Option<Given>,
    ) -> Result<Outcome, Error> {
        let stamp = given.map(|given| given.stamp);
        match op {
            Op::Put(put) => self.stage_put(view, batch, put, given),
            Op::Delete(delete) => self.stage_delete(view, batch, &delete, given),
            Op::Change {
                bucket,
                object_key,
                version,
                change,
            } => {
                let info = existing(view, &bucket)?;
                let how = How::of(view, &info, given, &object_key)?;
                let what = (how, (bucket.as_str(), version));
                self.stage_change(view, batch, what, object_key, change)
            }
            Op::CreateUpload(create) => self.stage_upload(view, batch, create, stamp),
            Op::PutPart(part) => self.stage_part(view, batch, part, stamp),
            Op::Complete(complete) => self.stage_complete(view, batch, complete, given),
            Op::Prepare(prepare) => self.stage_prepare(view, batch, prepare),
            Op::Settle(settle) => self.stage_settle(view, batch, settle),
            Op::Forget(deletions) => self.stage_forget(view, batch, deletions),
            Op::Adopt(epoch, note) => Ok(self.stage_epoch(batch, epoch, note)),
            Op::TakeIn(take_in) => self.stage_take_in(view, batch, take_in),
            Op::TakeVersions(taken) => self.stage_take_versions(view, batch, taken),
            Op::Discard(discard) => self.stage_discard(view, batch, discard),
            Op::Abort { upload_key, id, .. } => {
                view.upload(&upload_key)?.ok_or(Error::NoSuchUpload)?;
                batch.remove(&self.lsm.uploads, upload_key);
                Ok(self.discard_upload(batch, id))
            }
            Op::Collect(garbage) => self.stage_collect(view, batch, garbage),
            Op::SetBucket(set) => self.stage_bucket(view, batch, set),
            Op::ForgetBucket { name, stamp } => self.stage_forgotten(view, batch, name, stamp),
        }
    }

    fn stage_put(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        mut put: PutOp,
        given: Option<Given>,
    ) -> Result<Outcome, Error> {
        let bucket = self.open_bucket(view, &put.bucket)?;
        let current = view.object(&put.object_key)?;
        check(put.condition.as_ref(), current.as_ref())?;
        if given.is_some() {
            batch.remove(&self.lsm.deletions, put.object_key.as_slice());
        }
        let how = How::of(view, &bucket, given, &put.object_key)?;
        let base = Base::with(view, how, &put.object_key, current)?;
        let succession = self.succession(how, base)?;
        put.record.stamp = succession.stamp;
        put.record.version = succession.version;
        let record = put.record.encode()?;
        let bytes = self.admit(put.record.len, succession.lost())?;
        let mut outcome = Outcome {
            bytes,
            stamp: succession.stamp,
            version: succession.version,
            ..Outcome::default()
        };
        self.stage_succession(batch, &put.object_key, succession, &mut outcome);
        match put.bytes {
            PutBytes::Inline(bytes) => batch.insert(&self.lsm.inline, put.id.to_bytes(), bytes),
            PutBytes::File(record) => batch.insert(&self.lsm.files, put.id.to_bytes(), record),
        }
        batch.insert(&self.lsm.objects, put.object_key, record);
        Ok(outcome)
    }

    fn stage_delete(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        delete: &DeleteOp,
        given: Option<Given>,
    ) -> Result<Outcome, Error> {
        let bucket = existing(view, &delete.bucket)?;
        let versioning = given.map_or(bucket.versioning, |given| given.versioning);
        if is_of_versions(view, versioning, delete)? {
            return self.stage_delete_versions(view, batch, (&bucket, given), delete);
        }
        let mut found = Vec::with_capacity(delete.object_keys.len());
        for object_key in &delete.object_keys {
            let current = view.object(object_key)?;
            check(delete.condition.as_ref(), current.as_ref())?;
            found.extend(current.map(|record| (object_key, record)));
        }
        let mut outcome = Outcome::default();
        for (object_key, record) in found {
            batch.remove(&self.lsm.objects, object_key.as_slice());
            if let Some(Given { stamp, .. }) = given {
                let (deletions, value) = (&self.lsm.deletions, stamp.to_bytes());
                batch.insert(deletions, object_key.as_slice(), value);
            }
            self.stage_loss(batch, Some(record), &mut outcome);
        }
        Ok(outcome)
    }

    fn stage_part(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        mut part: PartOp,
        stamp: Option<Stamp>,
    ) -> Result<Outcome, Error> {
        view.upload(&part.upload_key)?.ok_or(Error::NoSuchUpload)?;
        let replaced = view.part(part.upload, part.number)?;
        part.record.stamp = self.given(stamp, replaced.as_ref().map(|record| record.stamp));
        let record = part.record.encode()?;
        let bytes = self.admit(part.record.len, replaced.as_slice())?;
        let mut outcome = Outcome {
            bytes,
            stamp: part.record.stamp,
            ..Outcome::default()
        };
        self.stage_loss(batch, replaced, &mut outcome);
        let key = part_key(part.upload, part.number);
        batch.insert(&self.lsm.files, part.id.to_bytes(), part.file_record);
        batch.insert(&self.lsm.parts, key, record);
        Ok(outcome)
    }

    fn stage_complete(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        complete: CompleteOp,
        given: Option<Given>,
    ) -> Result<Outcome, Error> {
        view.upload(&complete.upload_key)?
            .ok_or(Error::NoSuchUpload)?;
        let bucket = self.open_bucket(view, &complete.bucket)?;
        let current = view.object(&complete.object_key)?;
        check(complete.condition.as_ref(), current.as_ref())?;
        let manifest = manifest_of(view, &complete)?;
        let len = manifest.parts.iter().map(|part| part.len).sum();
        if len > OBJECT_LEN_MAX {
            return Err(Error::TooLarge);
        }
        let how = How::of(view, &bucket, given, &complete.object_key)?;
        let base = Base::with(view, how, &complete.object_key, current)?;
        let succession = self.succession(how, base)?;
        let record = Record {
            stamp: succession.stamp,
            version: succession.version,
            payload: Payload::Parts { id: complete.id },
            len,
            meta: complete.meta,
        };
        let mut outcome = Outcome {
            stamp: record.stamp,
            version: record.version,
            ..Outcome::default()
        };
        let (record, encoded) = (record.encode()?, manifest.encode()?);
        if given.is_some() {
            batch.remove(&self.lsm.deletions, complete.object_key.as_slice());
        }
        self.stage_succession(batch, &complete.object_key, succession, &mut outcome);
        batch.insert(&self.lsm.objects, complete.object_key, record);
        batch.insert(&self.lsm.manifests, complete.id.to_bytes(), encoded);
        batch.remove(&self.lsm.uploads, complete.upload_key);
        for part in &manifest.parts {
            batch.remove(&self.lsm.parts, part_key(complete.upload, part.number));
        }
        // Parts that were sent and are not wanted.
        let rest = self.discard_upload(batch, complete.upload);
        outcome.freed.extend(rest.freed);
        outcome.len = len;
        Ok(outcome)
    }

    fn stage_upload(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        mut create: CreateOp,
        stamp: Option<Stamp>,
    ) -> Result<Outcome, Error> {
        self.open_bucket(view, &create.bucket)?;
        create.record.stamp = self.given(stamp, None);
        batch.insert(
            &self.lsm.uploads,
            create.upload_key,
            create.record.encode()?,
        );
        Ok(Outcome::default())
    }

    fn stage_forget(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        deletions: Vec<(Vec<u8>, Stamp)>,
    ) -> Result<Outcome, Error> {
        for (object_key, stamp) in deletions {
            if view.deletion(&object_key)? == Some(stamp) {
                batch.remove(&self.lsm.deletions, object_key);
            }
        }
        Ok(Outcome::default())
    }

    /// The stamp of a change: as it was given, or above what there is.
    pub(super) fn given(&self, stamp: Option<Stamp>, current: Option<Stamp>) -> Stamp {
        stamp.unwrap_or_else(|| self.stamp(self.epoch(), current))
    }

    /// What is left under an upload's id belongs to nobody.
    pub(super) fn discard_upload(&self, batch: &mut Batch, id: UploadId) -> Outcome {
        let garbage = Garbage::Upload(id);
        batch.insert(&self.lsm.garbage, garbage.key(), []);
        Outcome {
            freed: vec![Freed::Garbage(garbage)],
            ..Outcome::default()
        }
    }

    /// Takes apart what belongs to nobody; its files are then to be removed.
    fn stage_collect(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        garbage: Garbage,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        if !view.is_garbage(garbage)? {
            return Ok(outcome);
        }
        match garbage {
            Garbage::Manifest(id) => {
                let parts = view.manifest(id)?.map(|manifest| manifest.parts);
                for part in parts.unwrap_or_default() {
                    batch.remove(&self.lsm.files, part.file.to_bytes());
                    outcome.bytes.given += part.len;
                    outcome.freed.push(Freed::File(part.file));
                }
                batch.remove(&self.lsm.manifests, id.to_bytes());
            }
            Garbage::Upload(id) => {
                let parts: Vec<_> = view.parts(id, 0).collect::<Result<_, _>>()?;
                for (number, record) in parts {
                    batch.remove(&self.lsm.parts, part_key(id, number));
                    self.stage_loss(batch, Some(record), &mut outcome);
                }
            }
        }
        batch.remove(&self.lsm.garbage, garbage.key());
        Ok(outcome)
    }

    /// What `len` bytes in place of what is lost take, if the quota allows it.
    pub(super) fn admit(&self, len: u64, lost: &[Record]) -> Result<Change, Error> {
        let whole = |record: &&Record| !matches!(record.payload, Payload::Parts { .. });
        let given = lost.iter().filter(whole).map(|record| record.len).sum();
        let taken = len;
        self.files.usage.check(Change { taken, given })?;
        // What is given is counted where it is removed.
        Ok(Change { taken, given: 0 })
    }

    /// Removes what a record's payload refers to. Parts are left for later.
    pub(super) fn stage_loss(
        &self,
        batch: &mut Batch,
        lost: Option<Record>,
        outcome: &mut Outcome,
    ) {
        let Some(Record { payload, len, .. }) = lost else {
            return;
        };
        if !matches!(payload, Payload::Parts { .. }) {
            outcome.bytes.given += len;
        }
        match payload {
            Payload::Inline { id, .. } => batch.remove(&self.lsm.inline, id.to_bytes()),
            Payload::File { id } => batch.remove(&self.lsm.files, id.to_bytes()),
            Payload::Parts { id } => {
                batch.insert(&self.lsm.garbage, Garbage::Manifest(id).key(), []);
            }
            Payload::Marker => {}
        }
        outcome.lost(payload);
    }

    /// The bucket is there and takes objects.
    pub(crate) fn open_bucket(&self, view: &View<'_>, bucket: &str) -> Result<BucketInfo, Error> {
        let info = existing(view, bucket)?;
        match info.which.phase {
            Phase::Live => Ok(info),
            Phase::Deleting | Phase::Gone => Err(Error::Busy),
        }
    }
}

/// Whether versions are to be thought of when this is deleted.
pub(crate) fn is_of_versions(
    view: &View<'_>,
    versioning: Versioning,
    delete: &DeleteOp,
) -> Result<bool, Error> {
    if versioning != Versioning::Never || !delete.versions.is_empty() {
        return Ok(true);
    }
    for object_key in &delete.object_keys {
        if mode(view, versioning, object_key)? != Versioning::Never {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn existing(view: &View<'_>, bucket: &str) -> Result<BucketInfo, Error> {
    view.bucket(bucket)?.ok_or(Error::NoSuchBucket)
}

/// The object, or why there is none.
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

/// The parts as the caller saw them, or [`Error::PartChanged`].
fn manifest_of(view: &View<'_>, complete: &CompleteOp) -> Result<Manifest, Error> {
    let mut parts = Vec::with_capacity(complete.parts.len());
    for (number, seen) in &complete.parts {
        let record = view.part(complete.upload, *number)?;
        let record = record.filter(|record| record.payload == Payload::File { id: *seen });
        let record = record.ok_or(Error::PartChanged)?;
        parts.push(ManifestPart {
            number: *number,
            file: *seen,
            len: record.len,
            headers: record.meta.headers,
        });
    }
    Ok(Manifest {
        upload: complete.upload,
        parts,
    })
}
