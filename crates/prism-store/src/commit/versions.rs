//! Changes of objects where versions are kept: what becomes of those that are
//! replaced, deleted or restored, in the batch of the change itself.

use fjall::OwnedWriteBatch;
use prism_replica::Stamp;

use super::{
    Committer, now_us,
    op::{Change, DeleteOp, Outcome},
    stage::{check, existing},
};
use crate::{
    error::Error,
    record::{Payload, Record},
    types::ObjectMeta,
    versions::{Place, Removed, VersionId, Versioning, place, version_key},
    view::View,
};

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
    pub(super) fn succession(
        &self,
        view: &View<'_>,
        (versioning, stamp): (Versioning, Option<Stamp>),
        object_key: &[u8],
        current: Option<Record>,
    ) -> Result<Succession, Error> {
        let mut above = current.as_ref().map(|record| record.stamp);
        let (mut moved, mut lost, mut lost_null) = (None, Vec::new(), None);
        if versioning != Versioning::Never {
            let newest = view.versions_of(object_key).next().transpose()?;
            above = above.max(newest.map(|(_, record)| record.stamp));
        }
        match (versioning, current) {
            (Versioning::Enabled, current) => moved = current,
            (Versioning::Suspended, Some(record)) if record.id() != VersionId::Null => {
                moved = Some(record);
            }
            (_, current) => lost.extend(current),
        }
        if versioning == Versioning::Suspended {
            lost_null = view.null_place(object_key)?;
            if let Some(place) = &lost_null {
                lost.extend(view.version(&version_key(object_key, place))?);
            }
        }
        let moved = moved.map(|record| {
            Ok::<_, Error>(Moved {
                place: record.place(),
                is_null: record.id() == VersionId::Null,
                record: record.encode()?,
            })
        });
        let stamp = self.given(stamp, above);
        Ok(Succession {
            stamp,
            version: match versioning {
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
        batch: &mut OwnedWriteBatch,
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
    }

    /// Deletes objects and versions. On error the batch is as before.
    pub(super) fn stage_delete_versions(
        &self,
        view: &View<'_>,
        batch: &mut OwnedWriteBatch,
        how: (Versioning, Option<Stamp>),
        delete: &DeleteOp,
    ) -> Result<Outcome, Error> {
        let named = delete
            .versions
            .iter()
            .copied()
            .chain(std::iter::repeat(None));
        let mut planned = Vec::with_capacity(delete.object_keys.len());
        for (object_key, version) in delete.object_keys.iter().zip(named) {
            let plan = match version {
                Some(id) => self.plan_removal(view, delete, object_key, id)?,
                None => self.plan_marker(view, how, delete, object_key)?,
            };
            planned.push((object_key, plan));
        }
        let mut outcome = Outcome::default();
        for (object_key, plan) in planned {
            let removed = self.stage_plan(batch, object_key, plan, &mut outcome);
            outcome.removed.push(removed);
        }
        Ok(outcome)
    }

    fn plan_marker(
        &self,
        view: &View<'_>,
        how: (Versioning, Option<Stamp>),
        delete: &DeleteOp,
        object_key: &[u8],
    ) -> Result<Plan, Error> {
        let current = view.object(object_key)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if how.0 == Versioning::Never && current.is_none() {
            return Ok(Plan::Nothing(None));
        }
        let succession = self.succession(view, how, object_key, current)?;
        let Some(id) = succession.version else {
            return Ok(Plan::Gone(succession));
        };
        let marker = Record {
            stamp: succession.stamp,
            version: Some(id),
            payload: Payload::Marker,
            len: 0,
            meta: ObjectMeta {
                created_ms: now_us() / 1000,
                ..ObjectMeta::default()
            },
        };
        Ok(Plan::Marked {
            succession,
            id,
            place: marker.place(),
            marker: marker.encode()?,
        })
    }

    fn plan_removal(
        &self,
        view: &View<'_>,
        delete: &DeleteOp,
        object_key: &[u8],
        id: VersionId,
    ) -> Result<Plan, Error> {
        let (record, at) = match version_of(view, &delete.bucket, object_key, id) {
            Ok(found) => found,
            Err(Error::NoSuchVersion) => {
                check(delete.condition.as_ref(), None)?;
                return Ok(Plan::Nothing(Some(id)));
            }
            Err(error) => return Err(error),
        };
        check(delete.condition.as_ref(), Some(&record))?;
        let is_current = at.is_none();
        // What is left may become current: then it is an object in its place again.
        let mut next = None;
        if is_current || view.object(object_key)?.is_none() {
            let left = view.versions_of(object_key);
            let mut left =
                left.filter(|found| !matches!(found, Ok((place, _)) if at == Some(*place)));
            next = left.next().transpose()?;
            // A version behind the newest leaves the newest where it is.
            let is_newest = at.is_none_or(|at| next.as_ref().is_none_or(|(place, _)| at < *place));
            next = next.filter(|(_, record)| is_newest && record.payload != Payload::Marker);
        }
        let promoted = next.map(|(place, record)| {
            let is_null = record.id() == VersionId::Null;
            Ok::<_, Error>((place, is_null, record.encode()?))
        });
        Ok(Plan::Removed {
            record,
            at,
            promoted: promoted.transpose()?,
        })
    }

    fn stage_plan(
        &self,
        batch: &mut OwnedWriteBatch,
        object_key: &[u8],
        plan: Plan,
        outcome: &mut Outcome,
    ) -> Option<Removed> {
        match plan {
            Plan::Nothing(id) => id.map(|version| Removed {
                version,
                is_marker: false,
            }),
            Plan::Gone(succession) => {
                batch.remove(&self.lsm.objects, object_key);
                self.stage_succession(batch, object_key, succession, outcome);
                None
            }
            Plan::Marked {
                succession,
                id,
                place,
                marker,
            } => {
                batch.remove(&self.lsm.objects, object_key);
                self.stage_succession(batch, object_key, succession, outcome);
                batch.insert(&self.lsm.versions, version_key(object_key, &place), marker);
                if id == VersionId::Null {
                    batch.insert(&self.lsm.nulls, object_key, place);
                }
                Some(Removed {
                    version: id,
                    is_marker: true,
                })
            }
            Plan::Removed {
                record,
                at,
                promoted,
            } => {
                let removed = Removed {
                    version: record.id(),
                    is_marker: record.payload == Payload::Marker,
                };
                match at {
                    None => batch.remove(&self.lsm.objects, object_key),
                    Some(place) => {
                        let is_null = removed.version == VersionId::Null;
                        self.stage_removal(batch, object_key, &place, is_null);
                    }
                }
                self.stage_loss(batch, Some(record), outcome);
                if let Some((place, is_null, record)) = promoted {
                    self.stage_removal(batch, object_key, &place, is_null);
                    batch.insert(&self.lsm.objects, object_key, record);
                }
                Some(removed)
            }
        }
    }

    /// Changes the metadata of an object, or of a version at this place.
    pub(super) fn stage_change(
        &self,
        batch: &mut OwnedWriteBatch,
        object_key: Vec<u8>,
        mut record: Record,
        (at, stamp): (Option<Place>, Option<Stamp>),
        change: Change,
    ) -> Result<Outcome, Error> {
        if record.payload == Payload::Marker {
            return Err(Error::IsDeleteMarker);
        }
        change(&mut record.meta);
        // A null version keeps its place by its stamp: see `Record::place`.
        if at.is_none() || record.id() != VersionId::Null {
            record.stamp = self.given(stamp, Some(record.stamp));
        }
        let value = record.encode()?;
        match at {
            None => batch.insert(&self.lsm.objects, object_key, value),
            Some(place) => {
                batch.insert(&self.lsm.versions, version_key(&object_key, &place), value);
            }
        }
        Ok(Outcome {
            stamp: record.stamp,
            version: record.version,
            ..Outcome::default()
        })
    }

    fn stage_removal(
        &self,
        batch: &mut OwnedWriteBatch,
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

/// What a deletion comes to.
enum Plan {
    /// There was nothing; a version that was named is answered as gone.
    Nothing(Option<VersionId>),
    /// The object goes, and no versions are kept.
    Gone(Succession),
    /// A delete marker takes its place.
    Marked {
        succession: Succession,
        id: VersionId,
        place: Place,
        marker: Vec<u8>,
    },
    /// A version goes, from this place or from being current, and another may
    /// become current.
    Removed {
        record: Record,
        at: Option<Place>,
        promoted: Option<(Place, bool, Vec<u8>)>,
    },
}

/// A version, and where it lies unless it is current.
///
/// # Errors
/// [`Error::NoSuchVersion`], [`Error::NoSuchBucket`].
pub(crate) fn version_of(
    view: &View<'_>,
    bucket: &str,
    object_key: &[u8],
    id: VersionId,
) -> Result<(Record, Option<Place>), Error> {
    if let Some(record) = view.object(object_key)?.filter(|record| record.id() == id) {
        return Ok((record, None));
    }
    let at = match id {
        VersionId::Of(stamp) => Some(place(stamp)),
        VersionId::Null => view.null_place(object_key)?,
    };
    if let Some(place) = at
        && let Some(record) = view.version(&version_key(object_key, &place))?
        && record.id() == id
    {
        return Ok((record, at));
    }
    existing(view, bucket)?;
    Err(Error::NoSuchVersion)
}
