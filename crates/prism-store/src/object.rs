//! Objects opened for reading, and the files of those that have several. Each file is opened
//! when it is needed, so 10,000 parts do not need 10,000 descriptors.

use std::{
    any::Any,
    fmt,
    ops::Range,
    sync::{Arc, OnceLock},
};

use prism_cluster::replica::Stamp;

use crate::{
    checked::CheckedFile,
    error::Error,
    layout::FileId,
    storage::Storage,
    types::{ObjectMeta, UploadId, VersionId},
    uploads::Manifest,
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
#[derive(Debug, Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// The value, made by the first call; `None` if that made another type.
    pub fn get_or_make<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
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
        let storage = &self.pin.storage;
        let record = || storage.lsm.view().file(part.file);
        let opened = CheckedFile::open(storage, part.file, part.len, record);
        let file = opened.and_then(|file| {
            let missing = || Error::corrupt("file of a part missing");
            file.ok_or_else(missing)
        });
        file.inspect_err(|error| {
            if error.is_damage() {
                let view = storage.lsm.view();
                storage.corruption.note(&view, part.file, 0, error);
            }
        })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }
}

/// Keeps the files of a manifest as long as a reader has it.
pub(crate) struct Pin {
    storage: Arc<Storage>,
    id: FileId,
    collect: Box<dyn Fn() + Send + Sync>,
}

impl Pin {
    /// Pins a manifest. `collect` removes its files, if the object is gone when the last reader
    /// is done. The thread may be one that must not block.
    pub(crate) fn new(
        storage: &Arc<Storage>,
        id: FileId,
        collect: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        storage.pins.pin(id);
        Self {
            storage: Arc::clone(storage),
            id,
            collect: Box::new(collect),
        }
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.storage.pins.unpin(self.id) {
            (self.collect)();
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
