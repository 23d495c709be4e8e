//! What a node that catches up is told by another one.

use prism_replica::{Bucket, Phase};
use prism_s3::S3Error;
use prism_store::{Error, PageRequest, Stamp, Store};

use crate::Node;
use crate::catch_up::is_of;
use crate::errors::store_error;
use crate::question::{CatchUpPageWanted, Reply};
use crate::registry::not_yet;
use crate::replication::Replication;

/// Buckets of one answer: with two documents of 64 KiB each, in which JSON may write
/// a byte with two, below 8 MiB.
const BUCKETS_AT_ONCE: usize = 25;

/// Whether nothing is open here of before an epoch that this node is in, or beyond.
pub(crate) fn settled(store: &Store, epoch: u64) -> Result<Reply, S3Error> {
    match store.epoch() >= epoch && store.open_changes().begun_before(epoch).is_empty() {
        true => Ok(Reply::Done),
        false => Err(not_yet("Changes of before are open at another node.")),
    }
}

/// This node's records of the next buckets after `after`; none if its version is still
/// `unless`.
pub(crate) fn buckets(
    store: &Store,
    (after, unless): (&str, Option<u64>),
) -> Result<Reply, S3Error> {
    // First: what comes later is news the next time.
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

/// The agreed record of a bucket, which this node keeps.
pub(crate) fn agreed(node: &Node, store: &Store, bucket: &str) -> Result<Reply, S3Error> {
    node.check_keeper()?;
    let found = store
        .buckets()
        .record(bucket)
        .map_err(|e| store_error(&e))?;
    Ok(Reply::Agreed(found.map(Box::new)))
}

/// Agrees on something else, if what is agreed has this stamp.
pub(crate) fn agree(
    node: &Node,
    store: &Store,
    (bucket, before): (&str, Option<Stamp>),
    next: &Bucket,
) -> Result<Reply, S3Error> {
    node.check_keeper()?;
    let mut changed = store.buckets().change_record(bucket, before, next);
    if let Err(Error::Busy) = changed {
        // Objects of the bucket's earlier life are deleted first.
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

/// A page of what this node holds.
pub(crate) fn page(
    store: &Store,
    replication: &Replication,
    wanted: &CatchUpPageWanted,
) -> Result<Reply, S3Error> {
    let view = replication.view();
    if view.epoch() != wanted.epoch || store.epoch() != wanted.epoch {
        return Err(not_yet("Another node is not in that epoch."));
    }
    let is_wanted = |key: &str| is_of(&view, &wanted.source, &wanted.by, &wanted.bucket, key);
    let request = PageRequest {
        bucket: &wanted.bucket,
        uploads: wanted.uploads,
        after: wanted.after.as_ref(),
    };
    let page = store.catch_up().page(request, is_wanted);
    page.map(Reply::CatchUpPage).map_err(|e| store_error(&e))
}
