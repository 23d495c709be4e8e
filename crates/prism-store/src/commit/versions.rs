//! Deletions and changes of metadata where versions are kept, in the batch of the change
//! itself.

use prism_replica::Stamp;

use super::{
    Committer, Given,
    op::{Change, DeleteOp, Outcome},
    stage::{check, existing, present},
    succession::{Base, How, Succession},
};
use crate::{
    error::Error,
    lsm::Batch,
    record::{Payload, Record},
    types::{BucketInfo, ObjectMeta},
    versions::{Place, Removed, VersionId, Versioning, place, version_key},
    view::View,
};

impl Committer {
    /// Deletes objects and versions.
    pub(super) fn stage_delete_versions(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        (bucket, given): (&BucketInfo, Option<Given>),
        delete: &DeleteOp,
    ) -> Result<Outcome, Error> {
        let named = delete
            .versions
            .iter()
            .copied()
            .chain(std::iter::repeat(None));
        let mut planned = Vec::with_capacity(delete.object_keys.len());
        for (object_key, version) in delete.object_keys.iter().zip(named) {
            let how = How::of(view, bucket, given, object_key)?;
            let plan = match version {
                Some(id) => self.plan_removal(view, delete, object_key, id)?,
                None => self.plan_marker(view, how, delete, object_key)?,
            };
            planned.push((object_key, (how, plan)));
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
        how: How,
        delete: &DeleteOp,
        object_key: &[u8],
    ) -> Result<Plan, Error> {
        let current = view.object(object_key)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if how.versioning == Versioning::Never && current.is_none() {
            return Ok(Plan::Nothing(None));
        }
        self.marker(how, Base::with(view, how, object_key, current)?)
    }

    /// A delete marker that hides what there is, or the end of it.
    pub(super) fn marker(&self, how: How, base: Base) -> Result<Plan, Error> {
        let succession = self.succession(how, base)?;
        let Some(id) = succession.version else {
            return Ok(Plan::Gone(succession));
        };
        let marker = Record {
            stamp: succession.stamp,
            version: Some(id),
            payload: Payload::Marker,
            len: 0,
            meta: ObjectMeta {
                // The same on all replicas.
                created_ms: succession.stamp.time_us / 1000,
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
        match version_of(view, &delete.bucket, object_key, id) {
            Ok((record, _)) => check(delete.condition.as_ref(), Some(&record))?,
            Err(Error::NoSuchVersion) => {
                check(delete.condition.as_ref(), None)?;
                return Ok(Plan::Nothing(Some(id)));
            }
            Err(error) => return Err(error),
        }
        self.removal(view, &delete.bucket, object_key, id)
    }

    /// The end of a version.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`].
    pub(super) fn removal(
        &self,
        view: &View<'_>,
        bucket: &str,
        object_key: &[u8],
        id: VersionId,
    ) -> Result<Plan, Error> {
        let (record, at) = version_of(view, bucket, object_key, id)?;
        let current = view.object(object_key)?;
        let others = view.versions_of(object_key);
        let mut others =
            others.filter(|found| !matches!(found, Ok((place, _)) if at == Some(*place)));
        let newest = others.next().transpose()?;
        let is_current = at.is_none();
        let has_current = current.is_some() && !is_current;
        let is_last = newest.is_none() && !has_current;
        let last = view.change(object_key)?;
        let above = last.max(current.map(|current| current.stamp));
        // What is left may become current: then it is an object in its place again. A
        // version behind the newest leaves the newest where it is.
        let is_newest = at.is_none_or(|at| newest.as_ref().is_none_or(|(place, _)| at < *place));
        let next = newest
            .filter(|(_, record)| !has_current && is_newest && record.payload != Payload::Marker);
        let promoted = next.map(|(place, record)| {
            let is_null = record.id() == VersionId::Null;
            Ok::<_, Error>((place, is_null, record.encode()?))
        });
        Ok(Plan::Removed {
            record,
            at,
            promoted: promoted.transpose()?,
            is_last,
            above,
        })
    }

    pub(super) fn stage_plan(
        &self,
        batch: &mut Batch,
        object_key: &[u8],
        (how, plan): (How, Plan),
        outcome: &mut Outcome,
    ) -> Option<Removed> {
        match plan {
            Plan::Nothing(id) => id.map(|version| Removed {
                version,
                is_marker: false,
            }),
            Plan::Gone(succession) => {
                batch.remove(&self.lsm.objects, object_key);
                if let Some(stamp) = how.stamp {
                    batch.insert(&self.lsm.deletions, object_key, stamp.to_bytes());
                }
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
                is_last,
                above,
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
                let stamp = (self.given(how.stamp, above), how.stamp.is_some());
                self.stage_last(batch, object_key, stamp, !is_last);
                Some(removed)
            }
        }
    }

    /// Changes the metadata of an object, or of a version of it.
    pub(super) fn stage_change(
        &self,
        view: &View<'_>,
        batch: &mut Batch,
        (how, (bucket, version)): (How, (&str, Option<VersionId>)),
        object_key: Vec<u8>,
        change: Change,
    ) -> Result<Outcome, Error> {
        let (mut record, at) = match version {
            None => (present(view, bucket, &object_key)?, None),
            Some(id) => version_of(view, bucket, &object_key, id)?,
        };
        if record.payload == Payload::Marker {
            return Err(Error::IsDeleteMarker);
        }
        change(&mut record.meta);
        let above = Some(record.stamp).max(view.change(&object_key)?);
        record.stamp = self.given(how.stamp, above);
        let value = record.encode()?;
        if how.versioning != Versioning::Never {
            let stamp = (record.stamp, how.stamp.is_some());
            self.stage_last(batch, &object_key, stamp, true);
        }
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
}

/// What a deletion comes to.
pub(super) enum Plan {
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
        /// The key has no other.
        is_last: bool,
        /// The change's stamp is above this one.
        above: Option<Stamp>,
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
