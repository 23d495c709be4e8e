//! The versions of a key. A new state of the key moves one and loses others, deletions and
//! changes of metadata name one, and the stamp of the key's last change is noted. All in the
//! batch of the change itself.

use prism_cluster::replica::Stamp;

use super::{
    op::{Condition, DeleteOp, Given},
    stage::{Stage, check, effective_versioning, present},
};
use crate::{
    error::Error,
    keys::{bucket_of, version_key},
    record::{Payload, Record},
    types::{BucketInfo, ObjectMeta, Removed, VersionId, VersionPlace, Versioning},
    view::View,
};

/// How a change treats versions, and its stamp if other replicas make it as well.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) versioning: Versioning,
    pub(super) stamp: Option<Stamp>,
}

impl How {
    /// As it was agreed, or as the bucket says.
    pub(super) fn of_bucket(
        view: &View<'_>,
        bucket: &BucketInfo,
        given: Option<Given>,
        object_key: &[u8],
    ) -> Result<Self, Error> {
        let versioning = given.map_or(bucket.versioning, |given| given.versioning);
        Ok(Self {
            versioning: effective_versioning(view, versioning, object_key)?,
            stamp: given.map(|given| given.stamp),
        })
    }
}

/// The state of a key before a change.
#[derive(Default)]
pub(super) struct Base {
    current: Option<Record>,
    /// The stamp of the last change of any of its versions.
    last: Option<Stamp>,
    /// The null version and its place, unless it is current.
    null: Option<(VersionPlace, Option<Record>)>,
}

impl Base {
    pub(super) fn of_key(view: &View<'_>, object_key: &[u8]) -> Result<Self, Error> {
        let null = view.null_place(object_key)?.map(|place| {
            let record = view.version(object_key, &place)?;
            Ok::<_, Error>((place, record))
        });
        Ok(Self {
            current: view.object(object_key)?,
            last: view.change(object_key)?,
            null: null.transpose()?,
        })
    }

    /// The state of a key whose current object is known. Without versions there is no more
    /// to it.
    pub(super) fn for_change(
        view: &View<'_>,
        how: How,
        object_key: &[u8],
        current: Option<Record>,
    ) -> Result<Self, Error> {
        match how.versioning {
            Versioning::Never => Ok(Self {
                current,
                ..Self::default()
            }),
            _ => Self::of_key(view, object_key),
        }
    }
}

/// The stamp and the name of a key's new state.
pub(super) struct Successor {
    pub(super) stamp: Stamp,
    pub(super) version: Option<VersionId>,
}

