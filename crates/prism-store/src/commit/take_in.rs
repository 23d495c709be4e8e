//! What a store takes in of another that has it, and what it throws away: nobody
//! else is asked. Whether it is to be taken in is decided at the commit, for a
//! change may have come meanwhile.

use std::collections::BTreeMap;

use prism_replica::{Missed, Settlement, Stamp, is_over, missed};

use super::{
    Committer, DiscardOp, Freed, Outcome, PutBytes, TakeInOp, TakeVersionsOp, Taken, holds,
    op::Mark, prepare::current, stage::existing, taken::files_of,
};
use crate::{
    error::Error,
    layout::FileId,
    lsm::Batch,
    record::{Payload, Record},
    replica::Scope,
    scrub::is_of_upload,
    types::BucketInfo,
    uploads::{part_key, upload_key},
    versions::{Place, VersionId, Versioning, version_key},
    view::View,
};

impl Committer {
    pub(super) fn stage_epoch(
        &self,
        batch: &mut Batch,
        epoch: u64,
        note: Option<Vec<u8>>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(note) = note.filter(|_| epoch >= self.epoch()) {
            self.lsm.stage_state(batch, note);
        }
        if epoch > self.epoch() {
            self.lsm.stage_epoch(batch, epoch);
            outcome.marks.push(Mark::Adopted(epoch));
        }
        outcome
    }

    pub(super) fn stage_take_in(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: TakeInOp,
    ) -> Result<Outcome, Error> {
        let TakeInOp {
            since,
            scope,
            object_key,
            life,
            stamp,
            taken,
        } = op;
        let versioning = of_life(view, &scope.bucket, life)?.versioning;
        let mut outcome = Outcome::default();
        let held = holds(view, &scope)?;
        let is_wanted = match since {
            Some(since) => missed(since, held, Some(stamp)) == Missed::Take,
            // Other versions have files of the same key.
            None if scope.upload.is_none() && versioning != Versioning::Never => false,
            None => held == Some(stamp),
        };
        // A part of nothing would never be found again.
        let is_wanted = is_wanted && self.has_place_for(view, &scope)?;
        match is_wanted {
            true => {
                let scope = (&scope, object_key);
                self.stage_taken(view, batch, scope, (taken, since.is_none()), &mut outcome)?;
            }
            false => outcome.freed.extend(files_of(&taken).map(Freed::File)),
        }
        outcome.found = usize::from(is_wanted);
        if let Some(since) = since {
            self.stage_over(view, batch, &scope, (since, Some(stamp)), &mut outcome)?;
        }
        Ok(outcome)
    }

    /// What a key has becomes what another replica has of it, in one batch.
    pub(super) fn stage_take_versions(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: TakeVersionsOp,
    ) -> Result<Outcome, Error> {
        of_life(view, &op.scope.bucket, op.life)?;
        let mut outcome = Outcome::default();
        let (since, stamp, scope) = (op.since, op.stamp, op.scope.clone());
        let is_wanted = missed(since, holds(view, &scope)?, Some(stamp)) == Missed::Take;
        match is_wanted {
            true => self.stage_versions(view, batch, op, &mut outcome)?,
            false => {
                let unused = op.taken().flat_map(files_of).map(Freed::File);
                outcome.freed.extend(unused);
            }
        }
        outcome.found = usize::from(is_wanted);
        self.stage_over(view, batch, &scope, (since, Some(stamp)), &mut outcome)?;
        Ok(outcome)
    }

    fn stage_versions(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        op: TakeVersionsOp,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        let object_key = op.object_key.as_slice();
        let own = own_versions(view, object_key)?;
        let is_kept = |place: &Place, own: &Record| {
            let found = op.versions.binary_search_by(|v| v.place.cmp(place));
            let wanted = found.ok().and_then(|at| op.versions.get(at));
            wanted.is_some_and(|wanted| wanted.is(own))
        };
        let (kept, lost): (BTreeMap<_, _>, BTreeMap<_, _>) = own
            .into_iter()
            .partition(|(place, (own, _))| is_kept(place, own));
        let fetched = op.versions.iter().filter(|v| !kept.contains_key(&v.place));
        let len = fetched.filter_map(|version| version.len()).sum();
        let gone: Vec<Record> = lost.values().map(|(own, _)| own.clone()).collect();
        outcome.bytes = self.admit(len, &gone)?;
        // In this order: of a key of a tree, the last counts.
        batch.remove(&self.lsm.objects, object_key);
        batch.remove(&self.lsm.nulls, object_key);
        for (place, (own, _)) in lost {
            batch.remove(&self.lsm.versions, version_key(object_key, &place));
            self.stage_loss(batch, Some(own), outcome);
        }
        for (index, version) in op.versions.into_iter().enumerate() {
            let at = version_key(object_key, &version.place);
            let record = match (kept.get(&version.place), version.taken) {
                (Some((own, is_current)), taken) => {
                    let unused = taken.as_ref().into_iter().flat_map(files_of);
                    outcome.freed.extend(unused.map(Freed::File));
                    if !is_current {
                        batch.remove(&self.lsm.versions, at.as_slice());
                    }
                    own.clone()
                }
                (None, Some(taken)) => self.stage_bytes_of(batch, taken)?,
                // What was here when it was compared is not any more.
                (None, None) => return Err(Error::Unsettled),
            };
            let value = record.encode()?;
            if index == 0 && record.payload != Payload::Marker {
                batch.insert(&self.lsm.objects, object_key, value);
                continue;
            }
            batch.insert(&self.lsm.versions, at, value);
            if record.id() == VersionId::Null {
                batch.insert(&self.lsm.nulls, object_key, version.place);
            }
        }
        self.stage_last(batch, object_key, (op.stamp, true), true);
        Ok(())
    }

