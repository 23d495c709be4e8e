//! One operation at a time: its conditions are checked against the state before the batch,
//! and its writes are added to the batch.

use prism_cluster::replica::Stamp;

use super::{
    committer::{CLUSTER_KEY, Committer, EPOCH_KEY},
    op::{CompleteOp, Given, Mark, Op, OpResult, Outcome, PutOp},
    stage::{Stage, check, check_quota, manifest_of, open_bucket, replaced_bytes},
    versions::{Base, How},
};
use crate::{
    error::Error,
    keys::{bucket_of, note_key, part_key},
    layout::FileId,
    lsm::Batch,
    record::{Payload, Record},
    types::{OBJECT_LEN_MAX, UploadId},
    uploads::Garbage,
    view::View,
};

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
            lsm: &committer.storage.lsm,
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
        match op {
            Op::Put(put) => match put.part {
                None => self.put(put, given),
                Some((upload, number)) => self.put_part(put, upload, number, given),
            },
            Op::Delete(delete) => self.delete(&delete, given),
            Op::Change {
                object_key,
                version,
                change,
            } => {
                let bucket = self.view.existing_bucket(bucket_of(&object_key))?;
                let how = How::of_bucket(self.view, &bucket, given, &object_key)?;
                self.change_meta(how, &object_key, version, change)
            }
            Op::CreateUpload {
                object_key,
                id,
                mut record,
            } => {
                open_bucket(self.view, bucket_of(&object_key))?;
                record.stamp = self.stamp(given.map(|given| given.stamp), None);
                self.insert_upload(&object_key, id, &record)
            }
            Op::Complete(complete) => self.complete(complete, given),
            Op::Prepare(prepare, bytes) => self.prepare(prepare, bytes),
            Op::Settle(items) => self.settle(items),
            Op::Forget(deletions) => self.forget(deletions),
            Op::Adopt(epoch, state) => {
                self.adopt(epoch, state);
                Ok(())
            }
            Op::Note(notes) => {
                for (name, document) in notes {
                    self.batch
                        .insert(&self.lsm.system, note_key(&name), document);
                }
                Ok(())
            }
            Op::Renew(past) => {
                past.stage(self.lsm, self.batch)?;
                self.outcome.marks.push(Mark::Renewed(past));
                Ok(())
            }
            Op::TakeIn(take_in) => self.take_in(take_in),
            Op::Discard(discard) => self.discard(&discard),
            Op::Abort { object_key, id } => {
                self.view.existing_upload(&object_key, id)?;
                self.remove_upload(&object_key, id);
                Ok(())
            }
            Op::Collect(garbage) => self.collect(garbage),
            Op::SetBucket { name, record, by } => self.set_bucket(name, &record, by),
            Op::ForgetBucket { name, stamp } => self.forget_bucket(name, stamp),
        }
    }

    fn put(&mut self, put: PutOp, given: Option<Given>) -> Result<(), Error> {
        let bucket = open_bucket(self.view, bucket_of(&put.object_key))?;
        let current = self.view.object(&put.object_key)?;
        check(put.condition.as_ref(), current.as_ref())?;
        // With other replicas the plan has checked the quota before they prepared.
        if given.is_none() {
            let replaced = replaced_bytes(bucket.versioning, current.as_ref());
            check_quota(put.quota.as_ref(), put.record.len, replaced)?;
        }
        let how = How::of_bucket(self.view, &bucket, given, &put.object_key)?;
        let base = Base::for_change(self.view, how, &put.object_key, current)?;
        let len = put.record.len;
        self.insert_bytes(put.id, put.bytes);
        self.make_current(&put.object_key, put.record, how, base)?;
        self.admit(len, self.outcome.bytes.given)
    }

    fn put_part(
        &mut self,
        mut part: PutOp,
        upload: UploadId,
        number: u16,
        given: Option<Given>,
    ) -> Result<(), Error> {
        self.view.existing_upload(&part.object_key, upload)?;
        let replaced = self.view.part(upload, number)?;
        if given.is_none() {
            let replaced = replaced.as_ref().map(|record| record.len);
            check_quota(part.quota.as_ref(), part.record.len, replaced)?;
        }
        let current = replaced.as_ref().map(|record| record.stamp);
        part.record.stamp = self.stamp(given.map(|given| given.stamp), current);
        self.lose(replaced);
        self.insert_bytes(part.id, part.bytes);
        self.insert_part(upload, number, &part.record)?;
        self.admit(part.record.len, self.outcome.bytes.given)
    }

    fn complete(&mut self, complete: CompleteOp, given: Option<Given>) -> Result<(), Error> {
        let object_key = complete.object_key.as_slice();
        self.view.existing_upload(object_key, complete.upload)?;
        let bucket = open_bucket(self.view, bucket_of(object_key))?;
        let current = self.view.object(object_key)?;
        check(complete.condition.as_ref(), current.as_ref())?;
        if given.is_none() {
            let replaced = replaced_bytes(bucket.versioning, current.as_ref());
            check_quota(complete.quota.as_ref(), 0, replaced)?;
        }
        let is_seen = |part: &Record, seen: &FileId| part.payload == Payload::File { id: *seen };
        let manifest = manifest_of(self.view, complete.upload, &complete.parts, is_seen)?;
        let len = manifest.parts.iter().map(|part| part.len).sum();
        if len > OBJECT_LEN_MAX {
            return Err(Error::TooLarge);
        }
        let how = How::of_bucket(self.view, &bucket, given, object_key)?;
        let base = Base::for_change(self.view, how, object_key, current)?;
        let payload = Payload::Parts { id: complete.id };
        let record = Record::new(payload, len, complete.meta);
        self.make_current(object_key, record, how, base)?;
        self.complete_upload(object_key, complete.id, &manifest)?;
        self.outcome.len = len;
        Ok(())
    }

    fn adopt(&mut self, epoch: u64, state: Option<Vec<u8>>) {
        let present = self.committer.epoch();
        if let Some(state) = state.filter(|_| epoch >= present) {
            self.batch.insert(&self.lsm.system, CLUSTER_KEY, state);
        }
        if epoch > present {
            let system = &self.lsm.system;
            self.batch.insert(system, EPOCH_KEY, epoch.to_be_bytes());
            self.outcome.marks.push(Mark::Adopted(epoch));
        }
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
