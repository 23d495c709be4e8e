//! Copies of all versions of a key. The versions that a store lacks are fetched one after the
//! other, and take effect in one commit.

use std::collections::HashMap;

use prism_replica::{Missed, Stamp, missed};
use serde::{Deserialize, Serialize};

use super::{
    CatchUp, Handed, Scope, TakeIn,
    fetch::{NamedFiles, OneOfMany},
};
use crate::{
    commit::{Op, TakeVersionsOp, Taken, TakenVersion, When, own_versions},
    error::Error,
    keys::{object_key, version_key},
    object::Body,
    record::{Payload, Record},
    types::{ObjectMeta, VersionId, check_bucket, check_key, place, stamp_at},
    view::holds,
};

/// Most small versions that wait in memory for their commit. With more of them missing, all
/// go to files.
const IN_MEMORY_MAX: usize = 64;

/// The kind of name that a version has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionName {
    /// No name: it is from before its bucket kept versions.
    None,
    /// The null version.
    Null,
    /// Named by the place where it lies.
    Place,
}

/// One version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionSummary {
    /// Its place among the versions of the key.
    pub at: Stamp,
    /// Its name.
    pub name: VersionName,
    /// The stamp of its last change.
    pub stamp: Stamp,
    /// When a delete marker was made, in milliseconds since the Unix epoch; none for other
    /// versions.
    pub marker_ms: Option<u64>,
}

impl VersionSummary {
    fn of_record(at: Stamp, record: &Record) -> Self {
        let is_marker = record.payload == Payload::Marker;
        Self {
            at,
            name: match record.version {
                None => VersionName::None,
                Some(VersionId::Null) => VersionName::Null,
                Some(VersionId::Of(_)) => VersionName::Place,
            },
            stamp: record.stamp,
            marker_ms: is_marker.then_some(record.meta.created_ms),
        }
    }

    pub(super) fn id(&self) -> Option<VersionId> {
        match self.name {
            VersionName::None => None,
            VersionName::Null => Some(VersionId::Null),
            VersionName::Place => Some(VersionId::Of(self.at)),
        }
    }

    /// The delete marker that this describes. Nothing more of it has to be fetched.
    fn marker(&self) -> Option<Taken> {
        let created_ms = self.marker_ms?;
        Some(Taken::Marker(Record {
            stamp: self.stamp,
            version: self.id(),
            payload: Payload::Marker,
            len: 0,
            meta: ObjectMeta {
                created_ms,
                ..ObjectMeta::default()
            },
        }))
    }

    fn taken(&self, taken: Option<Taken>) -> TakenVersion {
        TakenVersion {
            place: place(self.at),
            version: self.id(),
            stamp: self.stamp,
            taken,
        }
    }
}

