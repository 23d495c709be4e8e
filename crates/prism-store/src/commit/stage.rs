//! One operation at a time: its conditions checked against the state before
//! the batch, its changes added to the batch.

use std::time::Instant;

use prism_replica::{Missed, Stamp, missed};

use super::{
    Committer, Given,
    op::{
        CompleteOp, Condition, CreateOp, DeleteOp, Freed, Op, OpResult, Outcome, PartOp, PutBytes,
        PutOp, SetBy,
    },
    succession::{Base, How, mode},
};
use crate::{
    error::Error,
    lsm::Batch,
    record::{Payload, Record, bucket_prefix},
    store::BUCKETS_MAX,
    types::{BucketInfo, OBJECT_LEN_MAX},
    uploads::{Garbage, Manifest, ManifestPart, UploadId, part_key, upload_prefix},
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
        let stamp = given.map(|given| given.stamp);
        let done = match op {
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
            Op::Configure {
                bucket,
                name,
                document,
            } => {
                existing(view, &bucket)?;
                let key = [&bucket_prefix(&bucket), name.as_bytes()].concat();
                match document {
                    Some(document) => batch.insert(&self.lsm.configs, key, document),
                    None => batch.remove(&self.lsm.configs, key),
                }
                Ok(Outcome::default())
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
            other => self.stage_bucket(view, batch, other),
        };
        Ok(done?)
    }

    fn stage_bucket(&self, view: &View<'_>, batch: &mut Batch, op: Op) -> Result<Outcome, Error> {
        match op {
            Op::CreateBucket { name, created_ms } => {
                self.seals.check_open(&name, Instant::now())?;
                if view.bucket(&name)?.is_some() {
                    return Err(Error::AlreadyExists);
                }
                if view.buckets(BUCKETS_MAX)?.len() == BUCKETS_MAX {
                    return Err(Error::TooManyBuckets);
                }
                batch.insert(&self.lsm.buckets, name, created_ms.to_be_bytes());
            }
            Op::SetVersioning {
                name,
                versioning,
                stamp,
                by,
            } => self.stage_versioning(view, batch, (name, versioning, stamp), by)?,
            Op::SealBucket { name, token } => {
                existing(view, &name)?;
                if view.any_object(&bucket_prefix(&name))? {
                    return Err(Error::NotEmpty);
                }
                self.seals.seal(&name, token, Instant::now())?;
                // In this order: a change looks for the seal when it is locked.
                let open = self.index.select(|entry| entry.scope.bucket == name);
                if !open.is_empty() || self.locks.is_busy(&name) {
                    self.seals.unseal(&name, token);
                    return Err(Error::Busy);
                }
            }
            Op::UnsealBucket { name, token } => self.seals.unseal(&name, token),
            Op::DeleteBucket { name, token } => {
                self.seals.check_sealed(&name, token, Instant::now())?;
                existing(view, &name)?;
                let prefix = bucket_prefix(&name);
                if view.any_object(&prefix)? {
                    return Err(Error::NotEmpty);
                }
                if view.any_upload(&upload_prefix(&name, ""))? {
                    return Err(Error::Busy);
                }
                for key in view.config_keys(&prefix)? {
                    batch.remove(&self.lsm.configs, key);
                }
                batch.remove(&self.lsm.buckets, name);
            }
            _ => return Err(Error::InvalidName("not an operation on a bucket")),
        }
        Ok(Outcome::default())
    }

    /// Of two that say so the later one counts; of what was said before an epoch, what
    /// another node has that knows it all.
    fn stage_versioning(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        (name, versioning, stamp): (String, Versioning, Stamp),
        by: SetBy,
    ) -> Result<(), Error> {
        let bucket = existing(view, &name)?;
        let known = bucket.versioning_set;
        match by {
            SetBy::Request if known >= stamp && bucket.versioning != versioning => {
                return Err(Error::SaidLater(known));
            }
            SetBy::Request if known >= stamp => return Ok(()),
            SetBy::Replica(since) if missed(since, Some(known), Some(stamp)) != Missed::Take => {
                return Ok(());
            }
            _ => {}
        }
        let mut value = bucket.created_ms.to_be_bytes().to_vec();
        if let Some(byte) = versioning.byte() {
            value.push(byte);
            value.extend(stamp.to_bytes());
        }
        batch.insert(&self.lsm.buckets, name, value);
        Ok(())
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
        self.seals.check_open(bucket, Instant::now())?;
        Ok(info)
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
