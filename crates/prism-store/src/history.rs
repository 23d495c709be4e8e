//! Listings of versions, by key and then the newest first.

use std::iter::Peekable;
use std::ops::Bound;

use fjall::UserKey;

use crate::{
    error::Error,
    keys::{
        behind, behind_key, behind_prefix, escaped_prefix, object_key, split_object_key,
        split_version_key, version_key, versions_of,
    },
    record::{Payload, Record},
    store::Store,
    types::{
        Place, Position, Step, VersionEntry, VersionId, Versioning, check_bucket, check_key, place,
    },
    view::View,
};

/// The position at which a listing of versions begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionPosition<'a> {
    /// The position of a listing of objects.
    Key(Position<'a>),
    /// Behind this version of this key.
    AfterVersion(&'a str, VersionId),
}

impl Store {
    /// The delete marker that hides an object, if one does. May block on disk.
    pub fn delete_marker(&self, bucket: &str, key: &str) -> Result<Option<VersionId>, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        let view = self.view();
        let info = view.bucket(bucket)?.ok_or(Error::NoSuchBucket)?;
        let object_key = object_key(bucket, key);
        if info.versioning == Versioning::Never || view.object(&object_key)?.is_some() {
            return Ok(None);
        }
        let newest = view.versions_of(&object_key).next().transpose()?;
        Ok(newest.map(|(_, record)| record.id()))
    }

    /// Lists the versions of the objects whose keys begin with `prefix`, from `begin` on, as of
    /// one moment. `visit` gets each and says how to continue. May block on disk.
    pub fn scan_versions(
        &self,
        bucket: &str,
        prefix: &str,
        begin: VersionPosition<'_>,
        mut visit: impl FnMut(VersionEntry) -> Step,
    ) -> Result<(), Error> {
        self.buckets().get(bucket)?;
        let view = self.view();
        let mut cursor = Cursor::begin(&view, bucket, prefix, begin)?;
        loop {
            let mut merged = Merged::new(&view, &cursor);
            let skip = loop {
                let Some(entry) = merged.next()? else {
                    return Ok(());
                };
                match visit(entry) {
                    Step::Entry => {}
                    Step::Behind(prefix) => break prefix,
                    Step::End => return Ok(()),
                }
            };
            cursor = Cursor::behind(&cursor, bucket, &skip);
        }
    }
}

/// The position in both trees.
struct Cursor {
    /// The prefix of all listed keys in the tree.
    all_objects: Vec<u8>,
    all_versions: Vec<u8>,
    objects: Bound<Vec<u8>>,
    versions: Bound<Vec<u8>>,
    /// The key of which some versions were listed before.
    within: Option<String>,
}

impl Cursor {
    fn begin(
        view: &View<'_>,
        bucket: &str,
        prefix: &str,
        begin: VersionPosition<'_>,
    ) -> Result<Self, Error> {
        let all_objects = object_key(bucket, prefix);
        let all_versions = escaped_prefix(bucket, prefix);
        let mut within = None;
        let (objects, versions) = match begin {
            VersionPosition::Key(Position::After(key)) if !key.is_empty() => (
                Bound::Excluded(object_key(bucket, key)),
                Bound::Included(behind_key(bucket, key)),
            ),
            VersionPosition::Key(Position::Behind(prefix)) if !prefix.is_empty() => (
                Bound::Included(behind(bucket, prefix)),
                Bound::Included(behind_prefix(bucket, prefix)),
            ),
            VersionPosition::Key(_) => (
                Bound::Included(all_objects.clone()),
                Bound::Included(all_versions.clone()),
            ),
            VersionPosition::AfterVersion(key, id) => {
                within = Some(key.to_owned());
                within_key(view, &object_key(bucket, key), id)?
            }
        };
        Ok(Self {
            objects: at_least(objects, &all_objects),
            versions: at_least(versions, &all_versions),
            all_objects,
            all_versions,
            within,
        })
    }

    /// Behind all keys that begin with `prefix`.
    fn behind(from: &Self, bucket: &str, prefix: &str) -> Self {
        Self {
            all_objects: from.all_objects.clone(),
            all_versions: from.all_versions.clone(),
            objects: Bound::Included(behind(bucket, prefix)),
            versions: Bound::Included(behind_prefix(bucket, prefix)),
            within: None,
        }
    }
}

