//! A backend's share of a listing, in order.
//!
//! Not here: merging the shares of several backends (`prism-objects`).

use std::sync::Arc;

use prism_cluster::View;
use prism_s3::list::{Item, common_prefix};
use prism_s3::{Algorithm, ChecksumType, S3Error};
use prism_store::{Position, Step, Store, UploadId, VersionPosition};

use crate::delete::named;
use crate::errors::StoreResult;
use crate::meta::{checksum, checksum_wanted};
use crate::question::{ListShare, ListWanted};
use crate::replication::Replication;

/// A share in the making.
struct Listing<'a, P> {
    wanted: &'a ListWanted<P>,
    replication: &'a Replication,
    /// All keys of a share are left to others by one view.
    view: Arc<View>,
    share: ListShare,
}

impl<'a, P> Listing<'a, P> {
    fn new(replication: &'a Replication, wanted: &'a ListWanted<P>) -> Self {
        let view = replication.view();
        let share = ListShare {
            epoch: view.epoch(),
            ..ListShare::default()
        };
        Self {
            wanted,
            replication,
            view,
            share,
        }
    }

    /// The common prefix that stands for a key.
    fn folder<'k>(&self, key: &'k str) -> Option<&'k str> {
        common_prefix(&self.wanted.prefix, self.wanted.delimiter.as_deref(), key)
    }

    /// The position behind a line. A common prefix stands for all keys below it.
    fn behind<'k>(&self, name: &'k str) -> Position<'k> {
        if self.folder(name) == Some(name) {
            Position::Behind(name)
        } else {
            Position::After(name)
        }
    }

    /// Adds the line of a key, if this node lists it. Returns where the listing goes on.
    fn add(&mut self, key: String, item: impl FnOnce() -> Item) -> Step {
        let wanted = self.wanted;
        if !(self.replication).lists(&self.view, &wanted.bucket, &key, &wanted.without) {
            return Step::Entry;
        }
        if self.share.items.len() >= wanted.max {
            self.share.truncated = true;
            return Step::End;
        }
        match self.folder(&key).map(str::to_owned) {
            Some(prefix) => {
                self.share.items.push_back((prefix.clone(), Item::Prefix));
                Step::Behind(prefix)
            }
            None => {
                self.share.items.push_back((key, item()));
                Step::Entry
            }
        }
    }
}

/// This store's share of the keys. Blocks on disk.
pub(crate) fn objects(
    store: &Store,
    replication: &Replication,
    wanted: &ListWanted<String>,
) -> Result<ListShare, S3Error> {
    let mut listing = Listing::new(replication, wanted);
    let after = wanted.after.as_deref();
    let begin = after.map_or(Position::Start, |after| listing.behind(after));
    let scanned = store.scan(&wanted.bucket, &wanted.prefix, begin, |entry| {
        listing.add(entry.key, || Item::Key {
            len: entry.len,
            etag: entry.etag,
            created_ms: entry.created_ms,
            checksum: checksum_of(&entry.headers),
        })
    });
    scanned.in_s3()?;
    Ok(listing.share)
}

/// This store's share of the versions. Blocks on disk.
pub(crate) fn versions(
    store: &Store,
    replication: &Replication,
    wanted: &ListWanted<(String, String)>,
) -> Result<ListShare, S3Error> {
    let mut listing = Listing::new(replication, wanted);
    let begin = match &wanted.after {
        None => VersionPosition::Key(Position::Start),
        Some((after, id)) => match named(Some(id.as_str()).filter(|id| !id.is_empty()))? {
            Some(id) => VersionPosition::AfterVersion(after, id),
            None => VersionPosition::Key(listing.behind(after)),
        },
    };
    let scanned = store.scan_versions(&wanted.bucket, &wanted.prefix, begin, |entry| {
        listing.add(entry.key, || Item::Version {
            id: entry.id.to_string(),
            is_latest: entry.is_latest,
            created_ms: entry.created_ms,
            checksum: checksum_of(&entry.headers),
            object: (!entry.is_marker).then_some((entry.etag, entry.len)),
        })
    });
    scanned.in_s3()?;
    Ok(listing.share)
}

/// This store's share of the uploads. Blocks on disk.
pub(crate) fn uploads(
    store: &Store,
    replication: &Replication,
    wanted: &ListWanted<(String, String)>,
) -> Result<ListShare, S3Error> {
    let mut listing = Listing::new(replication, wanted);
    let mut after = wanted.after.clone();
    // The common prefix that is listed already.
    let marker = after.as_ref().map(|(key, _)| key.clone());
    let mut listed = marker.filter(|key| listing.folder(key) == Some(key));
    loop {
        let behind = after.as_ref();
        let behind = behind.map(|(key, id)| (key.as_str(), UploadId::parse(id)));
        let room = wanted.max.saturating_sub(listing.share.items.len()).max(1);
        let page = (store.uploads()).list(&wanted.bucket, &wanted.prefix, behind, room);
        let (page, more) = page.in_s3()?;
        after = page
            .last()
            .map(|last| (last.key.clone(), last.id.to_string()));
        for upload in page {
            if listed
                .as_ref()
                .is_some_and(|prefix| upload.key.starts_with(prefix))
            {
                continue;
            }
            let step = listing.add(upload.key, || {
                let checksum = checksum_wanted(&upload.meta);
                Item::Upload {
                    id: upload.id.to_string(),
                    created_ms: upload.meta.created_ms,
                    checksum: checksum.map(|(algorithm, kind)| names_of(algorithm, kind)),
                }
            });
            match step {
                Step::Entry => {}
                Step::Behind(prefix) => listed = Some(prefix),
                Step::End => return Ok(listing.share),
            }
        }
        if !more || after.is_none() {
            return Ok(listing.share);
        }
    }
}

/// Algorithm and type of the checksum of an object with these headers.
fn checksum_of(headers: &[(String, String)]) -> Option<(String, String)> {
    let found = checksum(headers);
    found.map(|(algorithm, _, kind)| names_of(algorithm, kind))
}

fn names_of(algorithm: Algorithm, kind: ChecksumType) -> (String, String) {
    (algorithm.name().to_owned(), kind.as_str().to_owned())
}
