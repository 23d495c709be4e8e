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
    /// The place of the null version, unless it is current.
    null_place: Option<Place>,
    null: Option<Record>,
}

impl Base {
    pub(super) fn of_key(view: &View<'_>, object_key: &[u8]) -> Result<Self, Error> {
        let null_place = view.null_place(object_key)?;
        let null = null_place.map(|place| view.version(&version_key(object_key, &place)));
        Ok(Self {
            current: view.object(object_key)?,
            last: view.change(object_key)?,
            null_place,
            null: null.transpose()?.flatten(),
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

/// The stamp and the name of a key's new state, and what it replaces.
pub(super) struct Succession {
    pub(super) stamp: Stamp,
    pub(super) version: Option<VersionId>,
    /// Whether other replicas make the change as well.
    is_given: bool,
    /// The object that was current and becomes a version.
    moved: Option<Moved>,
    /// The records that are lost.
    lost: Vec<Record>,
    /// The place of the null version, if it is one of the lost records.
    lost_null: Option<Place>,
}

impl Succession {
    /// The records whose bytes go.
    pub(super) fn lost(&self) -> &[Record] {
        &self.lost
    }
}

struct Moved {
    place: Place,
    is_null: bool,
    /// Encoded [`Record`].
    record: Vec<u8>,
}

impl Stage<'_> {
    /// Plans the replacement of a key's state. Changes nothing yet.
    pub(super) fn succession(&self, how: How, base: Base) -> Result<Succession, Error> {
        let current_stamp = base.current.as_ref().map(|record| record.stamp);
        let stamp = self.stamp(how.stamp, current_stamp.max(base.last));
        let (mut moved, mut lost, mut lost_null) = (None, Vec::new(), None);
        match (how.versioning, base.current) {
            (Versioning::Enabled, current) => moved = current,
            (Versioning::Suspended, Some(record)) if record.id() != VersionId::Null => {
                moved = Some(record);
            }
            (_, current) => lost.extend(current),
        }
        if how.versioning == Versioning::Suspended {
            lost_null = base.null_place;
            lost.extend(base.null);
        }
        let moved = moved.map(|record| {
            Ok::<_, Error>(Moved {
                place: record.place(),
                is_null: record.id() == VersionId::Null,
                record: record.encode()?,
            })
        });
        Ok(Succession {
            stamp,
            version: match how.versioning {
                Versioning::Never => None,
                Versioning::Enabled => Some(VersionId::Of(stamp)),
                Versioning::Suspended => Some(VersionId::Null),
            },
            is_given: how.stamp.is_some(),
            moved: moved.transpose()?,
            lost,
            lost_null,
        })
    }

    /// Makes a record the current object of its key, with the succession's stamp and name.
    pub(super) fn make_current(
        &mut self,
        object_key: &[u8],
        mut record: Record,
        succession: Succession,
    ) -> Result<(), Error> {
        record.stamp = succession.stamp;
        record.version = succession.version;
        let value = record.encode()?;
        self.outcome.stamp = record.stamp;
        self.outcome.version = record.version;
        if succession.is_given {
            self.batch.remove(&self.lsm.deletions, object_key);
        }
        self.make_way(object_key, succession);
        self.batch.insert(&self.lsm.objects, object_key, value);
        Ok(())
    }

    /// Moves and removes what a new state replaces. The current object stays in its tree: the
    /// caller overwrites or removes it.
    pub(super) fn make_way(&mut self, object_key: &[u8], succession: Succession) {
        self.lose(succession.lost);
        if let Some(place) = succession.lost_null {
            self.remove_version(object_key, &place, true);
        }
        if let Some(moved) = succession.moved {
            let key = version_key(object_key, &moved.place);
            self.batch.insert(&self.lsm.versions, key, moved.record);
            if moved.is_null {
                self.batch.insert(&self.lsm.nulls, object_key, moved.place);
            }
        }
        if succession.version.is_some() {
            self.note_last(object_key, succession.stamp);
        }
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
            let key = version_key(object_key, &place);
            self.batch.remove(&self.lsm.versions, key);
            self.lose(Some(record));
        }
        self.batch.remove(&self.lsm.nulls, object_key);
        self.batch.remove(&self.lsm.changes, object_key);
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
