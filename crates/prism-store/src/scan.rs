//! Listings of objects and of versions, in the order of their keys' bytes. The versions of a
//! key come the newest first.

use std::ops::Bound;

use fjall::UserKey;

use crate::{
    error::Error,
    keys::{
        behind, behind_key, behind_prefix, checked_key, escaped_prefix, object_key,
        split_object_key, split_version_key, version_key, versions_of,
    },
    merge::{merged, under},
    record::{Payload, Record},
    store::Store,
    types::{Entry, KEY_MAX, Position, Step, VersionId, VersionPlace, Versioning},
    view::View,
};

/// Longest prefix and longest position, in bytes: more than any key has.
const LIST_ARGUMENT_MAX: usize = 2 * KEY_MAX;

/// The position at which a listing of versions begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionPosition<'a> {
    /// The position of a listing of objects.
    Key(Position<'a>),
    /// Behind this version of this key.
    AfterVersion(&'a str, VersionId),
}

impl Store {
    /// Lists the objects whose keys begin with `prefix`, from `begin` on, as of one moment.
    /// `visit` gets each and says how to continue. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`]; [`Error::InvalidName`] for a prefix or position of more than
    /// 2 KiB.
    pub fn scan(
        &self,
        bucket: &str,
        prefix: &str,
        begin: Position<'_>,
        visit: impl FnMut(Entry) -> Step,
    ) -> Result<(), Error> {
        self.existing_bucket(bucket)?;
        let argument = match begin {
            Position::Start => "",
            Position::After(text) | Position::Behind(text) => text,
        };
        if prefix.len().max(argument.len()) > LIST_ARGUMENT_MAX {
            return Err(Error::InvalidName("prefix or start_after too long"));
        }
        let view = self.view();
        let all = object_key(bucket, prefix);
        let objects = |begin| {
            let found = under(all.clone(), |begin| view.objects(begin), begin);
            found.map(|found| of_object(found).map(|((key, _), record)| entry(key, record, true)))
        };
        let bound = |begin: Position<'_>| bounds(bucket, begin).0;
        walk(
            bound(begin),
            objects,
            |prefix| bound(Position::Behind(prefix)),
            visit,
        )
    }

    /// Lists the versions of the objects whose keys begin with `prefix`, from `begin` on, as of
    /// one moment. `visit` gets each and says how to continue. May block on disk.
    pub fn scan_versions(
        &self,
        bucket: &str,
        prefix: &str,
        begin: VersionPosition<'_>,
        visit: impl FnMut(Entry) -> Step,
    ) -> Result<(), Error> {
        self.existing_bucket(bucket)?;
        let view = self.view();
        let (all_objects, all_versions) =
            (object_key(bucket, prefix), escaped_prefix(bucket, prefix));
        // With the key of which some versions were listed before.
        let begin = match begin {
            VersionPosition::Key(begin) => (bounds(bucket, begin), None),
            VersionPosition::AfterVersion(key, id) => {
                let within = within_key(&view, &object_key(bucket, key), id)?;
                (within, Some(key.to_owned()))
            }
        };
        let versions = |((objects, versions), mut within): (Bounds, Option<String>)| {
            let found = merged(
                under(all_objects.clone(), |begin| view.objects(begin), objects).map(of_object),
                under(all_versions.clone(), |begin| view.versions(begin), versions).map(of_version),
            );
            found.map(move |found| {
                let ((key, at), record) = found?;
                debug_assert!(
                    at.is_none_or(|at| record.id() == VersionId::Null || at == record.place())
                );
                let is_latest = at.is_none() || within.as_ref() != Some(&key);
                within = Some(key.clone());
                Ok(entry(key, record, is_latest))
            })
        };
        let behind = |prefix: &str| (bounds(bucket, Position::Behind(prefix)), None);
        walk(begin, versions, behind, visit)
    }

    /// The delete marker that hides an object, if one does. May block on disk.
    pub fn delete_marker(&self, bucket: &str, key: &str) -> Result<Option<VersionId>, Error> {
        let view = self.view();
        let object_key = checked_key(bucket, key)?;
        let info = view.existing_bucket(bucket)?;
        if info.versioning == Versioning::Never || view.object(&object_key)?.is_some() {
            return Ok(None);
        }
        let newest = view.versions_of(&object_key).next().transpose()?;
        Ok(newest.map(|(_, record)| record.id()))
    }
}

/// Visits the entries from `begin` on. Begins again `behind` a prefix that is skipped.
fn walk<B, I: Iterator<Item = Result<Entry, Error>>>(
    mut begin: B,
    entries: impl Fn(B) -> I,
    behind: impl Fn(&str) -> B,
    mut visit: impl FnMut(Entry) -> Step,
) -> Result<(), Error> {
    'skip: loop {
        for found in entries(begin) {
            match visit(found?) {
                Step::Entry => {}
                Step::Behind(prefix) => {
                    begin = behind(&prefix);
                    continue 'skip;
                }
                Step::End => break,
            }
        }
        return Ok(());
    }
}

/// The lower bounds of objects and of versions.
type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

fn bounds(bucket: &str, begin: Position<'_>) -> Bounds {
    match begin {
        Position::After(key) if !key.is_empty() => (
            Bound::Excluded(object_key(bucket, key)),
            Bound::Included(behind_key(bucket, key)),
        ),
        Position::Behind(prefix) if !prefix.is_empty() => (
            Bound::Included(behind(bucket, prefix)),
            Bound::Included(behind_prefix(bucket, prefix)),
        ),
        _ => (Bound::Unbounded, Bound::Unbounded),
    }
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
type Found = Result<((String, Option<VersionPlace>), Record), Error>;

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

fn entry(key: String, record: Record, is_latest: bool) -> Entry {
    Entry {
        key,
        id: record.id(),
        is_latest,
        is_marker: record.payload == Payload::Marker,
        len: record.len,
        etag: record.meta.etag,
        created_ms: record.meta.created_ms,
        headers: record.meta.headers,
    }
}
