//! Listing the keys, or the uploads, of a bucket that lies on many nodes: each
//! backend gives its share, in order, and whoever holds the client's connection
//! merges. A share is asked for in pieces, so that a page of a thousand keys
//! costs little more than a thousand keys, however many backends there are.

use std::collections::VecDeque;

use prism_s3::xml::{ListEntry, ListPage, UploadEntry, UploadsPage};
use prism_s3::{BucketName, ListObjects, ListUploads, S3Error};
use prism_store::{Position, Step, Store, UploadId};
use serde::{Deserialize, Serialize};

use super::Worker;
use super::answer::from_ms;
use super::ask::Question;
use super::errors::store_error;
use super::get::quoted;
use super::meta::checksum_wanted;
use super::replication::Replication;
use super::session::Request;

/// What is wanted of a node's objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ObjectsWanted {
    pub(super) bucket: String,
    prefix: String,
    delimiter: Option<String>,
    /// Behind this key or common prefix.
    after: Option<String>,
    max: usize,
    /// These nodes are out of reach: others that have their keys list them.
    pub(super) without: Vec<String>,
}

/// What is wanted of a node's uploads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UploadsWanted {
    pub(super) bucket: String,
    prefix: String,
    delimiter: Option<String>,
    /// Behind the uploads of this key; with an id, behind that upload of it.
    after: Option<(String, String)>,
    max: usize,
    /// As for objects.
    pub(super) without: Vec<String>,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Item {
    /// A key.
    Key {
        len: u64,
        etag: String,
        created_ms: u64,
    },
    /// All keys that begin with the name.
    Prefix,
    Upload {
        id: String,
        created_ms: u64,
        /// Algorithm and type of its parts' checksums.
        checksum: Option<(String, String)>,
    },
    /// A version, or a delete marker.
    Version {
        id: String,
        is_latest: bool,
        created_ms: u64,
        /// ETag and length of what is no delete marker.
        object: Option<(String, u64)>,
    },
}

/// What one backend has, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListShare {
    pub(super) items: VecDeque<(String, Item)>,
    /// There is more behind the last.
    pub(super) truncated: bool,
    /// Of the view by which the backend left to others what others list.
    pub(super) epoch: u64,
}

/// This store's part of the keys. Blocks on disk.
pub(super) fn objects(
    store: &Store,
    replication: &Replication,
    wanted: &ObjectsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let begin = match wanted.after.as_deref() {
        None => Position::Start,
        // All that is below a common prefix has been listed with it.
        Some(after) if folder(after).as_deref() == Some(after) => Position::Behind(after),
        Some(after) => Position::After(after),
    };
    let lister = replication.lister(&wanted.bucket, &wanted.without);
    share.epoch = lister.epoch();
    let scanned = store.scan(&wanted.bucket, &wanted.prefix, begin, |entry| {
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
                let item = Item::Key {
                    len: entry.len,
                    etag: entry.etag,
                    created_ms: entry.created_ms,
                };
                share.items.push_back((entry.key, item));
                Step::Entry
            }
        }
    });
    scanned.map_err(|e| store_error(&e))?;
    Ok(share)
}

/// This store's part of the uploads. Blocks on disk.
pub(super) fn uploads(
    store: &Store,
    replication: &Replication,
    wanted: &UploadsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let lister = replication.lister(&wanted.bucket, &wanted.without);
    share.epoch = lister.epoch();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let mut after = wanted.after.clone();
    let listed = |key: &str| {
        let (marker, _) = wanted.after.as_ref()?;
        Some(folder(marker).as_deref() == Some(marker) && key.starts_with(marker.as_str()))
    };
    loop {
        let behind = after
            .as_ref()
            .map(|(key, id)| (key.as_str(), UploadId::parse(id)));
        let room = wanted.max.saturating_sub(share.items.len()).max(1);
        let page = store
            .uploads()
            .list(&wanted.bucket, &wanted.prefix, behind, room);
        let (page, more) = page.map_err(|e| store_error(&e))?;
        let Some(last) = page.last() else {
            return Ok(share);
        };
        after = Some((last.key.clone(), last.id.to_string()));
        for upload in page {
            if !lister.lists(&upload.key) {
                continue;
            }
            let prefix = folder(&upload.key);
            let last = share.items.back().map(|(name, _)| name);
            if listed(&upload.key) == Some(true) || (prefix.is_some() && prefix.as_ref() == last) {
                continue;
            }
            if share.items.len() >= wanted.max {
                share.truncated = true;
                return Ok(share);
            }
            let line = match prefix {
                Some(prefix) => (prefix, Item::Prefix),
                None => {
                    let checksum = checksum_wanted(&upload.meta);
                    let checksum =
                        checksum.map(|(a, kind)| (a.name().to_owned(), kind.as_str().to_owned()));
                    let item = Item::Upload {
                        id: upload.id.to_string(),
                        created_ms: upload.meta.created_ms,
                        checksum,
                    };
                    (upload.key, item)
                }
            };
            share.items.push_back(line);
        }
        if !more {
            return Ok(share);
        }
    }
}

