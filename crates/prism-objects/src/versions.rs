//! Versions of objects as clients see them: how they are named, what answers
//! say of them, how they are listed and deleted.

use std::io;

use prism_http::ResponseHead;
use prism_replicas::delete;
use prism_replicas::{Item, Line, ListWanted, Question, place, store_error};
use prism_s3::op::ReadObject;
use prism_s3::xml::{self, VersionsPage};
use prism_s3::{BucketName, Code, ListVersions, ObjectKey, S3Error};
use prism_service::set;
use prism_store::{Error, Removed, Store, VersionId};

use crate::answer::from_ms;
use crate::get::quoted;
use crate::objects::{Objects, Request};

/// Names the version that an answer is about.
pub(crate) const ID: &str = "x-amz-version-id";
/// Names the version that was copied.
pub(crate) const SOURCE_ID: &str = "x-amz-copy-source-version-id";
/// Says that what an answer is about is a delete marker.
const MARKER: &str = "x-amz-delete-marker";

/// Says which version it is; nothing where its bucket kept none.
pub(crate) fn set_id(head: &mut ResponseHead, version: Option<VersionId>) -> io::Result<()> {
    match version {
        Some(id) => set(head, ID, id.to_string()),
        None => Ok(()),
    }
}

/// Says what a deletion came to.
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

/// What answers a GET or HEAD of what is not there, and the head for it: it
/// names the delete marker where that is the reason.
pub(crate) fn missing(
    store: &Store,
    (bucket, key, read): (&BucketName, &ObjectKey, &ReadObject),
    found: Result<(), Error>,
) -> io::Result<(ResponseHead, S3Error)> {
    let (error, marker) = match found {
        Err(Error::IsDeleteMarker) => (
            Code::MethodNotAllowed.into(),
            delete::named(read.version.as_deref()).ok(),
        ),
        Err(error) => (store_error(&error), None),
        Ok(()) => match store.delete_marker(bucket.as_str(), key.as_str()) {
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
    /// The page of versions that the client asked for.
    pub(crate) async fn list_versions(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListVersions,
    ) -> Result<Vec<u8>, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.version_marker.clone())),
        };
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListVersions(ListWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after,
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self.merge(request, (after, list.max), question).await?;
        Ok(page(bucket, list, lines, more))
    }
}

fn page(bucket: &BucketName, list: &ListVersions, lines: Vec<Line>, more: bool) -> Vec<u8> {
    let next = lines.last().filter(|_| more).map(|line| {
        let (name, id) = place(line);
        (name.to_owned(), id.to_owned())
    });
    let mut page = VersionsPage {
        bucket,
        request: list,
        versions: Vec::new(),
        common_prefixes: Vec::new(),
        next,
    };
    for (key, item) in lines {
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
