//! What a new state of a key does to those that it has, where versions are kept: which
//! moves, which is lost, and what its last change was. In the batch of the change itself.

use prism_replica::Stamp;

use super::{Committer, Given, op::Outcome};
use crate::{
    error::Error,
    lsm::Batch,
    record::Record,
    types::BucketInfo,
    versions::{Place, VersionId, Versioning, version_key},
    view::View,
};

/// How a change treats versions, and its stamp if others make it as well.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub(super) versioning: Versioning,
    pub(super) stamp: Option<Stamp>,
}

impl How {
    pub(super) fn given(given: Given) -> Self {
        Self {
            versioning: given.versioning,
            stamp: Some(given.stamp),
        }
    }

    /// As it was agreed, or as the bucket says.
    pub(super) fn of(
        view: &View<'_>,
        bucket: &BucketInfo,
        given: Option<Given>,
        object_key: &[u8],
    ) -> Result<Self, Error> {
        let versioning = given.map_or(bucket.versioning, |given| given.versioning);
        Ok(Self {
            versioning: mode(view, versioning, object_key)?,
            stamp: given.map(|given| given.stamp),
        })
    }
}

/// How versions of a key are treated in a bucket that treats them so. Where it says
/// that it never kept any, and others have kept some, it has not heard of it yet.
pub(crate) fn mode(
    view: &View<'_>,
    versioning: Versioning,
    object_key: &[u8],
) -> Result<Versioning, Error> {
    match versioning {
        Versioning::Never if view.change(object_key)?.is_some() => Ok(Versioning::Enabled),
        versioning => Ok(versioning),
    }
}

/// What a key has before a change.
#[derive(Default)]
pub(super) struct Base {
    current: Option<Record>,
    /// The last change of any of its versions.
    last: Option<Stamp>,
    /// Where the null version lies, unless it is current.
    null_place: Option<Place>,
    null: Option<Record>,
}

impl Base {
    pub(super) fn of(view: &View<'_>, object_key: &[u8]) -> Result<Self, Error> {
        let null_place = view.null_place(object_key)?;
        let null = null_place.map(|place| view.version(&version_key(object_key, &place)));
        Ok(Self {
            current: view.object(object_key)?,
            last: view.change(object_key)?,
            null_place,
            null: null.transpose()?.flatten(),
        })
    }

    /// The same for a change that is made so, of a key with this current object.
    pub(super) fn with(
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
            _ => Self::of(view, object_key),
        }
    }
}

/// What has to go before a key gets a new current state, and how that is named.
pub(super) struct Succession {
    pub(super) stamp: Stamp,
    pub(super) version: Option<VersionId>,
    /// The object that was current and becomes a version.
    moved: Option<Moved>,
    /// Those that are lost.
    lost: Vec<Record>,
    /// Where one of them lies, the null version.
    lost_null: Option<Place>,
}

impl Succession {
    /// Objects whose bytes go.
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

impl Committer {
    /// What a new state of a key does to what the key has. Changes nothing yet.
    pub(super) fn succession(&self, how: How, base: Base) -> Result<Succession, Error> {
        let current_stamp = base.current.as_ref().map(|record| record.stamp);
        let stamp = self.given(how.stamp, current_stamp.max(base.last));
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
            moved: moved.transpose()?,
            lost,
            lost_null,
        })
    }

    /// Moves and removes what a new state replaces. The current object stays in
    /// its tree, for the caller to overwrite or remove.
    pub(super) fn stage_succession(
        &self,
        batch: &mut Batch,
        object_key: &[u8],
        succession: Succession,
        outcome: &mut Outcome,
    ) {
        for record in succession.lost {
            self.stage_loss(batch, Some(record), outcome);
        }
        if let Some(place) = succession.lost_null {
            self.stage_removal(batch, object_key, &place, true);
        }
        if let Some(moved) = succession.moved {
            let key = version_key(object_key, &moved.place);
            batch.insert(&self.lsm.versions, key, moved.record);
            if moved.is_null {
                batch.insert(&self.lsm.nulls, object_key, moved.place);
            }
        }
        if succession.version.is_some() {
            self.stage_last(batch, object_key, (succession.stamp, true), true);
        }
    }

    /// Notes the last change of a key, which has versions left or not; that all are gone
    /// is remembered where others make the change as well.
    pub(super) fn stage_last(
        &self,
        batch: &mut Batch,
        object_key: &[u8],
        (stamp, is_given): (Stamp, bool),
        has_versions: bool,
    ) {
        let (there, gone) = (&self.lsm.changes, &self.lsm.deletions);
        match has_versions {
            true => {
                batch.insert(there, object_key, stamp.to_bytes());
                batch.remove(gone, object_key);
            }
            false => {
                batch.remove(there, object_key);
                if is_given {
                    batch.insert(gone, object_key, stamp.to_bytes());
                }
            }
        }
    }

    /// Removes all versions of a key that are not current.
    pub(super) fn stage_clear(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        object_key: &[u8],
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        if view.change(object_key)?.is_none() {
            return Ok(());
        }
        for found in view.versions_of(object_key) {
            let (place, record) = found?;
            batch.remove(&self.lsm.versions, version_key(object_key, &place));
            self.stage_loss(batch, Some(record), outcome);
        }
        batch.remove(&self.lsm.nulls, object_key);
        batch.remove(&self.lsm.changes, object_key);
        Ok(())
    }

    pub(super) fn stage_removal(
        &self,
        batch: &mut Batch,
        object_key: &[u8],
        place: &Place,
        is_null: bool,
    ) {
        batch.remove(&self.lsm.versions, version_key(object_key, place));
        if is_null {
            batch.remove(&self.lsm.nulls, object_key);
        }
    }
}
