//! Damage: its place, and its report to whoever repairs it.

use std::{
    fmt,
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::{
    error::Error, keys::split_object_key, layout::FileId, record::Payload, types::UploadId,
    view::View,
};

/// Damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScrubFault {
    /// Its place.
    pub place: Place,
    /// A description of the damage.
    pub what: String,
}

/// The place of a fault.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Place {
    /// In an object's bytes.
    Object(ObjectPlace),
    /// In one of the store's own files.
    Store {
        /// The file.
        path: PathBuf,
        /// The first byte that may be wrong, where that is known.
        offset: Option<u64>,
    },
}

/// The place of a block of an object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectPlace {
    /// Its bucket.
    pub bucket: String,
    /// Its key.
    pub key: String,
    /// The unfinished upload of a part; none for an object.
    pub upload: Option<UploadId>,
    /// The number of the part, for an object or upload that has parts.
    pub part: Option<u16>,
    /// The block, as an offset within the object, or within the part.
    pub offset: u64,
}

/// Receives every fault of an object that a scrub or a read meets, to repair it. The call may
/// block, but a reader waits for it: long work belongs on another thread.
pub trait Repair: Send + Sync {
    /// Damage was found.
    fn damaged(&self, fault: &ScrubFault);
}

/// The damage that readers have met.
#[derive(Default)]
pub(crate) struct Corruption {
    pub(crate) reads: AtomicU64,
    pub(crate) repair: OnceLock<Arc<dyn Repair>>,
}

impl Corruption {
    /// Counts a read that met damage in the tree.
    pub(crate) fn note_object(&self, object_key: &[u8], error: &Error) {
        self.note_at(object_place(object_key, (None, None), 0), error);
    }

    /// Counts a read that met a damaged block.
    pub(crate) fn note(&self, view: &View<'_>, id: FileId, offset: u64, error: &Error) {
        match view.file(id) {
            Ok(Some(record)) => {
                self.note_at(place_of(view, id, &record.object_key, offset), error);
            }
            _ => {
                self.reads.fetch_add(1, Ordering::Relaxed);
                tracing::error!(file = %id, %error, "read of a damaged file");
            }
        }
    }

    fn note_at(&self, place: Place, error: &Error) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let what = error.to_string();
        let fault = ScrubFault { place, what };
        tracing::error!(%fault, "read of a damaged object");
        self.tell(&fault);
    }

    pub(crate) fn tell(&self, fault: &ScrubFault) {
        if let (Place::Object(_), Some(repair)) = (&fault.place, self.repair.get()) {
            repair.damaged(fault);
        }
    }
}

pub(crate) fn object_place(object_key: &[u8], part: PartOf, offset: u64) -> Place {
    let (upload, part) = part;
    let (bucket, key) = split_object_key(object_key).unwrap_or_default();
    Place::Object(ObjectPlace {
        bucket: bucket.to_owned(),
        key: key.to_owned(),
        upload,
        part,
        offset,
    })
}

/// The place of a block of a file.
pub(crate) fn place_of(view: &View<'_>, id: FileId, object_key: &[u8], offset: u64) -> Place {
    let part = part_of(view, id, object_key).unwrap_or_default();
    object_place(object_key, part, offset)
}

/// The unfinished upload of a part, and the part's number.
type PartOf = (Option<UploadId>, Option<u16>);

/// The part that a file has. None for a whole object, and for a file in no list of parts.
fn part_of(view: &View<'_>, id: FileId, object_key: &[u8]) -> Result<PartOf, Error> {
    if let Some(record) = view.object(object_key)? {
        match record.payload {
            Payload::File { id: whole } if whole == id => return Ok((None, None)),
            Payload::Parts { id: manifest } => {
                let manifest = view.manifest(manifest)?;
                let parts = manifest.map(|manifest| manifest.parts).unwrap_or_default();
                if let Some(part) = parts.iter().find(|part| part.file == id) {
                    return Ok((None, Some(part.number)));
                }
            }
            _ => {}
        }
    }
    let part = view.upload_of_file(id, object_key)?.unzip();
    Ok(part)
}

impl fmt::Display for ScrubFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Object(at) => {
                write!(f, "{}/{}", at.bucket, at.key)?;
                if let Some(upload) = at.upload {
                    write!(f, " upload {upload}")?;
                }
                if let Some(part) = at.part {
                    write!(f, " part {part}")?;
                }
                write!(f, " at {}: {}", at.offset, self.what)
            }
            Place::Store { path, offset } => {
                write!(f, "{}", path.display())?;
                if let Some(offset) = offset {
                    write!(f, " at {offset}")?;
                }
                write!(f, ": {}", self.what)
            }
        }
    }
}
