//! Copies fetched from another replica, to be committed: one scope, or all versions of a key.

use prism_replica::Stamp;

use crate::{
    layout::FileId,
    record::{PutBytes, Record},
    replica::{Scope, VersionSummary},
    types::UploadId,
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

/// The contents of a copy.
pub(crate) enum Taken {
    /// An object, or a part.
    Scope(Fetched),
    Upload(UploadId, UploadRecord),
    /// All versions of a key, the newest first. The store has those that were not fetched.
    Versions(Vec<(VersionSummary, Option<Fetched>)>),
}

/// The copy of an object, a part or a version. Its files have their names.
pub(crate) struct Fetched {
    pub(crate) record: Record,
    /// The bytes, or those of each part; none of a delete marker.
    pub(crate) bytes: Vec<(FileId, PutBytes)>,
    /// The parts, by the id in the record.
    pub(crate) manifest: Option<(FileId, Manifest)>,
}

impl Taken {
    pub(super) fn files(&self) -> Vec<FileId> {
        match self {
            Self::Scope(fetched) => fetched.files().collect(),
            Self::Upload(..) => Vec::new(),
            Self::Versions(versions) => {
                let fetched = versions.iter().filter_map(|(_, fetched)| fetched.as_ref());
                fetched.flat_map(Fetched::files).collect()
            }
        }
    }
}

impl Fetched {
    pub(super) fn files(&self) -> impl Iterator<Item = FileId> {
        let files = self.bytes.iter();
        files.filter_map(|(id, bytes)| matches!(bytes, PutBytes::File(_)).then_some(*id))
    }
}
