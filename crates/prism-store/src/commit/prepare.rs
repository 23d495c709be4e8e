//! Changes that another node is the primary of: kept beside what there is, then
//! applied or dropped.
//!
//! The tree `pending` has them by scope, one for each. Their bytes are in place:
//! in the trees `inline` and `files`, as those of any object.

use prism_replica::{Asked, Pending, Receipt, Refusal, Settlement, Stamp, receive, settle};
use serde::{Deserialize, Serialize};

use super::{
    Committer,
    op::{Mark, Outcome, PrepareOp, PutBytes, SettleOp},
};
use crate::{
    blocks::crc32c,
    error::Error,
    layout::FileId,
    lsm::Batch,
    record::{Payload, Record},
    replica::{Change, Prepare, Scope, ScopedChange},
    types::ObjectMeta,
    uploads::{UploadId, upload_key},
    view::View,
};

/// What the tree `pending` holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PendingRecord {
    pub(crate) scope: Scope,
    /// Missing in what an older release has written: there was only one then.
    #[serde(default = "first_epoch")]
    epoch: u64,
    pub(crate) stamp: Stamp,
    /// What the key holds, at whoever has it and the change builds on that; missing in
    /// what an older release has written.
    #[serde(default)]
    pub(super) before: Option<Stamp>,
    pub(super) change: Change,
    bytes: Option<StoredBytes>,
}

/// Where the bytes of a change lie.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct StoredBytes {
    id: u64,
    /// Of bytes in the tree `inline`; none for a file.
    crc: Option<u32>,
}

fn first_epoch() -> u64 {
    1
}

impl PendingRecord {
    pub(crate) fn decode(value: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(value).map_err(|_| Error::corrupt("prepared change"))
    }

    fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(|_| Error::corrupt("prepared change"))
    }

    pub(crate) fn pending(&self) -> Pending {
        Pending {
            epoch: self.epoch,
            stamp: self.stamp,
            removes: self.change.removes(),
        }
    }

    /// Of the quota, from now on.
    pub(crate) fn bytes_taken(&self) -> u64 {
        match self.change.what() {
            Change::Write { len, .. } => *len,
            _ => 0,
        }
    }

    pub(super) fn payload(&self) -> Option<Payload> {
        self.bytes.map(|bytes| {
            let id = FileId::from_bytes(bytes.id.to_be_bytes());
            match bytes.crc {
                Some(crc) => Payload::Inline { id, crc },
                None => Payload::File { id },
            }
        })
    }

    pub(super) fn record(&self, payload: Payload, meta: ObjectMeta, len: u64) -> Record {
        Record {
            stamp: self.stamp,
            version: None,
            payload,
            len,
            meta,
        }
    }
}

/// What a scope holds; a key with versions the last change of any of them, and a deleted
/// object its deletion, as long as that is remembered.
pub(crate) fn holds(view: &View<'_>, scope: &Scope) -> Result<Option<Stamp>, Error> {
    match scope.upload {
        None => {
            let object_key = scope.object_key();
            if let Some(last) = view.change(&object_key)? {
                return Ok(Some(last));
            }
            match view.object(&object_key)? {
                Some(record) => Ok(Some(record.stamp)),
                None => view.deletion(&object_key),
            }
        }
        Some((id, None)) => {
            let upload = view.upload(&upload_key(&scope.bucket, &scope.key, id))?;
            Ok(upload.map(|upload| upload.stamp))
        }
        Some((id, Some(number))) => Ok(view.part(id, number)?.map(|part| part.stamp)),
    }
}

impl Committer {
    pub(super) fn stage_prepare(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: PrepareOp,
    ) -> Result<Outcome, Error> {
        let Prepare {
            epoch,
            life,
            stamp,
            changes,
        } = op.prepare;
        let mut outcome = Outcome::default();
        let mut receipts = Vec::with_capacity(changes.len());
        for change in &changes {
            let receipt = self.receipt(view, (epoch, life, stamp), change)?;
            if let Receipt::Refuse(refusal) = receipt {
                outcome.refusal = Some(refusal);
                break;
            }
            if let (Receipt::Prepare { .. }, Change::Write { len, .. }) =
                (receipt, change.change.what())
            {
                let replaced = match change.change.keeps() {
                    None => current(view, &change.scope)?,
                    Some(_) => None,
                };
                outcome.bytes = self.admit(*len, replaced.as_slice())?;
            }
            receipts.push(receipt);
        }
        let is_new = |receipt: &Receipt| matches!(receipt, Receipt::Prepare { .. });
        if outcome.refusal.is_some() || !receipts.iter().any(is_new) {
            // Its file is nobody's.
            if let Some((PutBytes::File(_), id)) = &op.bytes {
                outcome.freed.push(super::Freed::File(*id));
            }
            return Ok(outcome);
        }
        let mut bytes = op.bytes;
        for (change, receipt) in changes.into_iter().zip(receipts) {
            let Receipt::Prepare { older } = receipt else {
                continue;
            };
            let tree_key = change.scope.tree_key();
            if let Some((settlement, older)) = older.zip(view.pending(&tree_key)?) {
                self.stage_settled(view, batch, older, settlement, &mut outcome)?;
            }
            self.stage_implied(view, batch, &change, &mut outcome)?;
            let record = PendingRecord {
                scope: change.scope,
                epoch,
                stamp,
                before: change.before,
                change: change.change,
                bytes: bytes
                    .take()
                    .map(|(bytes, id)| self.stage_bytes(batch, bytes, id)),
            };
            batch.insert(&self.lsm.pending, tree_key.as_slice(), record.encode()?);
            let pending = record.pending();
            outcome
                .marks
                .push(Mark::Pending(tree_key, record.scope, pending));
        }
        Ok(outcome)
    }

