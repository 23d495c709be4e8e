//! One operation at a time: its conditions are checked against the state before the batch,
//! and its writes are added to the batch.

use prism_replica::Stamp;

use super::{
    op::{CompleteOp, CreateOp, DeleteOp, Given, Op, OpResult, Outcome, PartOp, PutOp},
    stage::{Stage, check, existing, is_of_versions, manifest_of, open_bucket},
    succession::{Base, How},
};
use crate::{
    error::Error,
    inner::Inner,
    keys::part_key,
    layout::FileId,
    lsm::Batch,
    record::{Payload, Record},
    types::OBJECT_LEN_MAX,
    uploads::Garbage,
    view::View,
};

impl<'a> Stage<'a> {
    /// Stages one operation. On error the batch is as before.
    pub(super) fn run(
        store: &'a Inner,
        view: &'a View<'a>,
        batch: &'a mut Batch,
        op: Op,
        given: Option<Given>,
    ) -> OpResult {
        let before = batch.len();
        let mut stage = Self {
            store,
            lsm: &store.lsm,
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
}
