//! What was fetched of another replica, to be committed: one thing, or all versions of a
//! key.

use prism_replica::Stamp;

use super::PutBytes;
use crate::{
    layout::FileId,
    record::Record,
    replica::Scope as Changed,
    uploads::{Manifest, UploadRecord},
    versions::{Place, VersionId},
};

/// What another replica has of a scope, as of an epoch.
pub(crate) struct TakeInOp {
    /// None: in place of the same, which is damaged.
    pub(crate) since: Option<u64>,
    pub(crate) scope: Changed,
    pub(crate) object_key: Vec<u8>,
    /// The life of its bucket at the source.
    pub(crate) life: Stamp,
    pub(crate) stamp: Stamp,
    pub(crate) taken: Taken,
}

/// What it consists of; its files are in place.
pub(crate) enum Taken {
    /// An object, or a part.
    Whole(Record, FileId, PutBytes),
    /// An object of several files.
    Parts(Record, FileId, Manifest, Vec<(FileId, Vec<u8>)>),
    Upload(UploadRecord),
    /// A delete marker.
    Marker(Record),
}

/// All versions of a key that another replica has, as of an epoch.
pub(crate) struct TakeVersionsOp {
    pub(crate) since: u64,
    pub(crate) scope: Changed,
    pub(crate) object_key: Vec<u8>,
    /// The life of its bucket at the source.
    pub(crate) life: Stamp,
    /// The stamp of the key's last change.
    pub(crate) stamp: Stamp,
    /// Whole, the newest first.
    pub(crate) versions: Vec<TakenVersion>,
}

/// One of them.
pub(crate) struct TakenVersion {
    pub(crate) place: Place,
    pub(crate) version: Option<VersionId>,
    /// Of the version itself.
    pub(crate) stamp: Stamp,
    /// If it was fetched: its files are in place.
    pub(crate) taken: Option<Taken>,
}

impl TakenVersion {
    /// Whether this record is of that version, as it is now.
    pub(crate) fn is(&self, record: &Record) -> bool {
        record.stamp == self.stamp && record.version == self.version
    }

    pub(super) fn len(&self) -> Option<u64> {
        self.taken.as_ref().and_then(Taken::len)
    }
}

impl Taken {
    /// Bytes of an object, or of a part.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Whole(record, ..) | Self::Parts(record, ..) => Some(record.len),
            Self::Upload(_) | Self::Marker(_) => None,
        }
    }
}

/// Files that are in place for it.
pub(super) fn files_of(taken: &Taken) -> impl Iterator<Item = FileId> {
    let (whole, parts) = match taken {
        Taken::Whole(_, id, PutBytes::File(_)) => (Some(*id), None),
        Taken::Parts(_, _, _, files) => (None, Some(files)),
        Taken::Whole(..) | Taken::Upload(_) | Taken::Marker(_) => (None, None),
    };
    let parts = parts.into_iter().flatten().map(|(id, _)| *id);
    whole.into_iter().chain(parts)
}

impl TakeVersionsOp {
    /// What was fetched.
    pub(super) fn taken(&self) -> impl Iterator<Item = &Taken> {
        self.versions
            .iter()
            .filter_map(|version| version.taken.as_ref())
    }
}
