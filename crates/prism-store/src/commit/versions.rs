//! Deletions and changes of metadata where versions are kept, in the batch of the change
//! itself.

use prism_replica::Stamp;

use super::{
    Given,
    op::{Change, DeleteOp},
    stage::{Stage, check, existing, present},
    succession::{Base, How, Succession},
};
use crate::{
    error::Error,
    keys::version_key,
    record::{Payload, Record},
    types::{BucketInfo, ObjectMeta, Place, Removed, VersionId, Versioning, place},
    view::View,
};

impl Stage<'_> {
    /// Deletes objects and versions.
    pub(super) fn delete_versions(
        &mut self,
        bucket: &BucketInfo,
        given: Option<Given>,
        delete: &DeleteOp,
    ) -> Result<(), Error> {
        let named = delete.versions.iter().copied();
        let named = named.chain(std::iter::repeat(None));
        let mut planned = Vec::with_capacity(delete.object_keys.len());
        for (object_key, version) in delete.object_keys.iter().zip(named) {
            let how = How::of_bucket(self.view, bucket, given, object_key)?;
            let plan = match version {
                Some(id) => self.plan_removal(delete, object_key, id)?,
                None => self.plan_marker(how, delete, object_key)?,
            };
            planned.push((object_key, how, plan));
        }
        for (object_key, how, plan) in planned {
            let removed = self.apply_plan(object_key, how, plan);
            self.outcome.removed.push(removed);
        }
        Ok(())
    }

    fn plan_marker(&self, how: How, delete: &DeleteOp, object_key: &[u8]) -> Result<Plan, Error> {
        let current = self.view.object(object_key)?;
        check(delete.condition.as_ref(), current.as_ref())?;
        if how.versioning == Versioning::Never && current.is_none() {
            return Ok(Plan::Nothing(None));
        }
        let base = Base::for_change(self.view, how, object_key, current)?;
        self.marker(how, base)
    }

    /// Plans the deletion of an object: a delete marker hides it, or without versions it goes.
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
                // From the stamp, so that all replicas have the same.
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
        delete: &DeleteOp,
        object_key: &[u8],
        id: VersionId,
    ) -> Result<Plan, Error> {
        match version_of(self.view, &delete.bucket, object_key, id) {
            Ok((record, _)) => check(delete.condition.as_ref(), Some(&record))?,
            Err(Error::NoSuchVersion) => {
                check(delete.condition.as_ref(), None)?;
                return Ok(Plan::Nothing(Some(id)));
            }
            Err(error) => return Err(error),
        }
        removal(self.view, &delete.bucket, object_key, id)
    }

    pub(super) fn apply_plan(
        &mut self,
        object_key: &[u8],
        how: How,
        plan: Plan,
    ) -> Option<Removed> {
        let objects = &self.lsm.objects;
        match plan {
            Plan::Nothing(id) => id.map(|version| Removed {
                version,
                is_marker: false,
            }),
            Plan::Gone(succession) => {
                self.batch.remove(objects, object_key);
                self.remember_deletion(object_key, how.stamp);
                self.make_way(object_key, succession);
                None
            }
            Plan::Marked {
                succession,
                id,
                place,
                marker,
            } => {
                self.batch.remove(objects, object_key);
                self.make_way(object_key, succession);
                let key = version_key(object_key, &place);
                self.batch.insert(&self.lsm.versions, key, marker);
                if id == VersionId::Null {
                    self.batch.insert(&self.lsm.nulls, object_key, place);
                }
                Some(Removed {
                    version: id,
                    is_marker: true,
                })
            }
            Plan::Removed(removal) => {
                let removed = Removed {
                    version: removal.record.id(),
                    is_marker: removal.record.payload == Payload::Marker,
                };
                match removal.at {
                    None => self.batch.remove(objects, object_key),
                    Some(place) => {
                        let is_null = removed.version == VersionId::Null;
                        self.remove_version(object_key, &place, is_null);
                    }
                }
                self.lose(Some(removal.record));
                if let Some(Promoted {
                    place,
                    is_null,
                    record,
                }) = removal.promoted
                {
                    self.remove_version(object_key, &place, is_null);
                    self.batch.insert(objects, object_key, record);
                }
                if removal.is_last {
                    self.batch.remove(&self.lsm.changes, object_key);
                    self.remember_deletion(object_key, how.stamp);
                } else {
                    let stamp = self.stamp(how.stamp, removal.above);
                    self.note_last(object_key, stamp);
                }
                Some(removed)
            }
        }
    }

    /// Remembers the deletion of a key, if other replicas make it as well.
    fn remember_deletion(&mut self, object_key: &[u8], given: Option<Stamp>) {
        if let Some(stamp) = given {
            let deletions = &self.lsm.deletions;
            self.batch.insert(deletions, object_key, stamp.to_bytes());
        }
    }

    /// Changes the metadata of an object, or of a version of it.
    pub(super) fn change_meta(
        &mut self,
        how: How,
        bucket: &str,
        object_key: Vec<u8>,
        version: Option<VersionId>,
        change: Change,
    ) -> Result<(), Error> {
        let (mut record, at) = match version {
            None => (present(self.view, bucket, &object_key)?, None),
            Some(id) => version_of(self.view, bucket, &object_key, id)?,
        };
        if record.payload == Payload::Marker {
            return Err(Error::IsDeleteMarker);
        }
        change(&mut record.meta);
        let above = Some(record.stamp).max(self.view.change(&object_key)?);
        record.stamp = self.stamp(how.stamp, above);
        let value = record.encode()?;
        if how.versioning != Versioning::Never {
            self.note_last(&object_key, record.stamp);
        }
        match at {
            None => self.batch.insert(&self.lsm.objects, object_key, value),
            Some(place) => {
                let key = version_key(&object_key, &place);
                self.batch.insert(&self.lsm.versions, key, value);
            }
        }
        self.outcome.stamp = record.stamp;
        self.outcome.version = record.version;
        Ok(())
    }
}