impl Stage<'_> {
    pub(super) fn delete(&mut self, delete: &DeleteOp, given: Option<Given>) -> Result<(), Error> {
        let bucket = self.view.existing_bucket(&delete.bucket)?;
        for (object_key, version) in &delete.deletions {
            let how = How::of_bucket(self.view, &bucket, given, object_key)?;
            let removed = match version {
                Some(id) => Some(self.delete_version(delete, object_key, how, *id)?),
                None => self.delete_current(delete, object_key, how)?,
            };
            self.outcome.removed.push(removed);
        }
        Ok(())
    }

    fn delete_current(
        &mut self,
        delete: &DeleteOp,
        object_key: &[u8],
        how: How,
    ) -> Result<Option<Removed>, Error> {
        let current = self.view.object(object_key)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if how.versioning == Versioning::Never && current.is_none() {
            return Ok(None);
        }
        let base = Base::for_change(self.view, how, object_key, current)?;
        self.hide(object_key, how, base)
    }

    /// Deletes an object: a delete marker hides it, or without versions it goes.
    pub(super) fn hide(
        &mut self,
        object_key: &[u8],
        how: How,
        base: Base,
    ) -> Result<Option<Removed>, Error> {
        let next = self.make_way(object_key, how, base)?;
        self.batch.remove(&self.lsm.objects, object_key);
        let Some(version) = next.version else {
            self.remember_deletion(object_key, how.stamp);
            return Ok(None);
        };
        // The time is that of the stamp, so that all replicas have the same.
        let created_ms = next.stamp.time_us / 1000;
        let marker = Record::marker(next.stamp, Some(version), created_ms);
        self.insert_version(object_key, &marker)?;
        Ok(Some(Removed {
            version,
            is_marker: true,
        }))
    }

    fn delete_version(
        &mut self,
        delete: &DeleteOp,
        object_key: &[u8],
        how: How,
        version: VersionId,
    ) -> Result<Removed, Error> {
        let condition = delete.condition.as_ref();
        if !check_version(self.view, object_key, version, condition)? {
            return Ok(Removed::version(version));
        }
        self.remove_named(object_key, how, version)
    }

    /// Removes a version.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`].
    pub(super) fn remove_named(
        &mut self,
        object_key: &[u8],
        how: How,
        version: VersionId,
    ) -> Result<Removed, Error> {
        let view = self.view;
        let (record, at) = version_of(view, object_key, version)?;
        let current = view.object(object_key)?;
        let others = view.versions_of(object_key);
        let mut others =
            others.filter(|found| !matches!(found, Ok((place, _)) if at == Some(*place)));
        let newest = others.next().transpose()?;
        let has_current = current.is_some() && at.is_some();
        let is_last = newest.is_none() && !has_current;
        let above = view
            .change(object_key)?
            .max(current.map(|current| current.stamp));
        match at {
            None => self.batch.remove(&self.lsm.objects, object_key),
            Some(place) => self.remove_version(object_key, &place, version == VersionId::Null),
        }
        // The newest version that is left becomes current, unless it is a delete marker. The
        // removal of an older version changes nothing about the newest one.
        if let Some((place, next)) = newest
            && !has_current
            && at.is_none_or(|at| at < place)
            && next.payload != Payload::Marker
        {
            self.remove_version(object_key, &place, next.id() == VersionId::Null);
            let objects = &self.lsm.objects;
            let value = next.encode()?;
            self.batch.insert(objects, object_key, value);
        }
        if is_last {
            self.batch.remove(&self.lsm.changes, object_key);
            self.remember_deletion(object_key, how.stamp);
        } else {
            let stamp = self.stamp(how.stamp, above);
            self.note_last(object_key, stamp);
        }
        let is_marker = record.payload == Payload::Marker;
        self.lose(Some(record));
        Ok(Removed { version, is_marker })
    }

    /// Remembers the deletion of a key, if other replicas make it as well.
    pub(super) fn remember_deletion(&mut self, object_key: &[u8], given: Option<Stamp>) {
        if let Some(stamp) = given {
            let deletions = &self.lsm.deletions;
            self.batch.insert(deletions, object_key, stamp.to_bytes());
        }
    }

    pub(super) fn change_meta(
        &mut self,
        how: How,
        object_key: &[u8],
        version: Option<VersionId>,
        change: impl FnOnce(&mut ObjectMeta),
    ) -> Result<(), Error> {
        let (mut record, at) = match version {
            None => (present(self.view, object_key)?, None),
            Some(id) => version_of(self.view, object_key, id)?,
        };
        if record.payload == Payload::Marker {
            return Err(Error::IsDeleteMarker);
        }
        change(&mut record.meta);
        let above = Some(record.stamp).max(self.view.change(object_key)?);
        record.stamp = self.stamp(how.stamp, above);
        let value = record.encode()?;
        if how.versioning != Versioning::Never {
            self.note_last(object_key, record.stamp);
        }
        match at {
            None => self.batch.insert(&self.lsm.objects, object_key, value),
            Some(place) => {
                let key = version_key(object_key, &place);
                self.batch.insert(&self.lsm.versions, key, value);
            }
        }
        self.outcome.version = record.version;
        Ok(())
    }

    /// Moves and removes what a new state of a key replaces. The current object stays in its
    /// tree: the caller overwrites or removes it.
    pub(super) fn make_way(
        &mut self,
        object_key: &[u8],
        how: How,
        base: Base,
    ) -> Result<Successor, Error> {
        let current_stamp = base.current.as_ref().map(|record| record.stamp);
        let stamp = self.stamp(how.stamp, current_stamp.max(base.last));
        let version = match how.versioning {
            Versioning::Never => None,
            Versioning::Enabled => Some(VersionId::Of(stamp)),
            Versioning::Suspended => Some(VersionId::Null),
        };
        if let (Some(VersionId::Null), Some((place, null))) = (version, base.null) {
            self.lose(null);
            self.remove_version(object_key, &place, true);
        }
        match base.current {
            // A version replaces another one of the same name.
            Some(record) if version.is_some_and(|version| version != record.id()) => {
                self.insert_version(object_key, &record)?;
            }
            replaced => self.lose(replaced),
        }
        if version.is_some() {
            self.note_last(object_key, stamp);
        }
        Ok(Successor { stamp, version })
    }

    /// Makes a record the current object of its key.
    pub(super) fn make_current(
        &mut self,
        object_key: &[u8],
        mut record: Record,
        how: How,
        base: Base,
    ) -> Result<(), Error> {
        if how.stamp.is_some() {
            self.batch.remove(&self.lsm.deletions, object_key);
        }
        let Successor { stamp, version } = self.make_way(object_key, how, base)?;
        (record.stamp, record.version) = (stamp, version);
        self.outcome.version = version;
        let value = record.encode()?;
        self.batch.insert(&self.lsm.objects, object_key, value);
        Ok(())
    }

    /// Notes the stamp of the last change of a key that has versions.
    pub(super) fn note_last(&mut self, object_key: &[u8], stamp: Stamp) {
        let stamp = stamp.to_bytes();
        self.batch.insert(&self.lsm.changes, object_key, stamp);
        self.batch.remove(&self.lsm.deletions, object_key);
    }

    /// Removes all versions of a key that are not current.
    pub(super) fn clear_versions(&mut self, object_key: &[u8]) -> Result<(), Error> {
        let view = self.view;
        if view.change(object_key)?.is_none() {
            return Ok(());
        }
        for found in view.versions_of(object_key) {
            let (place, record) = found?;
            self.remove_version(object_key, &place, false);
            self.lose(Some(record));
        }
        self.batch.remove(&self.lsm.nulls, object_key);
        self.batch.remove(&self.lsm.changes, object_key);
        Ok(())
    }

    /// Stores a version that is not current.
    pub(super) fn insert_version(
        &mut self,
        object_key: &[u8],
        record: &Record,
    ) -> Result<(), Error> {
        let place = record.place();
        let key = version_key(object_key, &place);
        let value = record.encode()?;
        self.batch.insert(&self.lsm.versions, key, value);
        if record.id() == VersionId::Null {
            self.batch.insert(&self.lsm.nulls, object_key, place);
        }
        Ok(())
    }

    pub(super) fn remove_version(
        &mut self,
        object_key: &[u8],
        place: &VersionPlace,
        is_null: bool,
    ) {
        let key = version_key(object_key, place);
        self.batch.remove(&self.lsm.versions, key);
        if is_null {
            self.batch.remove(&self.lsm.nulls, object_key);
        }
    }
}

/// Checks the condition of a version's deletion. Says whether there is the version: one that is
/// missing is answered as deleted.
pub(crate) fn check_version(
    view: &View<'_>,
    object_key: &[u8],
    id: VersionId,
    condition: Option<&Condition>,
) -> Result<bool, Error> {
    let record = match version_of(view, object_key, id) {
        Ok((record, _)) => Some(record),
        Err(Error::NoSuchVersion) => None,
        Err(error) => return Err(error),
    };
    check(condition, record.as_ref()).map(|()| record.is_some())
}

/// A version, and its place unless it is current.
///
/// # Errors
/// [`Error::NoSuchVersion`], [`Error::NoSuchBucket`].
pub(crate) fn version_of(
    view: &View<'_>,
    object_key: &[u8],
    id: VersionId,
) -> Result<(Record, Option<VersionPlace>), Error> {
    if let Some(record) = view.object(object_key)?.filter(|record| record.id() == id) {
        return Ok((record, None));
    }
    let at = view.place_of(object_key, id)?;
    if let Some(place) = at
        && let Some(record) = view.version(object_key, &place)?
        && record.id() == id
    {
        return Ok((record, at));
    }
    view.existing_bucket(bucket_of(object_key))?;
    Err(Error::NoSuchVersion)
}