/// The lower bounds of objects and of versions.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The bounds behind one version of a key. It may be gone by now, and an older one current.
fn within_key(view: &View<'_>, object_key: &[u8], id: VersionId) -> Result<Bounds, Error> {
    let current = view.object(object_key)?;
    let at = match id {
        VersionId::Of(stamp) => Some(place(stamp)),
        VersionId::Null => view.null_place(object_key)?,
    };
    let is_older = |record: &Record| at.is_some_and(|at| record.place() > at);
    let objects = match current {
        Some(record) if is_older(&record) => Bound::Included(object_key.to_vec()),
        _ => Bound::Excluded(object_key.to_vec()),
    };
    let versions = match at {
        Some(at) => Bound::Excluded(version_key(object_key, &at)),
        // The null version is current, so all others are older.
        None => Bound::Included(versions_of(object_key)),
    };
    Ok((objects, versions))
}

fn at_least(bound: Bound<Vec<u8>>, least: &[u8]) -> Bound<Vec<u8>> {
    match &bound {
        Bound::Included(at) | Bound::Excluded(at) if at.as_slice() < least => {
            Bound::Included(least.to_vec())
        }
        _ => bound,
    }
}

type Found = Result<(UserKey, Record), Error>;

/// Objects and versions in one order.
struct Merged<A: Iterator<Item = Found>, B: Iterator<Item = Found>> {
    objects: Peekable<A>,
    versions: Peekable<B>,
    all_objects: Vec<u8>,
    all_versions: Vec<u8>,
    /// The key whose newest version has been listed.
    within: Option<String>,
}

impl Merged<std::iter::Empty<Found>, std::iter::Empty<Found>> {
    #[allow(clippy::new_ret_no_self, reason = "its iterators have no names")]
    fn new<'v>(
        view: &'v View<'_>,
        cursor: &Cursor,
    ) -> Merged<impl Iterator<Item = Found> + 'v, impl Iterator<Item = Found> + 'v> {
        Merged {
            objects: view.objects(cursor.objects.clone()).peekable(),
            versions: view.versions(cursor.versions.clone()).peekable(),
            all_objects: cursor.all_objects.clone(),
            all_versions: cursor.all_versions.clone(),
            within: cursor.within.clone(),
        }
    }
}

impl<A: Iterator<Item = Found>, B: Iterator<Item = Found>> Merged<A, B> {
    fn next(&mut self) -> Result<Option<VersionEntry>, Error> {
        let object = match self.objects.peek() {
            Some(Ok((key, _))) if key.starts_with(&self.all_objects) => {
                let split = split_object_key(key);
                let (_, key) = split.ok_or_else(|| Error::corrupt("object key"))?;
                Some(key.to_owned())
            }
            Some(Err(error)) => return Err(error.clone()),
            _ => None,
        };
        let version = match self.versions.peek() {
            Some(Ok((key, _))) if key.starts_with(&self.all_versions) => {
                let split = split_version_key(key);
                Some(split.ok_or_else(|| Error::corrupt("version key"))?)
            }
            Some(Err(error)) => return Err(error.clone()),
            _ => None,
        };
        match (object, version) {
            (Some(object), version) if version.as_ref().is_none_or(|(key, _)| object <= *key) => {
                let found = self.objects.next().transpose()?;
                self.within = Some(object.clone());
                Ok(found.map(|(_, record)| entry(object, None, record, true)))
            }
            (_, Some((key, place))) => {
                let found = self.versions.next().transpose()?;
                let is_latest = self.within.as_ref() != Some(&key);
                self.within = Some(key.clone());
                Ok(found.map(|(_, record)| entry(key, Some(place), record, is_latest)))
            }
            _ => Ok(None),
        }
    }
}

fn entry(key: String, at: Option<Place>, record: Record, is_latest: bool) -> VersionEntry {
    debug_assert!(at.is_none_or(|at| record.id() == VersionId::Null || at == record.place()));
    VersionEntry {
        key,
        id: record.id(),
        is_latest,
        is_marker: record.payload == Payload::Marker,
        len: record.len,
        etag: record.meta.etag,
        created_ms: record.meta.created_ms,
    }
}
