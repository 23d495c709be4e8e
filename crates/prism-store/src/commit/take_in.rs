//! Copies that a store takes in from another replica, and scopes that it discards. No other
//! replica takes part. The commit decides whether a copy takes effect, because a change may
//! have come meanwhile.

use std::collections::BTreeMap;

use prism_cluster::replica::{Missed, Settlement, Stamp, is_over, missed};

use super::{
    op::{DiscardOp, Fetched, TakeInOp, Taken},
    prepare::current,
    stage::Stage,
};
use crate::{
    error::Error,
    keys::{part_key, version_key},
    layout::FileId,
    record::{Payload, Record},
    scope::Scope,
    types::{VersionId, VersionPlace, Versioning, place},
    version_summary::VersionSummary,
    view::{View, holds},
};

impl Stage<'_> {
    pub(super) fn take_in(&mut self, op: TakeInOp) -> Result<(), Error> {
        let since = op.since;
        let scope = op.scope;
        let stamp = op.stamp;
        let bucket = self.view.existing_bucket(&scope.bucket)?;
        if bucket.which.life != op.life {
            return Err(Error::NoSuchBucket);
        }
        let own = holds(self.view, &scope)?;
        let is_wanted = match since {
            Some(since) => missed(since, own, Some(stamp)) == Missed::Take,
            // Other versions have files of the same key.
            None if scope.upload.is_none() && bucket.versioning != Versioning::Never => false,
            None => own == Some(stamp),
        };
        // A part without its upload would never be found again.
        let is_wanted = is_wanted
            && match scope.upload {
                Some((id, Some(_))) => self.view.upload(&scope.object_key(), id)?.is_some(),
                _ => true,
            };
        match op.taken {
            taken if !is_wanted => self.outcome.freed.extend(taken.files()),
            Taken::Upload(id, upload) => self.insert_upload(&scope.object_key(), id, &upload)?,
            Taken::Versions(versions) => {
                self.replace_versions(&scope.object_key(), versions)?;
                self.note_last(&scope.object_key(), stamp);
            }
            Taken::Scope(fetched) => self.replace_scope(&scope, fetched, since.is_none())?,
        }
        self.outcome.is_taken = is_wanted;
        match since {
            Some(since) => self.end_if_over(&scope, since, Some(stamp)),
            None => Ok(()),
        }
    }

    /// Replaces all versions of a key by those of another replica.
    fn replace_versions(
        &mut self,
        object_key: &[u8],
        versions: Vec<(VersionSummary, Option<Fetched>)>,
    ) -> Result<(), Error> {
        let own = own_versions(self.view, object_key)?;
        let stays = |at: &VersionPlace, own: &Record| {
            let found = versions.binary_search_by_key(at, |(wanted, _)| place(wanted.at));
            let wanted = found.ok().and_then(|index| versions.get(index));
            wanted.is_some_and(|(wanted, _)| wanted.is(own))
        };
        let (staying, lost): (BTreeMap<_, _>, BTreeMap<_, _>) =
            own.into_iter().partition(|(at, (own, _))| stays(at, own));
        let fetched = versions.iter();
        let fetched = fetched.filter(|(version, _)| !staying.contains_key(&place(version.at)));
        let fetched = fetched.filter_map(|(_, fetched)| fetched.as_ref());
        let len = fetched.map(|fetched| fetched.record.len).sum();
        let given = lost.values().map(|(own, _)| own.given_back()).sum();
        self.admit(len, given)?;
        // These come first: the last write of a key counts.
        self.batch.remove(&self.lsm.objects, object_key);
        self.batch.remove(&self.lsm.nulls, object_key);
        for (place, (own, _)) in lost {
            self.remove_version(object_key, &place, false);
            self.lose(Some(own));
        }
        for (index, (version, fetched)) in versions.into_iter().enumerate() {
            let place = place(version.at);
            let at = version_key(object_key, &place);
            let record = match (staying.get(&place), fetched) {
                (Some((own, is_current)), fetched) => {
                    let unused = fetched.iter().flat_map(Fetched::files);
                    self.outcome.freed.extend(unused);
                    if !is_current {
                        self.batch.remove(&self.lsm.versions, at.as_slice());
                    }
                    own.clone()
                }
                (None, Some(fetched)) => self.insert_fetched(fetched)?,
                // The version was here when the replicas were compared, and is gone now.
                (None, None) => return Err(Error::Unsettled),
            };
            let value = record.encode()?;
            if index == 0 && record.payload != Payload::Marker {
                self.batch.insert(&self.lsm.objects, object_key, value);
                continue;
            }
            self.batch.insert(&self.lsm.versions, at, value);
            if record.id() == VersionId::Null {
                self.batch.insert(&self.lsm.nulls, object_key, place);
            }
        }
        Ok(())
    }

    fn insert_fetched(&mut self, fetched: Fetched) -> Result<Record, Error> {
        for (id, bytes) in fetched.bytes {
            self.insert_bytes(id, bytes);
        }
        if let Some((id, manifest)) = fetched.manifest {
            let manifests = &self.lsm.manifests;
            self.batch
                .insert(manifests, id.to_bytes(), manifest.encode()?);
        }
        Ok(fetched.record)
    }

    /// Replaces an object or a part. The present one `is_damaged`, or older.
    fn replace_scope(
        &mut self,
        scope: &Scope,
        fetched: Fetched,
        is_damaged: bool,
    ) -> Result<(), Error> {
        let object_key = scope.object_key();
        let lost = current(self.view, scope)?;
        let given = lost.as_ref().map_or(0, Record::given_back);
        self.admit(fetched.record.len, given)?;
        let record = self.insert_fetched(fetched)?;
        match lost.as_ref().map(|lost| lost.payload) {
            // The list of its parts may be unreadable.
            Some(Payload::Parts { id }) if is_damaged => {
                self.lose_unlisted_parts(&object_key, id)?;
            }
            _ => self.lose(lost),
        }
        match scope.upload {
            Some((id, Some(number))) => self.insert_part(id, number, &record),
            _ => {
                // The other replica has no versions of the key.
                self.clear_versions(&object_key)?;
                let deletions = &self.lsm.deletions;
                self.batch.remove(deletions, object_key.as_slice());
                let objects = &self.lsm.objects;
                let value = record.encode()?;
                self.batch.insert(objects, object_key, value);
                Ok(())
            }
        }
    }

    /// Removes the parts of an object without the list of them: all files of its key that no
    /// upload has. Reads the records of all files. Readers that have the files open go on.
    fn lose_unlisted_parts(&mut self, object_key: &[u8], manifest: FileId) -> Result<(), Error> {
        let view = self.view;
        for file in view.files_after(None) {
            let (id, record) = file?;
            if record.object_key == object_key && view.upload_of_file(id, object_key)?.is_none() {
                self.lose_file(id, record.len);
            }
        }
        self.batch.remove(&self.lsm.manifests, manifest.to_bytes());
        Ok(())
    }

    /// Ends the open change of a scope, if the copy taken in shows that it is over.
    fn end_if_over(
        &mut self,
        scope: &Scope,
        since: u64,
        taken: Option<Stamp>,
    ) -> Result<(), Error> {
        let open = self.view.pending(scope)?;
        match open.filter(|open| is_over(since, open.pending(), taken)) {
            Some(open) => self.end(open, Settlement::Drop),
            None => Ok(()),
        }
    }

    pub(super) fn discard(&mut self, discard: &DiscardOp) -> Result<(), Error> {
        for scope in &discard.scopes {
            if discard.of_gone && self.view.bucket(&scope.bucket)?.is_some() {
                continue;
            }
            let own = holds(self.view, scope)?;
            let goes = match discard.since {
                Some(since) => missed(since, own, None) == Missed::Remove,
                None => true,
            };
            if goes && own.is_some() {
                self.discard_scope(scope)?;
            }
            // A scope that has no place here has no open change either.
            let since = discard.since.unwrap_or(u64::MAX);
            self.end_if_over(scope, since, None)?;
        }
        Ok(())
    }

    fn discard_scope(&mut self, scope: &Scope) -> Result<(), Error> {
        match scope.upload {
            None => {
                let key = scope.object_key();
                self.lose(self.view.object(&key)?);
                self.clear_versions(&key)?;
                self.batch.remove(&self.lsm.objects, key.as_slice());
                self.batch.remove(&self.lsm.deletions, key);
            }
            Some((id, None)) => {
                self.remove_upload(&scope.object_key(), id);
            }
            Some((id, Some(number))) => {
                self.lose(self.view.part(id, number)?);
                self.batch.remove(&self.lsm.parts, part_key(id, number));
            }
        }
        Ok(())
    }
}

/// All versions of a key, and whether each is current.
pub(crate) fn own_versions(
    view: &View<'_>,
    object_key: &[u8],
) -> Result<BTreeMap<VersionPlace, (Record, bool)>, Error> {
    let current = view.object(object_key)?;
    let current = current.map(|record| Ok((record.place(), (record, true))));
    let others = view.versions_of(object_key);
    let others = others.map(|found| found.map(|(place, record)| (place, (record, false))));
    current.into_iter().chain(others).collect()
}
