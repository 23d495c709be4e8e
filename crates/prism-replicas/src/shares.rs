//! A backend's share of a listing, in order.
//!
//! Not here: merging the shares of several backends (`prism-objects`).

use prism_s3::S3Error;
use prism_store::{Position, Step, Store, UploadId, VersionEntry, VersionPosition};

use crate::delete::named;
use crate::errors::store_error;
use crate::meta::checksum_wanted;
use crate::question::{Item, ListShare, ObjectsWanted, UploadsWanted, VersionsWanted};
use crate::replication::Replication;

/// This store's share of the keys. Blocks on disk.
pub(crate) fn objects(
    store: &Store,
    replication: &Replication,
    wanted: &ObjectsWanted,
) -> Result<ListShare, S3Error> {
    let mut share = ListShare::default();
    let folder = |key: &str| common_prefix(&wanted.prefix, wanted.delimiter.as_deref(), key);
    let begin = match wanted.after.as_deref() {
        None => Position::Start,
        // The common prefix stands for all keys below it.
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

/// This store's share of the uploads. Blocks on disk.
pub(crate) fn uploads(
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

pub(crate) fn common_prefix(prefix: &str, delimiter: Option<&str>, key: &str) -> Option<String> {
    let found = prism_s3::list::common_prefix(prefix, delimiter, key);
    found.map(str::to_owned)
}

/// This store's share of the versions. Blocks on disk.
pub(crate) fn versions(
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
            // The common prefix stands for all keys below it.
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

/// A line of a listing.
pub type Line = (String, Item);

/// The place of a line in the order of a listing: by name, then by id. Ids of uploads grow with
/// time. All versions of one key come from one node, in their order.
pub fn place((name, item): &Line) -> (&str, &str) {
    match item {
        Item::Upload { id, .. } | Item::Version { id, .. } => (name.as_str(), id.as_str()),
        Item::Key { .. } | Item::Prefix => (name.as_str(), ""),
    }
}
