//! A prepared change that was committed, applied to the present state of its key.

use super::{
    stage::{Stage, manifest_of},
    succession::{Base, How},
    versions::removal,
};
use crate::{
    error::Error,
    keys::{part_key, upload_key},
    layout::FileId,
    pending::PendingRecord,
    record::{Payload, Record},
    replica::{Change, Keeps},
    types::{ObjectMeta, UploadId, VersionId},
    uploads::UploadRecord,
    view::holds,
};
use prism_replica::Stamp;

impl Stage<'_> {
    pub(super) fn apply(&mut self, record: &PendingRecord) -> Result<(), Error> {
        match record.scope.upload {
            None => self.apply_to_object(record),
            Some((id, None)) => self.apply_to_upload(record, id),
            Some((id, Some(number))) => {
                let (Change::Write { meta, len }, Some(payload)) =
                    (&record.change, record.payload())
                else {
                    return Err(Error::corrupt("prepared part"));
                };
                self.lose(self.view.part(id, number)?);
                let value = record.record(payload, meta.clone(), *len).encode()?;
                self.batch
                    .insert(&self.lsm.parts, part_key(id, number), value);
                Ok(())
            }
        }
    }

    fn apply_to_object(&mut self, record: &PendingRecord) -> Result<(), Error> {
        if let Some(keeps) = record.change.keeps() {
            return self.apply_with_versions(record, keeps);
        }
        let object_key = record.scope.object_key();
        let current = self.view.object(&object_key)?;
        let value = match (&record.change, record.payload()) {
            (Change::Write { meta, len }, Some(payload)) => {
                self.lose(current);
                record.record(payload, meta.clone(), *len)
            }
            (Change::SetMeta(meta), _) => {
                let current = current.ok_or_else(|| Error::corrupt("nothing to be changed"))?;
                record.record(current.payload, meta.clone(), current.len)
            }
            (Change::Remove, _) => {
                self.lose(current);
                self.clear_versions(&object_key)?;
                self.batch.remove(&self.lsm.objects, object_key.as_slice());
                let stamp = record.stamp.to_bytes();
                self.batch.insert(&self.lsm.deletions, object_key, stamp);
                return Ok(());
            }
            (Change::Complete { meta, .. }, _) => {
                let (id, len) = self.apply_parts(record)?;
                self.lose(current);
                record.record(Payload::Parts { id }, meta.clone(), len)
            }
            _ => return Err(Error::corrupt("prepared change")),
        };
        // The primary has no versions of the key.
        self.clear_versions(&object_key)?;
        let (objects, value) = (&self.lsm.objects, value.encode()?);
        self.batch.insert(objects, object_key.as_slice(), value);
        self.batch.remove(&self.lsm.deletions, object_key);
        Ok(())
    }

    /// Applies a change of a key with versions, as its primary did.
    fn apply_with_versions(&mut self, record: &PendingRecord, keeps: Keeps) -> Result<(), Error> {
        let object_key = record.scope.object_key();
        let base = match keeps.builds {
            true if holds(self.view, &record.scope)? != record.before => {
                return Err(Error::corrupt("a prepared change builds on something else"));
            }
            true => Base::of_key(self.view, &object_key)?,
            false => {
                self.lose(self.view.object(&object_key)?);
                self.clear_versions(&object_key)?;
                Base::default()
            }
        };
        let how = How {
            versioning: keeps.versioning,
            stamp: Some(record.stamp),
        };
        let value = match (record.change.what(), record.payload()) {
            (Change::Write { meta, len }, Some(payload)) => {
                record.record(payload, meta.clone(), *len)
            }
            (Change::Complete { meta, .. }, _) => {
                let (id, len) = self.apply_parts(record)?;
                record.record(Payload::Parts { id }, meta.clone(), len)
            }
            (Change::Remove, _) => {
                let plan = self.marker(how, base)?;
                self.apply_plan(&object_key, how, plan);
                return Ok(());
            }
            (Change::RemoveVersion { version, .. }, _) => {
                let plan = removal(self.view, &record.scope.bucket, &object_key, *version)?;
                self.apply_plan(&object_key, how, plan);
                return Ok(());
            }
            (Change::SetMeta(meta), _) => return self.apply_meta(record, how, None, meta),
            (Change::SetMetaOf(version, meta), _) => {
                return self.apply_meta(record, how, Some(*version), meta);
            }
            _ => return Err(Error::corrupt("prepared change")),
        };
        let succession = self.succession(how, base)?;
        self.make_current(&object_key, value, succession)
    }

    fn apply_meta(
        &mut self,
        record: &PendingRecord,
        how: How,
        version: Option<VersionId>,
        meta: &ObjectMeta,
    ) -> Result<(), Error> {
        let scope = &record.scope;
        let meta = meta.clone();
        let change = Box::new(move |old: &mut ObjectMeta| *old = meta);
        self.change_meta(how, &scope.bucket, scope.object_key(), version, change)
    }

    /// Makes a manifest of parts, and ends their upload. Returns the manifest's id and the
    /// length of the object in bytes.
    fn apply_parts(&mut self, record: &PendingRecord) -> Result<(FileId, u64), Error> {
        let Change::Complete {
            upload,
            parts: wanted,
            ..
        } = record.change.what()
        else {
            return Err(Error::corrupt("prepared change"));
        };
        let is_seen = |part: &Record, stamp: &Stamp| part.stamp == *stamp;
        let manifest =
            manifest_of(self.view, *upload, wanted, is_seen).map_err(|error| match error {
                Error::PartChanged => Error::corrupt("part of a prepared object missing"),
                error => error,
            })?;
        let len = manifest.parts.iter().map(|part| part.len).sum();
        let id = self.store.files.new_id()?;
        let key = upload_key(&record.scope.bucket, &record.scope.key, *upload);
        self.end_upload(key, id, &manifest)?;
        Ok((id, len))
    }

    fn apply_to_upload(&mut self, record: &PendingRecord, id: UploadId) -> Result<(), Error> {
        let key = upload_key(&record.scope.bucket, &record.scope.key, id);
        match &record.change {
            Change::Begin(meta) => {
                let value = UploadRecord {
                    stamp: record.stamp,
                    meta: meta.clone(),
                };
                self.batch.insert(&self.lsm.uploads, key, value.encode()?);
            }
            Change::Remove => {
                self.batch.remove(&self.lsm.uploads, key);
                self.discard_parts(id);
            }
            _ => return Err(Error::corrupt("prepared upload")),
        }
        Ok(())
    }
}
