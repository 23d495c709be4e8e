//! Changes of other primaries: kept beside the present state, then applied or dropped.

use prism_cluster::replica::{
    Asked, Receipt, Refusal, Settlement, Stamp, Standing, receive, settle,
};

use super::{
    op::Mark,
    stage::{Stage, manifest_of, open_bucket},
    versions::{Base, How},
};
use crate::{
    error::Error,
    layout::FileId,
    pending::{PendingRecord, StoredBytes},
    record::{Payload, PutBytes, Record},
    scope::{Change, Prepare, Scope, ScopedChange},
    types::{ObjectMeta, UploadId, Versioning},
    uploads::UploadRecord,
    view::{View, holds},
};

impl Stage<'_> {
    pub(super) fn prepare(
        &mut self,
        prepare: Prepare,
        mut bytes: Option<(PutBytes, FileId)>,
    ) -> Result<(), Error> {
        let mut receipts = Vec::with_capacity(prepare.changes.len());
        for change in &prepare.changes {
            let receipt = receipt(self.view, self.committer.epoch(), &prepare, change)?;
            if let (Receipt::Prepare { .. }, Change::Write { len, .. }) =
                (receipt, change.change.what())
            {
                let replaced = match change.change.keeps() {
                    None => current(self.view, &change.scope)?,
                    Some(_) => None,
                };
                let given = replaced.map_or(0, |record| record.given_back());
                self.admit(*len, given)?;
            }
            receipts.push(receipt);
        }
        let is_new = |receipt: &Receipt| matches!(receipt, Receipt::Prepare { .. });
        if !receipts.iter().any(is_new) {
            // No record will refer to the file.
            if let Some((PutBytes::File(_), id)) = &bytes {
                self.outcome.freed.push(*id);
            }
            return Ok(());
        }
        for (change, receipt) in prepare.changes.into_iter().zip(receipts) {
            let Receipt::Prepare { older } = receipt else {
                continue;
            };
            if let Some((settlement, older)) = older.zip(self.view.pending(&change.scope)?) {
                self.end(older, settlement)?;
            }
            self.apply_implied(&change)?;
            let record = PendingRecord {
                scope: change.scope,
                epoch: prepare.epoch,
                stamp: prepare.stamp,
                before: change.before,
                change: change.change,
                bytes: bytes.take().map(|(bytes, id)| self.store_bytes(bytes, id)),
            };
            let tree_key = record.scope.tree_key();
            let value = record.encode()?;
            self.batch.insert(&self.lsm.pending, tree_key, value);
            let pending = record.pending();
            let mark = Mark::Pending(record.scope, pending);
            self.outcome.marks.push(mark);
        }
        Ok(())
    }

    /// Applies the changes that this one builds on. They were committed, or the primary would
    /// not ask.
    fn apply_implied(&mut self, change: &ScopedChange) -> Result<(), Error> {
        for (scope, stamp) in change.built_on() {
            let Some(record) = self.view.pending(&scope)? else {
                continue;
            };
            let is_begin = matches!(record.change, Change::Begin(_));
            if stamp.map_or(is_begin, |stamp| stamp == record.stamp) {
                self.end(record, Settlement::Apply)?;
            }
        }
        Ok(())
    }

    fn store_bytes(&mut self, bytes: PutBytes, id: FileId) -> StoredBytes {
        let crc = match bytes.payload(id) {
            Payload::Inline { crc, .. } => Some(crc),
            _ => None,
        };
        self.insert_bytes(id, bytes);
        let id = u64::from_be_bytes(id.to_bytes());
        StoredBytes { id, crc }
    }

    pub(super) fn settle(&mut self, items: Vec<(Scope, Stamp, Standing)>) -> Result<(), Error> {
        for (scope, stamp, standing) in items {
            let record = self.view.pending(&scope)?;
            if let Some(record) = record.filter(|record| record.stamp == stamp) {
                let settlement = settle(record.pending(), standing);
                self.end(record, settlement)?;
            }
        }
        Ok(())
    }

    pub(super) fn end(
        &mut self,
        record: PendingRecord,
        settlement: Settlement,
    ) -> Result<(), Error> {
        match settlement {
            Settlement::Keep => return Ok(()),
            Settlement::Apply => self.apply(&record)?,
            Settlement::Drop => {
                let unused = record.payload().map(|payload| {
                    record.record(payload, ObjectMeta::default(), record.bytes_taken())
                });
                self.lose(unused);
            }
        }
        let tree_key = record.scope.tree_key();
        self.batch.remove(&self.lsm.pending, tree_key);
        self.outcome.marks.push(Mark::Over(record.scope));
        Ok(())
    }

    /// Applies a prepared change that was committed to the present state of its key.
    fn apply(&mut self, record: &PendingRecord) -> Result<(), Error> {
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
        let id = self.committer.storage.files.new_id()?;
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
                let stamp = record.stamp;
                let meta = meta.clone();
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

/// Decides whether a store in `epoch` prepares a change, or knows it already.
///
/// # Errors
/// [`Error::Refused`].
fn receipt(
    view: &View<'_>,
    epoch: u64,
    prepare: &Prepare,
    change: &ScopedChange,
) -> Result<Receipt, Error> {
    let scope = &change.scope;
    if open_bucket(view, &scope.bucket)?.which.life != prepare.life {
        return Err(Error::NoSuchBucket);
    }
    let asked = Asked {
        epoch: prepare.epoch,
        stamp: prepare.stamp,
        before: change.before,
        builds_on_before: change.change.builds_on_before(),
    };
    let pending = view.pending(scope)?;
    let pending = pending.map(|record| record.pending());
    let receipt = receive(&asked, epoch, holds(view, scope)?, pending);
    if let Receipt::Refuse(refusal) = receipt {
        return Err(Error::Refused(refusal));
    }
    if let Receipt::Prepare { .. } = receipt {
        for (scope, stamp) in change.built_on() {
            if !has(view, &scope, stamp)? {
                return Err(Error::Refused(Refusal::Lacking));
            }
        }
    }
    Ok(receipt)
}

/// Whether a scope exists, or is prepared: its primary has it then.
fn has(view: &View<'_>, scope: &Scope, stamp: Option<Stamp>) -> Result<bool, Error> {
    let is_it = |found| stamp.is_none_or(|stamp| stamp == found);
    let pending = view.pending(scope)?;
    Ok(holds(view, scope)?.is_some_and(is_it) || pending.is_some_and(|record| is_it(record.stamp)))
}

/// The record that the bytes of a change replace.
pub(super) fn current(view: &View<'_>, scope: &Scope) -> Result<Option<Record>, Error> {
    match scope.upload {
        Some((id, Some(number))) => view.part(id, number),
        _ => view.object(&scope.object_key()),
    }
}
