//! A prepared change that was committed, applied to the present state of its key.

use prism_replica::Stamp;

use super::{
    stage::{Stage, manifest_of},
    succession::{Base, How},
};
use crate::{
    error::Error,
    layout::FileId,
    pending::PendingRecord,
    record::{Payload, Record},
    replica::Change,
    types::{UploadId, Versioning},
    uploads::UploadRecord,
    view::holds,
};

impl Stage<'_> {
    pub(super) fn apply(&mut self, record: &PendingRecord) -> Result<(), Error> {
        let object_key = record.scope.object_key();
        match record.scope.upload {
            None => self.apply_to_object(record, &object_key),
            Some((id, None)) => self.apply_to_upload(record, &object_key, id),
            Some((id, Some(number))) => {
                let (Change::Write { meta, len }, Some(payload)) =
                    (&record.change, record.payload())
                else {
                    return Err(Error::corrupt("prepared part"));
                };
                self.lose(self.view.part(id, number)?);
                let part = record.record(payload, meta.clone(), *len);
                self.insert_part(id, number, &part)
            }
        }
    }

    /// Applies a change of an object, or of a key with versions, as its primary did.
    fn apply_to_object(&mut self, record: &PendingRecord, object_key: &[u8]) -> Result<(), Error> {
        let keeps = record.change.keeps();
        let how = How {
            versioning: keeps.map_or(Versioning::Never, |keeps| keeps.versioning),
            stamp: Some(record.stamp),
        };
        let current = self.view.object(object_key)?;
        if let (Change::SetMeta(_), None) = (&record.change, &current) {
            return Err(Error::corrupt("nothing to be changed"));
        }
        let base = match (keeps, &record.change) {
            (Some(keeps), _) if keeps.builds => {
                if holds(self.view, &record.scope)? != record.before {
                    return Err(Error::corrupt("a prepared change builds on something else"));
                }
                Base::of_key(self.view, object_key)?
            }
            (None, Change::SetMeta(_)) => {
                self.clear_versions(object_key)?;
                self.batch.remove(&self.lsm.deletions, object_key);
                Base::default()
            }
            // The primary has nothing of the key, or no versions of it.
            _ => {
                self.lose(current);
                self.clear_versions(object_key)?;
                Base::default()
            }
        };
        let value = match (record.change.what(), record.payload()) {
            (Change::Write { meta, len }, Some(payload)) => {
                record.record(payload, meta.clone(), *len)
            }
            (
                Change::Complete {
                    upload,
                    meta,
                    parts,
                },
                _,
            ) => {
                let (id, len) = self.apply_parts(object_key, *upload, parts)?;
                record.record(Payload::Parts { id }, meta.clone(), len)
            }
            (Change::Remove, _) => return self.hide(object_key, how, base).map(drop),
            (Change::RemoveVersion { version, .. }, _) => {
                return self.remove_named(object_key, how, *version).map(drop);
            }
            (Change::SetMeta(meta), _) => {
                return self.change_meta(how, object_key, None, |old| *old = meta.clone());
            }
            (Change::SetMetaOf(version, meta), _) => {
                let version = Some(*version);
                return self.change_meta(how, object_key, version, |old| *old = meta.clone());
            }
            _ => return Err(Error::corrupt("prepared change")),
        };
        self.make_current(object_key, value, how, base)
    }

    /// Makes a manifest of parts, and ends their upload. Returns the manifest's id and the
    /// length of the object in bytes.
    fn apply_parts(
        &mut self,
        object_key: &[u8],
        upload: UploadId,
        parts: &[(u16, Stamp)],
    ) -> Result<(FileId, u64), Error> {
        let is_seen = |part: &Record, stamp: &Stamp| part.stamp == *stamp;
        let manifest =
            manifest_of(self.view, upload, parts, is_seen).map_err(|error| match error {
                Error::PartChanged => Error::corrupt("part of a prepared object missing"),
                error => error,
            })?;
        let len = manifest.parts.iter().map(|part| part.len).sum();
        let id = self.store.files.new_id()?;
        self.complete_upload(object_key, id, &manifest)?;
        Ok((id, len))
    }

    fn apply_to_upload(
        &mut self,
        record: &PendingRecord,
        object_key: &[u8],
        id: UploadId,
    ) -> Result<(), Error> {
        match &record.change {
            Change::Begin(meta) => {
                let (stamp, meta) = (record.stamp, meta.clone());
                self.insert_upload(object_key, id, &UploadRecord { stamp, meta })
            }
            Change::Remove => {
                self.remove_upload(object_key, id);
                Ok(())
            }
            _ => Err(Error::corrupt("prepared upload")),
        }
    }
}
