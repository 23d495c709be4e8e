//! Versions of objects as clients see them: their names in answers.

use std::io;

use prism_http::ResponseHead;
use prism_replicas::delete::named;
use prism_replicas::store_error;
use prism_s3::op::ReadObject;
use prism_s3::{Code, ObjectRef, S3Error};
use prism_service::set;
use prism_store::{Error, Removed, Store, VersionId};

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
    match removed.is_marker {
        true => set(head, MARKER, "true"),
        false => Ok(()),
    }
}

/// The error for a GET or HEAD that finds no object, and its head, which names the delete
/// marker if there is one.
pub(crate) fn missing_object(
    store: &Store,
    object: &ObjectRef,
    read: &ReadObject,
    found: Result<(), Error>,
) -> io::Result<(ResponseHead, S3Error)> {
    let (error, marker) = match found {
        Err(Error::IsDeleteMarker) => (
            Code::MethodNotAllowed.into(),
            named(read.version.as_deref()).ok(),
        ),
        Err(error) => (store_error(&error), None),
        Ok(()) => match store.delete_marker(object.bucket.as_str(), object.key.as_str()) {
            Ok(marker) => (Code::NoSuchKey.into(), Some(marker)),
            Err(error) => (store_error(&error), None),
        },
    };
    let mut head = ResponseHead::new(error.status());
    if let Some(version) = marker.flatten() {
        let is_marker = true;
        set_removed(&mut head, Some(Removed { version, is_marker }))?;
    }
    if error.code() == Code::MethodNotAllowed {
        set(&mut head, "Allow", "DELETE")?;
    }
    Ok((head, error))
}