    /// Refers to the bytes of an object that was taken in; gives its record.
    fn stage_bytes_of(&self, batch: &mut Batch, taken: Taken) -> Result<Record, Error> {
        match taken {
            Taken::Whole(record, id, bytes) => {
                match bytes {
                    PutBytes::Inline(bytes) => batch.insert(&self.lsm.inline, id.to_bytes(), bytes),
                    PutBytes::File(file) => batch.insert(&self.lsm.files, id.to_bytes(), file),
                }
                Ok(record)
            }
            Taken::Parts(record, id, manifest, files) => {
                for (file, described) in files {
                    batch.insert(&self.lsm.files, file.to_bytes(), described);
                }
                batch.insert(&self.lsm.manifests, id.to_bytes(), manifest.encode()?);
                Ok(record)
            }
            Taken::Marker(record) => Ok(record),
            Taken::Upload(_) => Err(Error::corrupt("an upload in place of an object")),
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
        batch: &mut Batch,
        (scope, object_key): (&Scope, Vec<u8>),
        (taken, again): (Taken, bool),
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        if let Taken::Upload(upload) = taken {
            let Some((id, _)) = scope.upload else {
                return Err(Error::corrupt("upload without a name"));
            };
            let key = upload_key(&scope.bucket, &scope.key, id);
            batch.insert(&self.lsm.uploads, key, upload.encode()?);
            return Ok(());
        }
        let lost = current(view, scope)?;
        outcome.bytes = self.admit(taken.len().unwrap_or(0), lost.as_slice())?;
        let record = self.stage_bytes_of(batch, taken)?;
        match lost.as_ref().map(|lost| lost.payload) {
            // What it consists of cannot be read, maybe.
            Some(Payload::Parts { id }) if again => {
                self.stage_lost_parts(view, batch, (&object_key, id), outcome)?;
            }
            _ => self.stage_loss(batch, lost, outcome),
        }
        let record = record.encode()?;
        match scope.upload {
            Some((id, Some(number))) => batch.insert(&self.lsm.parts, part_key(id, number), record),
            _ => {
                // The other has no versions of it.
                self.stage_clear(view, batch, &object_key, outcome)?;
                batch.remove(&self.lsm.deletions, object_key.as_slice());
                batch.insert(&self.lsm.objects, object_key, record);
            }
        }
        Ok(())
    }

    /// Removes an object's parts without its list of them: all files of its key that
    /// are not of an upload under way. Reads the records of all files. Readers that
    /// have the files open go on.
    fn stage_lost_parts(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        (object_key, manifest): (&[u8], FileId),
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        for file in view.files() {
            let (id, record) = file?;
            if record.object_key != object_key || is_of_upload(view, id, object_key)? {
                continue;
            }
            batch.remove(&self.lsm.files, id.to_bytes());
            outcome.bytes.given += record.len;
            outcome.freed.push(Freed::File(id));
        }
        batch.remove(&self.lsm.manifests, manifest.to_bytes());
        Ok(())
    }

    /// Ends a change that was prepared here, if what was taken in says that it is over.
    fn stage_over(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
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
        batch: &mut Batch,
        discard: DiscardOp,
    ) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for scope in &discard.scopes {
            if discard.of_gone && view.bucket(&scope.bucket)?.is_some() {
                continue;
            }
            let held = holds(view, scope)?;
            let goes = match discard.since {
                Some(since) => missed(since, held, None) == Missed::Remove,
                None => true,
            };
            if goes && held.is_some() {
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
        batch: &mut Batch,
        scope: &Scope,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        match scope.upload {
            None => {
                let key = scope.object_key();
                let lost: Option<Record> = view.object(&key)?;
                self.stage_loss(batch, lost, outcome);
                self.stage_clear(view, batch, &key, outcome)?;
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

/// The bucket, if it is in this life.
fn of_life(view: &View<'_>, bucket: &str, life: Stamp) -> Result<BucketInfo, Error> {
    let info = existing(view, bucket)?;
    match info.which.life == life {
        true => Ok(info),
        false => Err(Error::NoSuchBucket),
    }
}

/// All versions that a key has, and which of them is current.
pub(crate) fn own_versions(
    view: &View<'_>,
    object_key: &[u8],
) -> Result<BTreeMap<Place, (Record, bool)>, Error> {
    let current = view.object(object_key)?;
    let current = current.map(|record| Ok((record.place(), (record, true))));
    let others = view.versions_of(object_key);
    let others = others.map(|found| found.map(|(place, record)| (place, (record, false))));
    current.into_iter().chain(others).collect()
}