pub(super) fn common_prefix(prefix: &str, delimiter: Option<&str>, key: &str) -> Option<String> {
    let found = prism_s3::list::common_prefix(prefix, delimiter, key);
    found.map(str::to_owned)
}

/// A line of a listing.
pub(super) type Line = (String, Item);

/// The place of a line: names in order, then uploads by age. Versions of one key
/// are all on one node, in their order.
pub(super) fn place((name, item): &Line) -> (&str, &str) {
    match item {
        Item::Upload { id, .. } | Item::Version { id, .. } => (name.as_str(), id.as_str()),
        Item::Key { .. } | Item::Prefix => (name.as_str(), ""),
    }
}

impl Worker {
    /// The page of keys that the client asked for.
    pub(super) async fn list_objects(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListObjects,
    ) -> Result<Vec<u8>, S3Error> {
        let after = list.after().map(|after| (after.to_owned(), String::new()));
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListObjects(ObjectsWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after: after.map(|(key, _)| key),
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self
            .merge(request, (after, list.max_keys), question)
            .await?;
        Ok(objects_page(bucket, list, &lines, more))
    }

    /// The page of uploads that the client asked for.
    pub(super) async fn list_uploads(
        &self,
        request: &Request,
        bucket: &BucketName,
        list: &ListUploads,
    ) -> Result<Vec<u8>, S3Error> {
        let after = match list.key_marker.as_str() {
            "" => None,
            key => Some((key.to_owned(), list.upload_marker.clone())),
        };
        let question = |after: Option<(String, String)>, max, without: &[String]| {
            Question::ListUploads(UploadsWanted {
                bucket: bucket.as_str().to_owned(),
                prefix: list.prefix.clone(),
                delimiter: list.delimiter.clone(),
                after,
                max,
                without: without.to_vec(),
            })
        };
        let (lines, more) = self.merge(request, (after, list.max), question).await?;
        Ok(uploads_page(bucket, list, lines, more))
    }
}

fn objects_page(bucket: &BucketName, list: &ListObjects, lines: &[Line], more: bool) -> Vec<u8> {
    let etags: Vec<String> = lines
        .iter()
        .map(|(_, item)| match item {
            Item::Key { etag, .. } => quoted(etag),
            _ => String::new(),
        })
        .collect();
    let entries = lines
        .iter()
        .zip(&etags)
        .filter_map(|((key, item), etag)| match item {
            Item::Key {
                len, created_ms, ..
            } => Some(ListEntry {
                key,
                modified: from_ms(*created_ms),
                etag,
                size: *len,
            }),
            _ => None,
        });
    let prefixes = lines.iter().filter(|(_, item)| *item == Item::Prefix);
    let page = ListPage {
        bucket,
        request: list,
        entries: entries.collect(),
        common_prefixes: prefixes.map(|(name, _)| name.as_str()).collect(),
        next: lines.last().filter(|_| more).map(|(name, _)| name.as_str()),
    };
    page.xml()
}

fn uploads_page(bucket: &BucketName, list: &ListUploads, lines: Vec<Line>, more: bool) -> Vec<u8> {
    let next = lines.last().filter(|_| more).map(|line| {
        let (name, id) = place(line);
        (name.to_owned(), id.to_owned())
    });
    let mut page = UploadsPage {
        bucket,
        request: list,
        uploads: Vec::new(),
        common_prefixes: Vec::new(),
        next,
    };
    for (name, item) in lines {
        match item {
            Item::Upload {
                id,
                created_ms,
                checksum,
            } => {
                let checksum = checksum.and_then(|(algorithm, kind)| {
                    let algorithm = prism_s3::Algorithm::from_name(&algorithm).ok()?;
                    Some((algorithm, prism_s3::ChecksumType::parse(&kind)?))
                });
                page.uploads.push(UploadEntry {
                    key: name,
                    upload: id,
                    initiated: from_ms(created_ms),
                    checksum,
                });
            }
            Item::Prefix => page.common_prefixes.push(name),
            Item::Key { .. } | Item::Version { .. } => {}
        }
    }
    page.xml()
}