    fn receipt(
        &self,
        view: &View<'_>,
        (epoch, life, stamp): (u64, Stamp, Stamp),
        change: &ScopedChange,
    ) -> Result<Receipt, Error> {
        let scope = &change.scope;
        if self.open_bucket(view, &scope.bucket)?.which.life != life {
            return Err(Error::NoSuchBucket);
        }
        let asked = Asked {
            epoch,
            stamp,
            before: change.before,
            builds_on_before: change.change.builds_on_before(),
        };
        let pending = view.pending(&scope.tree_key())?;
        let pending = pending.map(|record| record.pending());
        let receipt = receive(&asked, self.epoch(), holds(view, scope)?, pending);
        let lacks = match (change.change.what(), scope.upload) {
            (Change::Write { .. }, Some((id, _))) => !self.has_upload(view, scope, id)?,
            (Change::Complete { upload, parts, .. }, _) => {
                !self.has_parts(view, scope, *upload, parts)?
            }
            _ => false,
        };
        Ok(match receipt {
            Receipt::Prepare { .. } if lacks => Receipt::Refuse(Refusal::Lacking),
            receipt => receipt,
        })
    }

    /// Whether an upload is there, or prepared: its primary has it.
    fn has_upload(&self, view: &View<'_>, scope: &Scope, id: UploadId) -> Result<bool, Error> {
        let upload = upload_scope(scope, id);
        Ok(holds(view, &upload)?.is_some() || view.pending(&upload.tree_key())?.is_some())
    }

    fn has_parts(
        &self,
        view: &View<'_>,
        scope: &Scope,
        id: UploadId,
        parts: &[(u16, Stamp)],
    ) -> Result<bool, Error> {
        for (number, stamp) in parts {
            let part = part_scope(scope, id, *number);
            let pending = view.pending(&part.tree_key())?;
            let pending = pending.map(|record| record.stamp);
            if holds(view, &part)? != Some(*stamp) && pending != Some(*stamp) {
                return Ok(false);
            }
        }
        self.has_upload(view, scope, id)
    }

    /// What a change builds on has happened, or its primary would not ask.
    fn stage_implied(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        change: &ScopedChange,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let scope = &change.scope;
        let mut implied = Vec::new();
        match (change.change.what(), scope.upload) {
            (Change::Write { .. }, Some((id, _))) => implied.push((upload_scope(scope, id), None)),
            (Change::Complete { upload, parts, .. }, _) => {
                implied.push((upload_scope(scope, *upload), None));
                let parts = parts
                    .iter()
                    .map(|(number, stamp)| (part_scope(scope, *upload, *number), Some(*stamp)));
                implied.extend(parts);
            }
            _ => {}
        }
        for (scope, stamp) in implied {
            let Some(record) = view.pending(&scope.tree_key())? else {
                continue;
            };
            let is_begin = matches!(record.change, Change::Begin(_));
            if stamp.map_or(is_begin, |stamp| stamp == record.stamp) {
                self.stage_settled(view, batch, record, Settlement::Apply, outcome)?;
            }
        }
        Ok(())
    }

    fn stage_bytes(&self, batch: &mut Batch, bytes: PutBytes, id: FileId) -> StoredBytes {
        let crc = match bytes {
            PutBytes::Inline(bytes) => {
                let crc = crc32c(&bytes);
                batch.insert(&self.lsm.inline, id.to_bytes(), bytes);
                Some(crc)
            }
            PutBytes::File(record) => {
                batch.insert(&self.lsm.files, id.to_bytes(), record);
                None
            }
        };
        let id = u64::from_be_bytes(id.to_bytes());
        StoredBytes { id, crc }
    }

    pub(super) fn stage_settle(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: SettleOp,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for (scope, stamp, standing) in op.items {
            let record = view.pending(&scope.tree_key())?;
            let Some(record) = record.filter(|record| record.stamp == stamp) else {
                continue;
            };
            let settlement = settle(record.pending(), standing);
            self.stage_settled(view, batch, record, settlement, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Applies or drops a prepared change.
    pub(super) fn stage_settled(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        record: PendingRecord,
        settlement: Settlement,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        match settlement {
            Settlement::Keep => return Ok(()),
            Settlement::Apply => self.stage_apply(view, batch, &record, outcome)?,
            Settlement::Drop => self.stage_unused(batch, &record, outcome),
        }
        let tree_key = record.scope.tree_key();
        batch.remove(&self.lsm.pending, tree_key.as_slice());
        outcome.marks.push(Mark::Over(tree_key));
        Ok(())
    }
}

/// What the bytes of a change are to replace.
pub(super) fn current(view: &View<'_>, scope: &Scope) -> Result<Option<Record>, Error> {
    match scope.upload {
        Some((id, Some(number))) => view.part(id, number),
        _ => view.object(&scope.object_key()),
    }
}

fn upload_scope(scope: &Scope, id: UploadId) -> Scope {
    Scope {
        upload: Some((id, None)),
        ..scope.clone()
    }
}

fn part_scope(scope: &Scope, id: UploadId, number: u16) -> Scope {
    Scope {
        upload: Some((id, Some(number))),
        ..scope.clone()
    }
}

#[cfg(test)]
#[path = "prepare_tests.rs"]
mod tests;
