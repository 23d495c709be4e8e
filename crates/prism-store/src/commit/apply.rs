//! What becomes of prepared changes: applied to what the key holds, or dropped.

use super::{
    Committer, Given, holds,
    op::Outcome,
    prepare::PendingRecord,
    succession::{Base, How},
};
use crate::{
    error::Error,
    layout::FileId,
    lsm::Batch,
    record::{Payload, Record},
    replica::{Change, Keeps, Scope},
    types::ObjectMeta,
    uploads::{Manifest, ManifestPart, UploadId, UploadRecord, part_key, upload_key},
    versions::VersionId,
    view::View,
};
use prism_replica::Stamp;

impl Committer {
    pub(super) fn stage_unused(
        &self,
        batch: &mut Batch,
        record: &PendingRecord,
        outcome: &mut Outcome,
    ) {
        if let Some(payload) = record.payload() {
            let unused = record.record(payload, ObjectMeta::default(), record.bytes_taken());
            self.stage_loss(batch, Some(unused), outcome);
        }
    }

    pub(super) fn stage_apply(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        record: &PendingRecord,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        match record.scope.upload {
            None => self.apply_to_object(view, batch, record, outcome),
            Some((id, None)) => self.apply_to_upload(batch, record, id, outcome),
            Some((id, Some(number))) => {
                let (Change::Write { meta, len }, Some(payload)) =
                    (&record.change, record.payload())
                else {
                    return Err(Error::corrupt("prepared part"));
                };
                self.stage_loss(batch, view.part(id, number)?, outcome);
                let value = record.record(payload, meta.clone(), *len).encode()?;
                batch.insert(&self.lsm.parts, part_key(id, number), value);
                Ok(())
            }
        }
    }

    fn apply_to_object(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        record: &PendingRecord,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        if let Some(keeps) = record.change.keeps() {
            return self.apply_kept(view, batch, record, keeps, outcome);
        }
        let object_key = record.scope.object_key();
        let current = view.object(&object_key)?;
        let value = match (&record.change, record.payload()) {
            (Change::Write { meta, len }, Some(payload)) => {
                self.stage_loss(batch, current, outcome);
                record.record(payload, meta.clone(), *len)
            }
            (Change::SetMeta(meta), _) => {
                let current = current.ok_or_else(|| Error::corrupt("nothing to be changed"))?;
                record.record(current.payload, meta.clone(), current.len)
            }
            (Change::Remove, _) => {
                self.stage_loss(batch, current, outcome);
                self.stage_clear(view, batch, &object_key, outcome)?;
                batch.remove(&self.lsm.objects, object_key.as_slice());
                batch.insert(&self.lsm.deletions, object_key, record.stamp.to_bytes());
                return Ok(());
            }
            (Change::Complete { meta, .. }, _) => {
                let (id, len) = self.apply_parts(view, batch, record, outcome)?;
                self.stage_loss(batch, current, outcome);
                record.record(Payload::Parts { id }, meta.clone(), len)
            }
            _ => return Err(Error::corrupt("prepared change")),
        };
        // The primary has no versions of it.
        self.stage_clear(view, batch, &object_key, outcome)?;
        batch.insert(&self.lsm.objects, object_key.as_slice(), value.encode()?);
        batch.remove(&self.lsm.deletions, object_key);
        Ok(())
    }

