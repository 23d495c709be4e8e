//! Versions of objects as clients see them: their names in answers, and their listing.

use std::io;

use prism_http::ResponseHead;
use prism_replicas::delete::named;
use prism_replicas::{Item, ListWanted, Question, store_error};
use prism_s3::op::ReadObject;
use prism_s3::xml::{self, VersionsPage};
use prism_s3::{BucketName, Code, ListVersions, ObjectRef, S3Error};
use prism_service::set;
use prism_store::{Error, Removed, Store, VersionId};

use crate::answer::{Answer, from_ms};
use crate::get::quoted;
use crate::merge::{Page, ShareWanted};
use crate::objects::Objects;
use crate::request::Request;

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

impl Objects {
    /// The page of versions that the client asks for.
    pub(crate) async fn list_versions(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListVersions,
    ) -> Result<Answer, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.version_marker.clone())),
        };
        let question = |share: ShareWanted| {
            Question::ListVersions(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: share.after,
                max: share.max,
                without: share.without,
            })
        };
        let merged = self.merge_shares(request, after, list.max, question);
        Ok(Answer::xml(versions_page(bucket, list, merged.await?)))
    }
}

fn versions_page(bucket: &BucketName, list: &ListVersions, merged: Page) -> Vec<u8> {
    let mut page = VersionsPage {
        bucket,
        request: list,
        versions: Vec::new(),
        common_prefixes: Vec::new(),
        next: merged.next(),
    };
    for (key, item) in merged.lines {
        match item {
            Item::Version {
                id,
                is_latest,
                created_ms,
                object,
            } => page.versions.push(xml::VersionEntry {
                key,
                id,
                is_latest,
                modified: from_ms(created_ms),
                object: object.map(|(etag, len)| (quoted(&etag), len)),
            }),
            Item::Prefix => page.common_prefixes.push(key),
            Item::Key { .. } | Item::Upload { .. } => {}
        }
    }
    page.xml()
}
