//! The versions of a key that one store has, and another one takes in: those that it
//! lacks are fetched one after the other, and become what it holds all at once.

use std::{collections::HashMap, sync::Arc};

use prism_replica::{Missed, Stamp, missed};
use serde::{Deserialize, Serialize};

use super::{Handed, Scope, TakeIn};
use crate::{
    commit::{Op, TakeVersionsOp, Taken, TakenVersion, When, holds, own_versions},
    error::Error,
    layout::FileId,
    record::{Payload, Record, object_key},
    store::{Inner, Store},
    types::{Body, ObjectMeta, check_bucket, check_key},
    versions::{VersionId, place, stamp_at, version_key},
};

/// So many are held in memory until they are taken in, where they are small.
const IN_MEMORY_MAX: usize = 64;

/// How a version is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VersionName {
    /// Not at all: it is from before its bucket kept versions.
    None,
    /// As the null version.
    Null,
    /// By the place where it lies.
    Place,
}

/// One version of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldVersion {
    /// Where it lies among the others.
    pub at: Stamp,
    /// Its name.
    pub name: VersionName,
    /// Of its last change.
    pub stamp: Stamp,
    /// Of a delete marker: when it was made, in milliseconds since the Unix epoch.
    pub marker_ms: Option<u64>,
}

impl HeldVersion {
    fn of(at: Stamp, record: &Record) -> Self {
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

    pub(super) fn version(&self) -> Option<VersionId> {
        match self.name {
            VersionName::None => None,
            VersionName::Null => Some(VersionId::Null),
            VersionName::Place => Some(VersionId::Of(self.at)),
        }
    }

    /// A marker is all that there is to it.
    fn marker(&self) -> Option<Taken> {
        let created_ms = self.marker_ms?;
        Some(Taken::Marker(Record {
            stamp: self.stamp,
            version: self.version(),
            payload: Payload::Marker,
            len: 0,
            meta: ObjectMeta {
                created_ms,
                ..ObjectMeta::default()
            },
        }))
    }
}

impl Store {
    /// The versions of a key, if it is one that has some, and its last change.
    pub(super) fn hand_over_versions(&self, scope: &Scope) -> Result<Option<Handed>, Error> {
        let view = self.view();
        let object_key = scope.object_key();
        let Some(stamp) = view.change(&object_key)? else {
            return Ok(None);
        };
        let all = own_versions(&view, &object_key)?;
        let held = all
            .iter()
            .map(|(place, (record, _))| HeldVersion::of(stamp_at(*place), record));
        Ok(Some(Handed {
            life: Stamp::NONE,
            stamp,
            meta: ObjectMeta::default(),
            len: None,
            pieces: None,
            versions: Some(held.collect()),
        }))
    }

    /// One version of a key, for another store to take in, and its bytes. May block on
    /// disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] among others.
    pub fn hand_over_version(
        &self,
        scope: &Scope,
        at: Stamp,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        self.of_one_life(&scope.bucket, || self.find_version(scope, at))
    }

