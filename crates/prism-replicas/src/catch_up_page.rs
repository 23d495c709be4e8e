//! Answers the questions of a node that catches up, and those about the registry of buckets.
//!
//! Not here: the asking node (`catch_up.rs`, `registry.rs`).

use prism_replica::{Bucket, Phase};
use prism_s3::S3Error;
use prism_store::{Error, PageRequest, Stamp, Store};

use crate::Node;
use crate::catch_up::fetches_from;
use crate::errors::store_error;
use crate::question::{CatchUpPageWanted, Reply};
use crate::registry::not_yet;
use crate::replication::Replication;

/// Buckets of one answer: below 8 MiB with two documents of 64 KiB each, of which JSON may write
/// each byte with two.
const BUCKETS_AT_ONCE: usize = 25;

/// Whether this node is in `epoch` or a later one, without open changes of earlier epochs.
pub(crate) fn settled(store: &Store, epoch: u64) -> Result<Reply, S3Error> {
    match store.epoch() >= epoch && store.open_changes().begun_before(epoch).is_empty() {
        true => Ok(Reply::Done),
        false => Err(not_yet(
            "Changes of earlier epochs are open at another node.",
        )),
    }
}

/// This node's records of the next buckets after `after`; none if their version is still
/// `unless`.
pub(crate) fn buckets(store: &Store, after: &str, unless: Option<u64>) -> Result<Reply, S3Error> {
    // Read first, so that the next call finds later changes.
    let version = store.buckets().version();
    let mut page = Vec::new();
    if unless == Some(version) {
        return Ok(Reply::Buckets { version, page });
    }
    let names = store.buckets().names(after, BUCKETS_AT_ONCE);
    for info in names.map_err(|e| store_error(&e))? {
        let record = store.buckets().record(&info.name);
        if let Some(record) = record.map_err(|e| store_error(&e))? {
            page.push((info.name, record));
        }
    }
    Ok(Reply::Buckets { version, page })
}

/// As the keeper, the agreed record of a bucket.
pub(crate) fn agreed(node: &Node, store: &Store, bucket: &str) -> Result<Reply, S3Error> {
    node.check_keeper()?;
    let found = store
        .buckets()
        .record(bucket)
        .map_err(|e| store_error(&e))?;
    Ok(Reply::Agreed(found.map(Box::new)))
}

/// As the keeper, replaces the agreed record by `next`, if its stamp is `before`.
pub(crate) fn agree(
    node: &Node,
    store: &Store,
    bucket: &str,
    before: Option<Stamp>,
    next: &Bucket,
) -> Result<Reply, S3Error> {
    node.check_keeper()?;
    let mut changed = store.buckets().change_record(bucket, before, next);
    if let Err(Error::Busy) = changed {
        // The remains of the deleted bucket of that name go first.
        let purged = store.buckets().purge(bucket);
        changed = purged.and_then(|()| store.buckets().change_record(bucket, before, next));
    }
    match changed {
        Ok(()) if next.phase == Phase::Gone => {
            node.purge.notify_one();
            Ok(Reply::Has(true))
        }
        Ok(()) => Ok(Reply::Has(true)),
        Err(Error::BucketChanged) => Ok(Reply::Has(false)),
        Err(error) => Err(store_error(&error)),
    }
}

/// A page of what this node has and the asking node lacks.
pub(crate) fn page(
    store: &Store,
    replication: &Replication,
    wanted: &CatchUpPageWanted,
) -> Result<Reply, S3Error> {
    let view = replication.view();
    if view.epoch() != wanted.epoch || store.epoch() != wanted.epoch {
        return Err(not_yet("Another node is in another epoch."));
    }
    let is_wanted =
        |key: &str| fetches_from(&view, &wanted.source, &wanted.by, &wanted.bucket, key);
    let request = PageRequest {
        bucket: &wanted.bucket,
        uploads: wanted.uploads,
        after: wanted.after.as_ref(),
    };
    let page = store.catch_up().page(request, is_wanted);
    page.map(Reply::CatchUpPage).map_err(|e| store_error(&e))
}
