//! Versions of objects as clients see them: how they are named, what answers
//! say of them, how they are listed and deleted.

use std::io;

use prism_http::ResponseHead;
use prism_s3::op::ReadObject;
use prism_s3::xml::{self, DeleteTarget, VersionsPage};
use prism_s3::{BucketName, Code, Conditions, ListVersions, ObjectKey, S3Error};
use prism_store::{
    Error, ObjectMeta, Position, Removed, Step, Store, ToDelete, VersionEntry, VersionId,
    VersionPosition, Versioning,
};
use serde::{Deserialize, Serialize};

use super::Worker;
use super::answer::{from_ms, set};
use super::ask::Question;
use super::errors::store_error;
use super::fence::elsewhere;
use super::get::quoted;
use super::listing::{Item, Line, ListShare, common_prefix, place};
use super::put::{conditions_error, holds};
use super::replication::Replication;
use super::session::Request;

/// Names the version that an answer is about.
pub(super) const ID: &str = "x-amz-version-id";
/// Names the version that was copied.
pub(super) const SOURCE_ID: &str = "x-amz-copy-source-version-id";
/// Says that what an answer is about is a delete marker.
const MARKER: &str = "x-amz-delete-marker";

/// The version that a client names, if it names one.
pub(super) fn named(version: Option<&str>) -> Result<Option<VersionId>, S3Error> {
    let Some(text) = version else {
        return Ok(None);
    };
    let id = VersionId::parse(text).ok_or_else(|| {
        S3Error::with_message(Code::InvalidArgument, "Invalid version id specified.")
    })?;
    Ok(Some(id))
}

/// Says which version it is; nothing where its bucket kept none.
pub(super) fn set_id(head: &mut ResponseHead, version: Option<VersionId>) -> io::Result<()> {
    match version {
        Some(id) => set(head, ID, id.to_string()),
        None => Ok(()),
    }
}

