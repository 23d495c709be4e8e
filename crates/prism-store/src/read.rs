//! Reads of objects and of versions.

use std::{sync::Arc, thread};

use crate::{
    blocks,
    checked::CheckedFile,
    commit::version_of,
    error::Error,
    hot::Worth,
    keys::{checked_key, object_key},
    layout::FileId,
    object::{Body, Derived, Object, Parts, Pin},
    primary::Primary,
    record::{Payload, Record},
    store::Store,
    types::{ObjectInfo, VersionId},
    uploads::Garbage,
    view::View,
};

/// Most attempts of a reader whose file is replaced before it is opened. Each needs another
/// commit between two of its system calls.
const OPEN_ATTEMPTS: usize = 64;

impl Store {
    /// Opens an object; `None` if the key has none. An unchanged object that was read a moment
    /// ago comes from memory. May block on disk.
    pub fn get(&self, bucket: &str, key: &str) -> Result<Option<Arc<Object>>, Error> {
        let object_key = object_key(bucket, key);
        let hot = &self.committer().hot;
        let (found, leave) = hot.get(&object_key);
        if let Some(object) = found
            && match &object.body {
                Body::File(file) => file.is_still_good(&self.storage().known),
                Body::Inline(_) | Body::Parts(_) => true,
            }
        {
            return Ok(Some(object));
        }
        let found = self.get_version(bucket, key, None)?.map(Arc::new);
        if let Some(object) = &found {
            let worth = match &object.body {
                Body::Inline(bytes) => Some(Worth::Small(bytes.len() as u64)),
                Body::File(file) if file.was_good() => Some(Worth::File),
                Body::File(_) | Body::Parts(_) => None,
            };
            if let Some(worth) = worth {
                hot.insert(object_key, leave, object, worth);
            }
        }
        Ok(found)
    }

    /// Opens an object, or one version of it. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchVersion`], [`Error::IsDeleteMarker`].
    pub fn get_version(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<Object>, Error> {
        // The repair of an object is that of its current version.
        let is_current = || {
            let current = self.lookup(&self.view(), bucket, key, None);
            let is_it = |record: &Record| version.is_none_or(|version| record.id() == version);
            current.is_ok_and(|current| current.as_ref().is_some_and(is_it))
        };
        let note = |error: &Error| {
            if error.is_damage() && is_current() {
                let object_key = object_key(bucket, key);
                self.storage().corruption.note_object(&object_key, error);
            }
        };
        let mut missing = None;
        for _ in 0..OPEN_ATTEMPTS {
            let view = self.view();
            let Some(record) = self.lookup(&view, bucket, key, version)? else {
                return Ok(None);
            };
            // A file is gone if the object was replaced meanwhile. It is not looked for twice.
            if missing.replace(record.payload) == Some(record.payload) {
                break;
            }
            let body = match record.payload {
                Payload::Inline { id, crc } => {
                    Some(inline_body(&view, &record, id, crc).inspect_err(note)?)
                }
                Payload::File { id } => {
                    let opened =
                        CheckedFile::open(self.storage(), id, record.len, || view.file(id));
                    opened.inspect_err(note)?.map(Body::File)
                }
                Payload::Parts { id } => {
                    let parts = self.open_parts(bucket, key, version, id);
                    parts.inspect_err(note)?.map(Body::Parts)
                }
                Payload::Marker => return Err(Error::IsDeleteMarker),
            };
            if let Some(body) = body {
                return Ok(Some(Object {
                    stamp: record.stamp,
                    version: record.version,
                    meta: record.meta,
                    len: record.len,
                    body,
                    derived: Derived::default(),
                }));
            }
        }
        let error = Error::corrupt("object file missing");
        note(&error);
        Err(error)
    }

    /// Looks an object up; `None` if the key has none. May block on disk.
    pub fn head(&self, bucket: &str, key: &str) -> Result<Option<ObjectInfo>, Error> {
        self.head_version(bucket, key, None)
    }

    /// Looks an object up, or one version of it. May block on disk.
    ///
    /// # Errors
    /// As for [`Store::get_version`].
    pub fn head_version(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<ObjectInfo>, Error> {
        let found = self.lookup(&self.view(), bucket, key, version)?;
        Ok(found.map(|record| ObjectInfo {
            stamp: record.stamp,
            version: record.version,
            meta: record.meta,
            len: record.len,
        }))
    }

    pub(crate) fn lookup(
        &self,
        view: &View<'_>,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
    ) -> Result<Option<Record>, Error> {
        let object_key = checked_key(bucket, key)?;
        if let Some(id) = version {
            let (record, _) = version_of(view, &object_key, id)?;
            return match record.payload {
                Payload::Marker => Err(Error::IsDeleteMarker),
                _ => Ok(Some(record)),
            };
        }
        let found = view.object(&object_key)?;
        if found.is_none() {
            view.existing_bucket(bucket)?;
        }
        Ok(found)
    }

    /// `None` if the object was replaced.
    fn open_parts(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        id: FileId,
    ) -> Result<Option<Parts>, Error> {
        // Pinned before it is looked up: a commit that replaces the object from now on sees
        // the pin.
        let primary = Arc::clone(&self.primary);
        let collect = move || collect_apart(&primary, Garbage::Manifest(id));
        let pin = Pin::new(self.storage(), id, collect);
        let view = self.view();
        let record = self.lookup(&view, bucket, key, version)?;
        if record.is_none_or(|record| record.payload != Payload::Parts { id }) {
            return Ok(None);
        }
        let manifest = view.manifest(id)?;
        let manifest = manifest.ok_or_else(|| Error::corrupt("manifest missing"))?;
        Ok(Some(Parts::new(pin, manifest)))
    }
}

/// Collects the files of an object that was replaced while it was read, which is rare. The
/// calling thread may be one that must not block. If no other starts, the next opening of the
/// store cleans up.
fn collect_apart(primary: &Arc<Primary>, garbage: Garbage) {
    let primary = Arc::clone(primary);
    let thread = thread::Builder::new().name("prism-collect".into());
    if let Err(error) = thread.spawn(move || primary.committer.collect(garbage)) {
        tracing::warn!(%error, "files of a replaced object stay until the next start");
    }
}

pub(crate) fn inline_body(
    view: &View<'_>,
    record: &Record,
    id: FileId,
    crc: u32,
) -> Result<Body, Error> {
    let bytes = view
        .inline(id)?
        .ok_or_else(|| Error::corrupt("inline bytes missing"))?;
    if bytes.len() as u64 != record.len || blocks::crc32c(&bytes) != crc {
        return Err(Error::corrupt("checksum of inline bytes differs"));
    }
    Ok(Body::Inline(bytes))
}
