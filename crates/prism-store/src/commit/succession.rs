//! The effect of a new state of a key on its versions: one moves, others are lost, and the
//! stamp of the key's last change is noted. All in the batch of the change itself.

use prism_replica::Stamp;

use super::{
    op::Given,
    stage::{Stage, effective_versioning},
};
use crate::{
    error::Error,
    keys::version_key,
    record::Record,
    types::{BucketInfo, Place, VersionId, Versioning},
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
    null: Option<(Place, Option<Record>)>,
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
        (self.outcome.stamp, self.outcome.version) = (stamp, version);
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
        let (key, value) = (version_key(object_key, &place), record.encode()?);
        self.batch.insert(&self.lsm.versions, key, value);
        if record.id() == VersionId::Null {
            self.batch.insert(&self.lsm.nulls, object_key, place);
        }
        Ok(())
    }

    pub(super) fn remove_version(&mut self, object_key: &[u8], place: &Place, is_null: bool) {
        let key = version_key(object_key, place);
        self.batch.remove(&self.lsm.versions, key);
        if is_null {
            self.batch.remove(&self.lsm.nulls, object_key);
        }
    }
}