/// Says what a deletion came to.
pub(super) fn set_removed(head: &mut ResponseHead, removed: Option<Removed>) -> io::Result<()> {
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
pub(super) fn missing(
    store: &Store,
    (bucket, key, read): (&BucketName, &ObjectKey, &ReadObject),
    found: Result<(), Error>,
) -> io::Result<(ResponseHead, S3Error)> {
    let (error, marker) = match found {
        Err(Error::IsDeleteMarker) => (
            Code::MethodNotAllowed.into(),
            named(read.version.as_deref()).ok(),
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

/// Deletes an object, or a version, if the conditions hold. Blocks on disk.
pub(super) fn delete(
    store: &Store,
    bucket: &str,
    deletion: ToDelete<'_>,
    conditions: &Conditions,
) -> Result<Option<Removed>, S3Error> {
    let done = match conditions.is_empty() {
        // Deleting what is not there need not wait for the disk.
        true if deletion.version.is_none() && is_absent(store, bucket, deletion.key)? => Ok(None),
        true => store.delete_version(bucket, deletion, None),
        false => {
            let asked = conditions.clone();
            let condition = Box::new(move |current: Option<&ObjectMeta>| holds(&asked, current));
            store.delete_version(bucket, deletion, Some(condition))
        }
    };
    done.map_err(|e| conditions_error(conditions, &e))
}

/// There is nothing, and nothing to be remembered of it.
fn is_absent(store: &Store, bucket: &str, key: &str) -> Result<bool, S3Error> {
    let found = store.head(bucket, key).map_err(|e| store_error(&e))?;
    if found.is_some() {
        return Ok(false);
    }
    let info = store.buckets().get(bucket).map_err(|e| store_error(&e))?;
    Ok(info.versioning == Versioning::Never)
}

/// What is to be deleted, between nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Target {
    pub(super) key: String,
    pub(super) version: Option<String>,
    pub(super) etag: Option<String>,
}

impl From<&DeleteTarget> for Target {
    fn from(target: &DeleteTarget) -> Self {
        Self {
            key: target.key.clone(),
            version: target.version.clone(),
            etag: target.etag.clone(),
        }
    }
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Deleted {
    /// It is gone; with a delete marker, if one was made or is what is gone.
    Done {
        marker: Option<String>,
    },
    Refused {
        code: String,
        message: String,
    },
}

impl Deleted {
    pub(super) fn into_result(self) -> Result<xml::Deleted, S3Error> {
        match self {
            Self::Done { marker } => Ok(xml::Deleted { marker }),
            Self::Refused { code, message } => {
                let code = Code::parse(&code).unwrap_or(Code::InternalError);
                Err(S3Error::with_message(code, message))
            }
        }
    }

    fn from_result(result: Result<Option<Removed>, S3Error>) -> Self {
        match result {
            Ok(removed) => Self::Done {
                marker: removed
                    .filter(|removed| removed.is_marker)
                    .map(|removed| removed.version.to_string()),
            },
            Err(error) => Self::Refused {
                code: error.code().as_str().to_owned(),
                message: error.message().to_owned(),
            },
        }
    }
}

/// Deletes those of a DeleteObjects that this node owns: together, but for those
/// with conditions. Blocks on disk.
pub(super) fn delete_here(
    (store, replication): (&Store, &Replication),
    bucket: &str,
    targets: &[Target],
) -> Result<Vec<Deleted>, S3Error> {
    let mut results: Vec<Option<Deleted>> = vec![None; targets.len()];
    let (mut plain, mut places) = (Vec::new(), Vec::new());
    for (target, result) in targets.iter().zip(&mut results) {
        if !replication.is_primary(bucket, &target.key) {
            let error = elsewhere();
            tracing::warn!(%error, bucket, key = target.key, "nothing was deleted");
            *result = Some(Deleted::from_result(Err(error)));
            continue;
        }
        let version = match named(target.version.as_deref()) {
            Ok(version) => version,
            Err(error) => {
                *result = Some(Deleted::from_result(Err(error)));
                continue;
            }
        };
        let key = target.key.as_str();
        let deletion = ToDelete { key, version };
        match &target.etag {
            None => {
                plain.push(deletion);
                places.push(result);
            }
            Some(etag) => {
                let conditions = Conditions::matching(etag);
                let done = delete(store, bucket, deletion, &conditions);
                *result = Some(Deleted::from_result(done));
            }
        }
    }
    let done = store.delete_many(bucket, &plain);
    for (place, done) in places.into_iter().zip(done.map_err(|e| store_error(&e))?) {
        *place = Some(Deleted::from_result(done.map_err(|e| store_error(&e))));
    }
    let results: Option<Vec<Deleted>> = results.into_iter().collect();
    results.ok_or_else(|| Code::InternalError.into())
}

/// What is wanted of a node's versions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct VersionsWanted {
    pub(super) bucket: String,
    prefix: String,
    delimiter: Option<String>,
    /// Behind the versions of this key; with a name, behind that one of it.
    after: Option<(String, String)>,
    max: usize,
    /// As for objects.
    pub(super) without: Vec<String>,
}

/// This store's part of the versions. Blocks on disk.
pub(super) fn share(
    store: &Store,
    replication: &Replication,
    wanted: &VersionsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let begin = match &wanted.after {
        None => VersionPosition::Key(Position::Start),
        Some((after, id)) => match named(Some(id).filter(|id| !id.is_empty()).map(String::as_str))?
        {
            Some(id) => VersionPosition::AfterVersion(after, id),
            // All that is below a common prefix has been listed with it.
            None if folder(after).as_deref() == Some(after) => {
                VersionPosition::Key(Position::Behind(after))
            }
            None => VersionPosition::Key(Position::After(after)),
        },
    };
    let lister = replication.lister(&wanted.bucket, &wanted.without);
    share.epoch = lister.epoch();
    let scanned = store.scan_versions(&wanted.bucket, &wanted.prefix, begin, |entry| {
        if !lister.lists(&entry.key) {
            return Step::Entry;
        }
        if share.items.len() >= wanted.max {
            share.truncated = true;
            return Step::End;
        }
        match folder(&entry.key) {
            Some(prefix) => {
                share.items.push_back((prefix.clone(), Item::Prefix));
                Step::Behind(prefix)
            }
            None => {
                share.items.push_back(line(entry));
                Step::Entry
            }
        }
    });
    scanned.map_err(|e| store_error(&e))?;
    Ok(share)
}

fn line(entry: VersionEntry) -> Line {
    let item = Item::Version {
        id: entry.id.to_string(),
        is_latest: entry.is_latest,
        created_ms: entry.created_ms,
        object: (!entry.is_marker).then_some((entry.etag, entry.len)),
    };
    (entry.key, item)
}

impl Worker {
    /// The page of versions that the client asked for.
    pub(super) async fn list_versions(
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
            Question::ListVersions(VersionsWanted {
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