    fn find_version(
        &self,
        scope: &Scope,
        at: Stamp,
    ) -> Result<Option<(Handed, Option<Body>)>, Error> {
        let (view, object_key) = (self.view(), scope.object_key());
        let current = view.object(&object_key)?;
        let current = current.filter(|record| record.place() == place(at));
        let record = match current {
            Some(record) => Some(record),
            None => view.version(&version_key(&object_key, &place(at)))?,
        };
        let Some(record) = record else {
            return Ok(None);
        };
        match self.get_version(&scope.bucket, &scope.key, Some(record.id())) {
            Ok(found) => Ok(found.map(Handed::of)),
            Err(Error::NoSuchVersion) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Begins to take in the versions that another store has of a key, as of the epoch
    /// `since`; `stamp` is that of its last change there, and `life` of the bucket. May
    /// block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what cannot be the versions of a key.
    pub fn begin_take_versions(
        &self,
        scope: Scope,
        (life, stamp, versions): (Stamp, Stamp, Vec<HeldVersion>),
        since: u64,
    ) -> Result<TakeVersions, Error> {
        check_bucket(&scope.bucket)?;
        check_key(&scope.key)?;
        let is_ordered = versions.is_sorted_by(|a, b| a.at > b.at);
        let nulls = versions.iter().filter(|v| v.name != VersionName::Place);
        if versions.is_empty() || !is_ordered || nulls.count() > 1 {
            return Err(Error::corrupt("versions of another store"));
        }
        let object_key = object_key(&scope.bucket, &scope.key);
        let view = self.view();
        let mut missing: Vec<HeldVersion> = Vec::new();
        if missed(since, holds(&view, &scope)?, Some(stamp)) == Missed::Take {
            let own = own_versions(&view, &object_key)?;
            let has = |version: &HeldVersion| {
                let own = own.get(&place(version.at));
                own.is_some_and(|(own, _)| wanted(version, None).is(own))
            };
            missing.extend(versions.iter().filter(|version| !has(version)).copied());
        }
        let markers = missing
            .iter()
            .filter_map(|version| Some((version.at, version.marker()?)))
            .collect();
        missing.retain(|version| version.marker_ms.is_none());
        Ok(TakeVersions {
            store: Arc::clone(&self.inner),
            scope,
            object_key,
            life,
            stamp,
            since,
            versions,
            missing,
            taken: markers,
            named: Vec::new(),
        })
    }
}

fn wanted(version: &HeldVersion, taken: Option<Taken>) -> TakenVersion {
    TakenVersion {
        place: place(version.at),
        version: version.version(),
        stamp: version.stamp,
        taken,
    }
}

/// Versions on their way in from another replica. Dropped before they are finished,
/// they leave no trace.
#[must_use = "what is not finished is discarded"]
pub struct TakeVersions {
    store: Arc<Inner>,
    scope: Scope,
    object_key: Vec<u8>,
    life: Stamp,
    stamp: Stamp,
    since: u64,
    versions: Vec<HeldVersion>,
    missing: Vec<HeldVersion>,
    taken: HashMap<Stamp, Taken>,
    /// All files with a name; whoever is told that they are referred to, has them.
    named: Vec<FileId>,
}

impl TakeVersions {
    /// Those to be fetched.
    #[must_use]
    pub fn missing(&self) -> Vec<HeldVersion> {
        self.missing.clone()
    }

    /// Begins to take in one of them. May block on disk.
    ///
    /// # Errors
    /// [`Error::Unsettled`] if it is another one by now; as for
    /// [`Store::begin_take_in`].
    pub fn begin(&self, version: &HeldVersion, handed: Handed) -> Result<TakeIn, Error> {
        if handed.stamp != version.stamp || handed.len.is_none() {
            return Err(Error::Unsettled);
        }
        let in_files = self.missing.len() > IN_MEMORY_MAX;
        let store = Arc::clone(&self.store);
        let of = Some((*version, in_files));
        TakeIn::begin(store, self.scope.clone(), handed, (Some(self.since), of))
    }

    /// Has one of them. Blocks on disk.
    ///
    /// # Errors
    /// As for [`TakeIn::finish`].
    pub fn add(&mut self, whole: TakeIn) -> Result<(), Error> {
        let (at, taken, named) = whole.into_version()?;
        self.named.extend(named);
        self.taken.insert(at, taken);
        Ok(())
    }

    /// Makes them what this store holds of the key, unless something newer has come
    /// meanwhile; says which. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::OtherEpoch`] if the store is in another one by now; [`Error::Unsettled`]
    /// if one is missing that was here when this began.
    pub fn finish(mut self) -> Result<bool, Error> {
        let mut taken = std::mem::take(&mut self.taken);
        let versions = self.versions.iter();
        let versions = versions.map(|version| wanted(version, taken.remove(&version.at)));
        let op = Op::TakeVersions(TakeVersionsOp {
            since: self.since,
            scope: self.scope.clone(),
            object_key: self.object_key.clone(),
            life: self.life,
            stamp: self.stamp,
            versions: versions.collect(),
        });
        let when = When::In(self.since);
        let outcome = self.store.committer.submit_when(op, None, when);
        let outcome = outcome.map_err(|failure| {
            if failure.in_doubt {
                // Then the next opening of the store judges.
                self.named.clear();
            }
            failure.error
        })?;
        self.named.clear();
        self.store.release(&outcome);
        Ok(outcome.found > 0)
    }
}

impl Drop for TakeVersions {
    fn drop(&mut self) {
        for id in &self.named {
            self.store.files.remove(*id);
        }
    }
}