    /// The same to a key of which versions are kept: what a primary does itself, done to
    /// the same versions.
    fn apply_kept(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        record: &PendingRecord,
        keeps: Keeps,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let object_key = record.scope.object_key();
        let base = match keeps.builds {
            true if holds(view, &record.scope)? != record.before => {
                return Err(Error::corrupt("a prepared change builds on something else"));
            }
            true => Base::of(view, &object_key)?,
            false => {
                self.stage_loss(batch, view.object(&object_key)?, outcome);
                self.stage_clear(view, batch, &object_key, outcome)?;
                Base::default()
            }
        };
        let given = Given {
            stamp: record.stamp,
            versioning: keeps.versioning,
        };
        let how = How::given(given);
        let (value, succession) = match (record.change.what(), record.payload()) {
            (Change::Write { meta, len }, Some(payload)) => {
                let succession = self.succession(how, base)?;
                (record.record(payload, meta.clone(), *len), succession)
            }
            (Change::Complete { meta, .. }, _) => {
                let (id, len) = self.apply_parts(view, batch, record, outcome)?;
                let succession = self.succession(how, base)?;
                let payload = Payload::Parts { id };
                (record.record(payload, meta.clone(), len), succession)
            }
            (Change::Remove, _) => {
                let plan = self.marker(how, base)?;
                self.stage_plan(batch, &object_key, (how, plan), outcome);
                return Ok(());
            }
            (Change::RemoveVersion { version, .. }, _) => {
                let plan = self.removal(view, &record.scope.bucket, &object_key, *version)?;
                self.stage_plan(batch, &object_key, (how, plan), outcome);
                return Ok(());
            }
            (Change::SetMeta(meta), _) => {
                return self.apply_meta(view, batch, (record, how), None, meta);
            }
            (Change::SetMetaOf(version, meta), _) => {
                return self.apply_meta(view, batch, (record, how), Some(*version), meta);
            }
            _ => return Err(Error::corrupt("prepared change")),
        };
        let value = Record {
            version: succession.version,
            ..value
        };
        self.stage_succession(batch, &object_key, succession, outcome);
        batch.insert(&self.lsm.objects, object_key, value.encode()?);
        Ok(())
    }

    fn apply_meta(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        (record, how): (&PendingRecord, How),
        version: Option<VersionId>,
        meta: &ObjectMeta,
    ) -> Result<(), Error> {
        let scope = &record.scope;
        let op = (scope.bucket.as_str(), version);
        let meta = meta.clone();
        let change = Box::new(move |old: &mut ObjectMeta| *old = meta);
        self.stage_change(view, batch, (how, op), scope.object_key(), change)?;
        Ok(())
    }

    /// Makes a manifest of parts, and ends their upload.
    fn apply_parts(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        record: &PendingRecord,
        outcome: &mut Outcome,
    ) -> Result<(FileId, u64), Error> {
        let Change::Complete {
            upload,
            parts: wanted,
            ..
        } = record.change.what()
        else {
            return Err(Error::corrupt("prepared change"));
        };
        let (upload, scope): (UploadId, &Scope) = (*upload, &record.scope);
        let wanted: &[(u16, Stamp)] = wanted;
        let mut parts = Vec::with_capacity(wanted.len());
        for (number, stamp) in wanted {
            let part = view.part(upload, *number)?;
            let part = part.filter(|part| part.stamp == *stamp);
            let part = part.ok_or_else(|| Error::corrupt("part of a prepared object missing"))?;
            let Payload::File { id: file } = part.payload else {
                return Err(Error::corrupt("part without a file"));
            };
            parts.push(ManifestPart {
                number: *number,
                file,
                len: part.len,
                headers: part.meta.headers,
            });
        }
        let len = parts.iter().map(|part| part.len).sum();
        let id = self.files.new_id()?;
        let manifest = Manifest { upload, parts };
        batch.insert(&self.lsm.manifests, id.to_bytes(), manifest.encode()?);
        for (number, _) in wanted {
            batch.remove(&self.lsm.parts, part_key(upload, *number));
        }
        let key = upload_key(&scope.bucket, &scope.key, upload);
        batch.remove(&self.lsm.uploads, key);
        outcome
            .freed
            .extend(self.discard_upload(batch, upload).freed);
        Ok((id, len))
    }

    fn apply_to_upload(
        &self,
        batch: &mut Batch,
        record: &PendingRecord,
        id: UploadId,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let key = upload_key(&record.scope.bucket, &record.scope.key, id);
        match &record.change {
            Change::Begin(meta) => {
                let value = UploadRecord {
                    stamp: record.stamp,
                    meta: meta.clone(),
                };
                batch.insert(&self.lsm.uploads, key, value.encode()?);
            }
            Change::Remove => {
                batch.remove(&self.lsm.uploads, key);
                outcome.freed.extend(self.discard_upload(batch, id).freed);
            }
            _ => return Err(Error::corrupt("prepared upload")),
        }
        Ok(())
    }
}
