//! Changes of other primaries: kept beside the present state, then applied or dropped.

use prism_replica::{Asked, Receipt, Refusal, Settlement, Stamp, Standing, receive, settle};

use super::{
    op::Mark,
    stage::{Stage, open_bucket},
};
use crate::{
    error::Error,
    layout::FileId,
    pending::{PendingRecord, StoredBytes},
    record::{Payload, PutBytes, Record},
    replica::{Change, Prepare, Scope, ScopedChange},
    types::ObjectMeta,
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
            let receipt = receipt(self.view, self.store.committer.epoch(), &prepare, change)?;
            if let Receipt::Refuse(refusal) = receipt {
                self.outcome.refusal = Some(refusal);
                break;
            }
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
        if self.outcome.refusal.is_some() || !receipts.iter().any(is_new) {
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
            let (tree_key, value) = (record.scope.tree_key(), record.encode()?);
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
        for (scope, stamp) in implied(change) {
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
}

/// Decides whether a store in `epoch` prepares a change.
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
    if let Receipt::Prepare { .. } = receipt {
        for (scope, stamp) in implied(change) {
            if !has(view, &scope, stamp)? {
                return Ok(Receipt::Refuse(Refusal::Lacking));
            }
        }
    }
    Ok(receipt)
}

/// The scopes on which a change builds: an upload, and parts with these stamps.
fn implied(change: &ScopedChange) -> Vec<(Scope, Option<Stamp>)> {
    let of_upload = |id, part| change.scope.clone().with_upload(id, part);
    match (change.change.what(), change.scope.upload) {
        (Change::Write { .. }, Some((id, _))) => vec![(of_upload(id, None), None)],
        (Change::Complete { upload, parts, .. }, _) => {
            let parts = parts.iter();
            let parts = parts.map(|(n, stamp)| (of_upload(*upload, Some(*n)), Some(*stamp)));
            let upload = (of_upload(*upload, None), None);
            std::iter::once(upload).chain(parts).collect()
        }
        _ => Vec::new(),
    }
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