/// The effect of a deletion.
pub(super) enum Plan {
    /// There is no such object. A named version is answered as deleted.
    Nothing(Option<VersionId>),
    /// The object goes, and no versions are kept.
    Gone(Succession),
    /// A delete marker becomes the newest version.
    Marked {
        succession: Succession,
        id: VersionId,
        place: Place,
        marker: Vec<u8>,
    },
    /// A version goes.
    Removed(Removal),
}

pub(super) struct Removal {
    record: Record,
    /// The version's place, unless it is current.
    at: Option<Place>,
    /// The version that becomes current.
    promoted: Option<Promoted>,
    /// The key has no other version.
    is_last: bool,
    /// The change's stamp is above this one.
    above: Option<Stamp>,
}

struct Promoted {
    place: Place,
    is_null: bool,
    /// Encoded [`Record`].
    record: Vec<u8>,
}

/// Plans the removal of a version.
///
/// # Errors
/// [`Error::NoSuchVersion`].
pub(super) fn removal(
    view: &View<'_>,
    bucket: &str,
    object_key: &[u8],
    id: VersionId,
) -> Result<Plan, Error> {
    let (record, at) = version_of(view, bucket, object_key, id)?;
    let current = view.object(object_key)?;
    let others = view.versions_of(object_key);
    let mut others = others.filter(|found| !matches!(found, Ok((place, _)) if at == Some(*place)));
    let newest = others.next().transpose()?;
    let is_current = at.is_none();
    let has_current = current.is_some() && !is_current;
    let is_last = newest.is_none() && !has_current;
    let last = view.change(object_key)?;
    let above = last.max(current.map(|current| current.stamp));
    // The newest version that is left becomes current, unless it is a delete marker. The
    // removal of an older version changes nothing about the newest one.
    let is_newest = at.is_none_or(|at| newest.as_ref().is_none_or(|(place, _)| at < *place));
    let next =
        newest.filter(|(_, record)| !has_current && is_newest && record.payload != Payload::Marker);
    let promoted = next.map(|(place, record)| {
        Ok::<_, Error>(Promoted {
            place,
            is_null: record.id() == VersionId::Null,
            record: record.encode()?,
        })
    });
    Ok(Plan::Removed(Removal {
        record,
        at,
        promoted: promoted.transpose()?,
        is_last,
        above,
    }))
}

/// A version, and its place unless it is current.
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
