//! Versions of objects as clients see them: their names in answers.

use std::io;

use prism_http::ResponseHead;
use prism_service::set;
use prism_store::{Removed, VersionId};

/// The field that names an answer's version.
pub(crate) const ID: &str = "x-amz-version-id";
/// The field that names the version that was copied.
pub(crate) const SOURCE_ID: &str = "x-amz-copy-source-version-id";
/// The field of an answer about a delete marker.
const MARKER: &str = "x-amz-delete-marker";

/// Names the version in an answer. Buckets that never had versioning have none.
pub(crate) fn set_id(head: &mut ResponseHead, version: Option<VersionId>) -> io::Result<()> {
    match version {
        Some(id) => set(head, ID, id.to_string()),
        None => Ok(()),
    }
}

/// Names the version that a deletion removed or made.
pub(crate) fn set_removed(head: &mut ResponseHead, removed: Option<Removed>) -> io::Result<()> {
    let Some(removed) = removed else {
        return Ok(());
    };
    set(head, ID, removed.version.to_string())?;
    if removed.is_marker {
        set(head, MARKER, "true")
    } else {
        Ok(())
    }
}
