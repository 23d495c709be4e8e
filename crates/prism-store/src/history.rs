//! Listings of versions, by key and then the newest first.

use std::ops::Bound;

use fjall::UserKey;

use crate::{
    error::Error,
    keys::{
        behind, behind_key, behind_prefix, escaped_prefix, object_key, split_object_key,
        split_version_key, version_key, versions_of,
    },
    merge::{merged, under},
    record::{Payload, Record},
    store::Store,
    types::{Place, Position, Step, VersionEntry, VersionId, Versioning, check_bucket, check_key},
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
        let info = view.existing_bucket(bucket)?;
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
        let (all_objects, all_versions) =
            (object_key(bucket, prefix), escaped_prefix(bucket, prefix));
        let (mut objects, mut versions) = begin_bounds(&view, bucket, begin)?;
        // The key of which some versions were listed before.
        let mut within = match begin {
            VersionPosition::AfterVersion(key, _) => Some(key.to_owned()),
            VersionPosition::Key(_) => None,
        };
        'skip: loop {
            let found = merged(
                under(all_objects.clone(), |begin| view.objects(begin), objects).map(of_object),
                under(all_versions.clone(), |begin| view.versions(begin), versions).map(of_version),
            );
            for found in found {
                let ((key, at), record) = found?;
                let is_latest = at.is_none() || within.as_ref() != Some(&key);
                within = Some(key.clone());
                match visit(entry(key, at, record, is_latest)) {
                    Step::Entry => {}
                    Step::Behind(prefix) => {
                        (objects, versions) = behind_all(bucket, &prefix);
                        within = None;
                        continue 'skip;
                    }
                    Step::End => break,
                }
            }
            return Ok(());
        }
    }
}

/// The lower bounds of objects and of versions.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn begin_bounds(
    view: &View<'_>,
    bucket: &str,
    begin: VersionPosition<'_>,
) -> Result<Bounds, Error> {
    Ok(match begin {
        VersionPosition::Key(Position::After(key)) if !key.is_empty() => (
            Bound::Excluded(object_key(bucket, key)),
            Bound::Included(behind_key(bucket, key)),
        ),
        VersionPosition::Key(Position::Behind(prefix)) if !prefix.is_empty() => {
            behind_all(bucket, prefix)
        }
        VersionPosition::Key(_) => (Bound::Unbounded, Bound::Unbounded),
        VersionPosition::AfterVersion(key, id) => within_key(view, &object_key(bucket, key), id)?,
    })
}

/// The bounds behind all keys that begin with `prefix`, which is not empty.
fn behind_all(bucket: &str, prefix: &str) -> Bounds {
    let (objects, versions) = (behind(bucket, prefix), behind_prefix(bucket, prefix));
    (Bound::Included(objects), Bound::Included(versions))
}

/// The bounds behind one version of a key. It may be gone by now, and an older one current.
fn within_key(view: &View<'_>, object_key: &[u8], id: VersionId) -> Result<Bounds, Error> {
    let current = view.object(object_key)?;
    let at = view.place_of(object_key, id)?;
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

/// A record by its key, and its place if it is not current. A key's current record comes first.
type Found = Result<((String, Option<Place>), Record), Error>;

fn of_object(found: Result<(UserKey, Record), Error>) -> Found {
    let (tree_key, record) = found?;
    let split = split_object_key(&tree_key).ok_or_else(|| Error::corrupt("object key"))?;
    Ok(((split.1.to_owned(), None), record))
}

fn of_version(found: Result<(UserKey, Record), Error>) -> Found {
    let (tree_key, record) = found?;
    let split = split_version_key(&tree_key);
    let (key, place) = split.ok_or_else(|| Error::corrupt("version key"))?;
    Ok(((key, Some(place)), record))
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
