//! What a store takes in of another that has it, and what it throws away: nobody
//! else is asked. Whether it is to be taken in is decided at the commit, for a
//! change may have come meanwhile.

use fjall::OwnedWriteBatch;
use prism_replica::{Missed, Settlement, Stamp, is_over, missed};

use super::{
    Committer, DiscardOp, Freed, Outcome, PutBytes, TakeInOp, Taken, holds,
    op::{Mark, files_of},
    prepare::current,
    stage::existing,
};
use crate::{
    error::Error,
    record::Record,
    replica::Scope,
    uploads::{part_key, upload_key},
    versions::Versioning,
    view::View,
};

impl Committer {
    pub(super) fn stage_epoch(&self, batch: &mut OwnedWriteBatch, epoch: u64) -> Outcome {
        let mut outcome = Outcome::default();
        if epoch > self.epoch() {
            self.lsm.stage_epoch(batch, epoch);
            outcome.marks.push(Mark::Adopted(epoch));
        }
        outcome
    }

    pub(super) fn stage_take_in(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        op: TakeInOp,
    ) -> Result<Outcome, Error> {
        let TakeInOp {
            since,
            scope,
            object_key,
            stamp,
            taken,
        } = op;
        self.unversioned(view, &scope)?;
        let mut outcome = Outcome::default();
        let is_wanted = missed(since, holds(view, &scope)?, Some(stamp)) == Missed::Take;
        // A part of nothing would never be found again.
        let is_wanted = is_wanted && self.has_place_for(view, &scope)?;
        match is_wanted {
            true => self.stage_taken(view, batch, (&scope, object_key), taken, &mut outcome)?,
            false => outcome.freed.extend(files_of(&taken).map(Freed::File)),
        }
        outcome.found = usize::from(is_wanted);
        self.stage_over(view, batch, &scope, (since, Some(stamp)), &mut outcome)?;
        Ok(outcome)
    }

    /// Versions lie on one node only, and are not fetched.
    fn unversioned(&self, view: &View<'_>, scope: &Scope) -> Result<(), Error> {
        match existing(view, &scope.bucket)?.versioning {
            Versioning::Never => Ok(()),
            _ => Err(Error::VersionsOfReplicas),
        }
    }

    fn has_place_for(&self, view: &View<'_>, scope: &Scope) -> Result<bool, Error> {
        match scope.upload {
            Some((id, Some(_))) => {
                let key = upload_key(&scope.bucket, &scope.key, id);
                Ok(view.upload(&key)?.is_some())
            }
            _ => Ok(true),
        }
    }

    fn stage_taken(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        (scope, object_key): (&Scope, Vec<u8>),
        taken: Taken,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let lost = match taken {
            Taken::Upload(_) => None,
            _ => current(view, scope)?,
        };
        let record = match taken {
            Taken::Upload(upload) => {
                let Some((id, _)) = scope.upload else {
                    return Err(Error::corrupt("upload without a name"));
                };
                let key = upload_key(&scope.bucket, &scope.key, id);
                batch.insert(&self.lsm.uploads, key, upload.encode()?);
                return Ok(());
            }
            Taken::Whole(record, id, bytes) => {
                outcome.bytes = self.admit(record.len, lost.as_slice())?;
                match bytes {
                    PutBytes::Inline(bytes) => batch.insert(&self.lsm.inline, id.to_bytes(), bytes),
                    PutBytes::File(file) => batch.insert(&self.lsm.files, id.to_bytes(), file),
                }
                record
            }
            Taken::Parts(record, id, manifest, files) => {
                outcome.bytes = self.admit(record.len, lost.as_slice())?;
                for (file, described) in files {
                    batch.insert(&self.lsm.files, file.to_bytes(), described);
                }
                batch.insert(&self.lsm.manifests, id.to_bytes(), manifest.encode()?);
                record
            }
        };
        self.stage_loss(batch, lost, outcome);
        let record = record.encode()?;
        match scope.upload {
            Some((id, Some(number))) => batch.insert(&self.lsm.parts, part_key(id, number), record),
            _ => {
                batch.remove(&self.lsm.deletions, object_key.as_slice());
                batch.insert(&self.lsm.objects, object_key, record);
            }
        }
        Ok(())
    }

    /// Ends a change that was prepared here, if what was taken in says that it is over.
    fn stage_over(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        scope: &Scope,
        (since, taken): (u64, Option<Stamp>),
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let open = view.pending(&scope.tree_key())?;
        match open.filter(|open| is_over(since, open.pending(), taken)) {
            Some(open) => self.stage_settled(view, batch, open, Settlement::Drop, outcome),
            None => Ok(()),
        }
    }

    pub(super) fn stage_discard(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        discard: DiscardOp,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for scope in &discard.scopes {
            let held = holds(view, scope)?;
            let goes = match discard.since {
                Some(since) => missed(since, held, None) == Missed::Remove,
                None => true,
            };
            if goes && held.is_some() {
                self.unversioned(view, scope)?;
                self.stage_discarded(view, batch, scope, &mut outcome)?;
            }
            // Of what has no place here nothing stays open.
            let since = discard.since.unwrap_or(u64::MAX);
            self.stage_over(view, batch, scope, (since, None), &mut outcome)?;
        }
        Ok(outcome)
    }

    fn stage_discarded(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        scope: &Scope,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        match scope.upload {
            None => {
                let key = scope.object_key();
                let lost: Option<Record> = view.object(&key)?;
                self.stage_loss(batch, lost, outcome);
                batch.remove(&self.lsm.objects, key.as_slice());
                batch.remove(&self.lsm.deletions, key);
            }
            Some((id, None)) => {
                let key = upload_key(&scope.bucket, &scope.key, id);
                batch.remove(&self.lsm.uploads, key);
                outcome.freed.extend(self.discard_upload(batch, id).freed);
            }
            Some((id, Some(number))) => {
                self.stage_loss(batch, view.part(id, number)?, outcome);
                batch.remove(&self.lsm.parts, part_key(id, number));
            }
        }
        Ok(())
    }
}
