//! Copies fetched from another replica, to be committed: one scope, or all versions of a key.

use prism_replica::Stamp;

use crate::{
    layout::FileId,
    record::{PutBytes, Record},
    replica::Scope,
    types::{Place, VersionId},
    uploads::{Manifest, UploadRecord},
};

/// A copy of a scope, as of an epoch.
pub(crate) struct TakeInOp {
    /// The epoch; none for a copy that replaces a damaged scope.
    pub(crate) since: Option<u64>,
    pub(crate) scope: Scope,
    pub(crate) object_key: Vec<u8>,
    /// The life of the bucket at the source.
    pub(crate) life: Stamp,
    pub(crate) stamp: Stamp,
    pub(crate) taken: Taken,
}

/// The contents of a copy. Its files have their names.
pub(crate) enum Taken {
    /// An object, or a part.
    Whole(Record, FileId, PutBytes),
    /// An object of several files.
    Parts(Record, FileId, Manifest, Vec<(FileId, PutBytes)>),
    Upload(UploadRecord),
    /// A delete marker.
    Marker(Record),
}

/// Copies of all versions of a key, as of an epoch.
pub(crate) struct TakeVersionsOp {
    pub(crate) since: u64,
    pub(crate) scope: Scope,
    pub(crate) object_key: Vec<u8>,
    /// The life of the bucket at the source.
    pub(crate) life: Stamp,
    /// The stamp of the key's last change.
    pub(crate) stamp: Stamp,
    /// The newest first.
    pub(crate) versions: Vec<TakenVersion>,
}

/// One version.
pub(crate) struct TakenVersion {
    pub(crate) place: Place,
    pub(crate) version: Option<VersionId>,
    /// The stamp of the version itself.
    pub(crate) stamp: Stamp,
    /// The copy; none if the store has the version.
    pub(crate) taken: Option<Taken>,
}

impl TakenVersion {
    /// Whether this record is of the same state of the version.
    pub(crate) fn is(&self, record: &Record) -> bool {
        record.stamp == self.stamp && record.version == self.version
    }

    pub(super) fn len(&self) -> Option<u64> {
        self.taken.as_ref().and_then(Taken::len)
    }
}

impl Taken {
    /// The length of an object or a part, in bytes.
    pub(super) fn len(&self) -> Option<u64> {
        match self {
            Self::Whole(record, ..) | Self::Parts(record, ..) => Some(record.len),
            Self::Upload(_) | Self::Marker(_) => None,
        }
    }
}

/// The files of a copy.
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
    /// The copies.
    pub(super) fn taken(&self) -> impl Iterator<Item = &Taken> {
        self.versions
            .iter()
            .filter_map(|version| version.taken.as_ref())
    }
}
