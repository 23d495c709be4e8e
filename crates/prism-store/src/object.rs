//! Objects opened for reading, and the files of those that have several. Each file is opened
//! when it is needed, so 10,000 parts do not need 10,000 descriptors.

use std::{
    any::Any,
    collections::HashMap,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use prism_cluster::replica::Stamp;

use crate::{
    checked::CheckedFile,
    error::Error,
    inner::Inner,
    layout::FileId,
    types::{ObjectMeta, UploadId, VersionId},
    uploads::{Garbage, Manifest},
};

/// An object opened for reading. It stays readable, unchanged, whatever is
/// written to its key meanwhile.
#[derive(Debug)]
pub struct Object {
    /// The stamp of the last change of its bytes or metadata.
    pub stamp: Stamp,
    /// The version's name; none if its bucket had never kept versions.
    pub version: Option<VersionId>,
    /// As given at commit.
    pub meta: ObjectMeta,
    /// Length in bytes.
    pub len: u64,
    /// The bytes, or their files.
    pub body: Body,
    /// A value that readers derive from the object once, and share while it stays in memory.
    pub derived: Derived,
}

/// A value that a reader derives from an object, such as the head of an answer. The store
/// never looks at it.
#[derive(Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// The value, made by the first call; `None` if that made another type.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Derived")
            .field(&self.0.get().is_some())
            .finish()
    }
}

/// The bytes of an object.
#[derive(Debug)]
pub enum Body {
    /// A small object, checked against its checksum.
    Inline(Vec<u8>),
    /// A large object. Check each block before you send it.
    File(CheckedFile),
    /// An object uploaded in parts. Check their blocks likewise.
    Parts(Parts),
}

/// An object of parts, opened for reading. It stays readable and unchanged, whatever is written
/// to its key.
pub struct Parts {
    pin: Pin,
    manifest: Manifest,
}

/// Bytes of one part's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The index of the part, from 0.
    pub index: usize,
    /// Offset in its file.
    pub offset: u64,
    /// Bytes; at least one.
    pub len: u64,
}

impl Parts {
    pub(crate) fn new(pin: Pin, manifest: Manifest) -> Self {
        Self { pin, manifest }
    }

    /// Number of parts.
    #[must_use]
    pub fn count(&self) -> usize {
        self.manifest.parts.len()
    }

    /// The upload that made the object.
    #[must_use]
    pub fn upload(&self) -> UploadId {
        self.manifest.upload
    }

    /// The number, length and headers of each part, from index 0 on.
    pub fn iter(&self) -> impl Iterator<Item = (u16, u64, &[(String, String)])> {
        let parts = self.manifest.parts.iter();
        parts.map(|part| (part.number, part.len, part.headers.as_slice()))
    }

    /// The range of one part's bytes in the object; `None` behind the last part.
    #[must_use]
    pub fn range_of(&self, index: usize) -> Option<Range<u64>> {
        let before = self.manifest.parts.get(..index)?;
        let start: u64 = before.iter().map(|part| part.len).sum();
        let part = self.manifest.parts.get(index)?;
        Some(start..start + part.len)
    }

    /// The segments of `len` bytes from `offset` on, in order, up to the object's end.
    #[must_use]
    pub fn segments(&self, offset: u64, len: u64) -> Vec<Segment> {
        let end = offset.saturating_add(len);
        let mut segments = Vec::new();
        let mut start = 0;
        for (index, part) in self.manifest.parts.iter().enumerate() {
            let first = offset.max(start);
            let last = end.min(start + part.len);
            if first < last {
                segments.push(Segment {
                    index,
                    offset: first - start,
                    len: last - first,
                });
            }
            start += part.len;
        }
        segments
    }

    /// Opens the file of one part. May block on disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is missing, or not as long as it was.
    pub fn open(&self, index: usize) -> Result<CheckedFile, Error> {
        let part = self.manifest.parts.get(index);
        let part = part.ok_or(Error::InvalidName("no such part"))?;
        let store = &self.pin.store;
        let record = || store.lsm.view().file(part.file);
        let file = CheckedFile::open(store, part.file, part.len, record)?;
        file.ok_or_else(|| Error::corrupt("file of a part missing"))
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// The manifests that are being read, at most as many as readers. An open file outlives its
/// name, but the other files of the object would be gone, so they stay as long as a reader has
/// the object.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    by_manifest: Mutex<HashMap<FileId, Pinned>>,
}

#[derive(Debug, Default)]
struct Pinned {
    readers: usize,
    /// Whether the last reader collects the files.
    doomed: bool,
}

impl Pins {
    pub(crate) fn pin(&self, manifest: FileId) {
        self.locked().entry(manifest).or_default().readers += 1;
    }

    /// A reader is done; whether the caller has to collect the manifest now.
    pub(crate) fn unpin(&self, manifest: FileId) -> bool {
        let mut pins = self.locked();
        let Some(pin) = pins.get_mut(&manifest) else {
            return false;
        };
        pin.readers = pin.readers.saturating_sub(1);
        if pin.readers > 0 {
            return false;
        }
        let doomed = pin.doomed;
        pins.remove(&manifest);
        doomed
    }

    /// The object is gone; whether the caller has to collect the manifest now. Otherwise its last
    /// reader will.
    pub(crate) fn doom(&self, manifest: FileId) -> bool {
        match self.locked().get_mut(&manifest) {
            None => true,
            Some(pin) => {
                pin.doomed = true;
                false
            }
        }
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<FileId, Pinned>> {
        self.by_manifest
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Keeps the files of a manifest as long as a reader has it.
pub(crate) struct Pin {
    store: Arc<Inner>,
    id: FileId,
}

impl Pin {
    pub(crate) fn new(store: &Arc<Inner>, id: FileId) -> Self {
        store.pins.pin(id);
        let store = Arc::clone(store);
        Self { store, id }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if !self.store.pins.unpin(self.id) {
            return;
        }
        // The object was replaced while it was read, which is rare. This thread may be one
        // that must not block. If no other starts, the next opening of the store cleans up.
        let store = Arc::clone(&self.store);
        let garbage = Garbage::Manifest(self.id);
        let collect = move || store.collect(garbage);
        if let Err(error) = std::thread::Builder::new()
            .name("prism-collect".into())
            .spawn(collect)
        {
            tracing::warn!(%error, "files of a replaced object stay until the next start");
        }
    }
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("id", &self.pin.id)
            .field("count", &self.count())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_reader_of_what_is_gone_sees_to_it() {
        let (pins, id) = (Pins::default(), FileId::from_bytes([1; 8]));
        assert!(pins.doom(id));
        pins.pin(id);
        pins.pin(id);
        assert!(!pins.doom(id));
        assert!(!pins.unpin(id));
        assert!(pins.unpin(id));
        assert!(!pins.unpin(id));
        pins.pin(id);
        assert!(!pins.unpin(id));
    }
}
