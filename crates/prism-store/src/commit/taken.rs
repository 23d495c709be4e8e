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
    /// The life of the bucket at the source.
    pub(crate) life: Stamp,
    /// The stamp of the scope's last change.
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
    /// All versions of a key, the newest first.
    Versions(Vec<TakenVersion>),
}

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
}

impl Taken {
    /// The length of an object or a part, in bytes.
    pub(super) fn len(&self) -> u64 {
        match self {
            Self::Whole(record, ..) | Self::Parts(record, ..) => record.len,
            Self::Upload(_) | Self::Marker(_) | Self::Versions(_) => 0,
        }
    }

    pub(super) fn files(&self) -> Vec<FileId> {
        match self {
            Self::Whole(_, id, PutBytes::File(_)) => vec![*id],
            Self::Parts(_, _, _, files) => files.iter().map(|(id, _)| *id).collect(),
            Self::Versions(versions) => {
                let taken = versions.iter().filter_map(|version| version.taken.as_ref());
                taken.flat_map(Self::files).collect()
            }
            Self::Whole(..) | Self::Upload(_) | Self::Marker(_) => Vec::new(),
        }
    }
}
