//! Copies of single scopes that a store hands over to another one. `take_in` is the other side.

use prism_cluster::replica::Stamp;
use serde::{Deserialize, Serialize};

use super::CatchUp;
use crate::{
    checked::CheckedFile,
    commit::own_versions,
    error::Error,
    object::{Body, Object},
    scope::Scope,
    types::{ObjectMeta, UploadId, place, stamp_at},
    version_summary::VersionSummary,
};

/// Describes a copy whose bytes follow; those of the pieces follow one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handed {
    /// The life of its bucket at the sender. A copy is not taken into another life.
    #[serde(default)]
    pub life: Stamp,
    /// The stamp of its last change.
    pub stamp: Stamp,
    /// Its metadata.
    pub meta: ObjectMeta,
    /// Length in bytes; none for an upload, which has no bytes itself.
    pub len: Option<u64>,
    /// The upload and the parts of an object of several parts.
    pub pieces: Option<(UploadId, Vec<Piece>)>,
    /// The versions of a key that has some, the newest first. Only `life` and `stamp` have a
    /// meaning then, and each version is a copy of its own.
    #[serde(default)]
    pub versions: Option<Vec<VersionSummary>>,
}

/// A copy and its bytes, if it has some.
type Found = Option<(Handed, Option<Body>)>;

impl Handed {
    fn new(stamp: Stamp, meta: ObjectMeta, len: Option<u64>) -> Self {
        Self {
            life: Stamp::NONE,
            stamp,
            meta,
            len,
            pieces: None,
            versions: None,
        }
    }

    fn of_object(object: Object) -> (Self, Option<Body>) {
        let mut handed = Self::new(object.stamp, object.meta, Some(object.len));
        if let Body::Parts(parts) = &object.body {
            let pieces = parts.iter().map(|(number, len, headers)| Piece {
                number,
                len,
                headers: headers.to_vec(),
            });
            handed.pieces = Some((parts.upload(), pieces.collect()));
        }
        (handed, Some(object.body))
    }
}

/// One part of an object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The part's number.
    pub number: u16,
    /// Length in bytes.
    pub len: u64,
    /// As its writer gave them.
    pub headers: Vec<(String, String)>,
}

impl CatchUp<'_> {
    /// A copy of a scope for another store, and its bytes. For a key with versions it is their
    /// list; with a `version`, the copy of the one at this place. May block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`]; [`Error::NoSuchBucket`]; [`Error::Unsettled`] if the bucket begins
    /// another life.
    pub fn hand_over(&self, scope: &Scope, version: Option<Stamp>) -> Result<Found, Error> {
        scope.check()?;
        let life = self.life(&scope.bucket)?;
        let found = match (scope.upload, version) {
            (None, None) => self.find_object(scope)?,
            (None, Some(at)) => self.find_version(scope, at)?,
            (Some((id, None)), _) => {
                let upload = self.store.view().upload(&scope.object_key(), id)?;
                upload.map(|record| (Handed::new(record.stamp, record.meta, None), None))
            }
            (Some((id, Some(number))), _) => self.find_part(id, number)?,
        };
        if self.life(&scope.bucket)? != life {
            return Err(Error::Unsettled);
        }
        Ok(found.map(|(handed, body)| (Handed { life, ..handed }, body)))
    }

    fn find_object(&self, scope: &Scope) -> Result<Found, Error> {
        let object = self.store.get_version(&scope.bucket, &scope.key, None)?;
        // After the object was read: if the key has no versions even now, the object was all
        // that it had.
        let view = self.store.view();
        let object_key = scope.object_key();
        let Some(stamp) = view.change(&object_key)? else {
            return Ok(object.map(Handed::of_object));
        };
        let versions = own_versions(&view, &object_key)?;
        let versions = versions
            .iter()
            .map(|(place, (record, _))| VersionSummary::of_record(stamp_at(*place), record));
        let list = Handed {
            versions: Some(versions.collect()),
            ..Handed::new(stamp, ObjectMeta::default(), None)
        };
        Ok(Some((list, None)))
    }

    fn find_version(&self, scope: &Scope, at: Stamp) -> Result<Found, Error> {
        let view = self.store.view();
        let object_key = scope.object_key();
        let current = view.object(&object_key)?;
        let record = match current.filter(|record| record.place() == place(at)) {
            Some(record) => Some(record),
            None => view.version(&object_key, &place(at))?,
        };
        let Some(id) = record.map(|record| record.id()) else {
            return Ok(None);
        };
        match self.store.get_version(&scope.bucket, &scope.key, Some(id)) {
            Err(Error::NoSuchVersion) => Ok(None),
            found => Ok(found?.map(Handed::of_object)),
        }
    }

    fn find_part(&self, id: UploadId, number: u16) -> Result<Found, Error> {
        let view = self.store.view();
        let Some(record) = view.part(id, number)? else {
            return Ok(None);
        };
        let file = record.file()?;
        let storage = self.store.storage();
        let opened = CheckedFile::open(storage, file, record.len, || view.file(file))?;
        // Mostly the part was replaced. The other store asks again.
        if opened.is_none() {
            let view = self.store.view();
            let present = view.part(id, number)?;
            if present.is_some_and(|present| present.file().is_ok_and(|now| now == file)) {
                let error = Error::corrupt("file of a part missing");
                storage.corruption.note(&view, file, 0, &error);
            }
        }
        let handed = Handed::new(record.stamp, record.meta, Some(record.len));
        Ok(opened.map(|file| (handed, Some(Body::File(file)))))
    }
}