impl CatchUp<'_> {
    /// The list of a key's versions, if it has some.
    pub(super) fn versions_of(&self, scope: &Scope) -> Result<Option<Handed>, Error> {
        let view = self.store.view();
        let object_key = scope.object_key();
        let Some(stamp) = view.change(&object_key)? else {
            return Ok(None);
        };
        let all = own_versions(&view, &object_key)?;
        let versions = all
            .iter()
            .map(|(place, (record, _))| VersionSummary::of_record(stamp_at(*place), record));
        Ok(Some(Handed {
            versions: Some(versions.collect()),
            ..Handed::new(stamp, ObjectMeta::default(), None)
        }))
    }

    /// A copy of one version of a key for another store, and its bytes. May block on disk.
    ///
    /// # Errors
    /// As for [`CatchUp::hand_over`].
    pub fn hand_over_version(
        &self,
        scope: &Scope,
        at: Stamp,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        self.of_one_life(scope, || self.find_version(scope, at))
    }

    fn find_version(
        &self,
        scope: &Scope,
        at: Stamp,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        let (view, object_key) = (self.store.view(), scope.object_key());
        let current = view.object(&object_key)?;
        let current = current.filter(|record| record.place() == place(at));
        let record = match current {
            Some(record) => Some(record),
            None => view.version(&version_key(&object_key, &place(at)))?,
        };
        let Some(record) = record else {
            return Ok(None);
        };
        let found = self
            .store
            .get_version(&scope.bucket, &scope.key, Some(record.id()));
        match found {
            Ok(found) => Ok(found.map(Handed::of_object)),
            Err(Error::NoSuchVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins to take in the versions that another store has of a key, as of the epoch
    /// `since`. `handed` lists them. May block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the list cannot be the versions of a key.
    pub fn begin_take_versions(
        &self,
        scope: Scope,
        handed: Handed,
        since: u64,
    ) -> Result<TakeVersions, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        let versions = handed.versions.unwrap_or_default();
        let is_ordered = versions.is_sorted_by(|a, b| a.at > b.at);
        let nulls = versions.iter().filter(|v| v.name != VersionName::Place);
        if versions.is_empty() || !is_ordered || nulls.count() > 1 {
            return Err(Error::corrupt("versions of another store"));
        }
        let object_key = object_key(&scope.bucket, &scope.key);
        let view = self.store.view();
        let mut missing: Vec<VersionSummary> = Vec::new();
        if missed(since, holds(&view, &scope)?, Some(handed.stamp)) == Missed::Take {
            let own = own_versions(&view, &object_key)?;
            let has = |version: &VersionSummary| {
                let own = own.get(&place(version.at));
                own.is_some_and(|(own, _)| version.taken(None).is(own))
            };
            missing.extend(versions.iter().filter(|version| !has(version)).copied());
        }
        let markers = missing
            .iter()
            .filter_map(|version| Some((version.at, version.marker()?)))
            .collect();
        missing.retain(|version| version.marker_ms.is_none());
        Ok(TakeVersions {
            scope,
            object_key,
            life: handed.life,
            stamp: handed.stamp,
            since,
            versions,
            missing,
            taken: markers,
            named: NamedFiles::new(&self.store.inner),
        })
    }
}

/// Versions on their way in from another replica. Dropped before they are finished, they
/// leave no trace.
#[must_use = "versions that are not finished are discarded"]
pub struct TakeVersions {
    scope: Scope,
    object_key: Vec<u8>,
    life: Stamp,
    stamp: Stamp,
    since: u64,
    versions: Vec<VersionSummary>,
    missing: Vec<VersionSummary>,
    taken: HashMap<Stamp, Taken>,
    named: NamedFiles,
}

impl TakeVersions {
    /// The versions to fetch.
    #[must_use]
    pub fn missing(&self) -> Vec<VersionSummary> {
        self.missing.clone()
    }

    /// Begins to take in one version. May block on disk.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if the version has changed at the sender; as for
    /// [`CatchUp::begin_take_in`].
    pub fn begin(&self, version: &VersionSummary, handed: Handed) -> Result<TakeIn, Error> {
        if handed.stamp != version.stamp || handed.len.is_none() {
            return Err(Error::Unsettled);
        }
        let one = OneOfMany {
            version: *version,
            in_file: self.missing.len() > IN_MEMORY_MAX,
        };
        let (store, scope) = (&self.named.store, self.scope.clone());
        TakeIn::begin(store, scope, handed, Some(self.since), Some(one))
    }

    /// Adds a version whose bytes are complete. Blocks on disk.
    ///
    /// # Errors
    /// As for [`TakeIn::finish`].
    pub fn add(&mut self, whole: TakeIn) -> Result<(), Error> {
        let (at, taken, ids) = whole.into_version()?;
        self.named.ids.extend(ids);
        self.taken.insert(at, taken);
        Ok(())
    }

    /// Replaces the versions that this store has of the key, unless they are newer; says
    /// whether it did. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if the store is in another epoch by now; [`Error::Unsettled`] if
    /// a version is missing that was here when this began.
    pub fn finish(mut self) -> Result<bool, Error> {
        let versions = self.versions.iter();
        let versions = versions.map(|version| version.taken(self.taken.remove(&version.at)));
        let op = Op::TakeVersions(TakeVersionsOp {
            since: self.since,
            scope: self.scope,
            object_key: self.object_key,
            life: self.life,
            stamp: self.stamp,
            versions: versions.collect(),
        });
        self.named.commit(op, When::In(self.since))
    }
}
