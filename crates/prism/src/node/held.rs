//! What a node that catches up is told by another one.

use prism_s3::{Code, Document, S3Error};
use prism_store::{Scope, Stamp, Store, Versioning};
use serde::{Deserialize, Serialize};

use super::ask::Reply;
use super::catch_up::{is_of, not_yet};
use super::errors::store_error;
use super::replication::Replication;

/// What documents buckets have.
pub(super) const DOCUMENTS: [Document; 2] = [Document::Cors, Document::Policy];
/// Buckets of one answer: with two documents of 64 KiB each, in which JSON may write
/// a byte with two, below 8 MiB.
const BUCKETS_AT_ONCE: usize = 25;

/// Which page of what a node holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldWanted {
    pub(super) bucket: String,
    /// And their parts, not objects.
    pub(super) uploads: bool,
    pub(super) after: Option<Scope>,
    /// The node that is asked: of keys of which it is the primary.
    pub(super) source: String,
    /// Who asks: of keys that it lacks.
    pub(super) by: String,
    /// In this epoch, in which both have to be.
    pub(super) epoch: u64,
}

/// A bucket of another node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BucketHeld {
    pub(super) name: String,
    pub(super) created_ms: u64,
    /// Whether it keeps versions, and the stamp of whoever said so; missing in what an
    /// older release says.
    #[serde(default)]
    pub(super) versioning: Option<(Versioning, Stamp)>,
    /// By their names.
    pub(super) documents: Vec<(String, String)>,
}

/// Whether nothing is open here of before an epoch that this node is in, or beyond.
pub(super) fn settled(store: &Store, epoch: u64) -> Result<Reply, S3Error> {
    match store.epoch() >= epoch && store.open_before(epoch).is_empty() {
        true => Ok(Reply::Done),
        false => Err(not_yet("Changes of before are open at another node.")),
    }
}

/// The next buckets behind `after`.
pub(super) fn buckets(store: &Store, after: &str) -> Result<Reply, S3Error> {
    let all = store.list_buckets().map_err(|e| store_error(&e))?;
    let behind = all
        .into_iter()
        .filter(|bucket| bucket.name.as_str() > after);
    let mut page = Vec::new();
    for bucket in behind.take(BUCKETS_AT_ONCE) {
        let mut documents = Vec::new();
        for document in DOCUMENTS {
            let found = store.bucket_document(&bucket.name, document.as_str());
            if let Some(bytes) = found.map_err(|e| store_error(&e))? {
                let text = String::from_utf8(bytes).map_err(|_| Code::InternalError)?;
                documents.push((document.as_str().to_owned(), text));
            }
        }
        page.push(BucketHeld {
            name: bucket.name,
            created_ms: bucket.created_ms,
            versioning: Some((bucket.versioning, bucket.versioning_set)),
            documents,
        });
    }
    Ok(Reply::Buckets(page))
}

/// A page of what this node holds.
pub(super) fn page(
    store: &Store,
    replication: &Replication,
    wanted: &HeldWanted,
) -> Result<Reply, S3Error> {
    let view = replication.view();
    if view.epoch() != wanted.epoch || store.epoch() != wanted.epoch {
        return Err(not_yet("Another node is not in that epoch."));
    }
    let is_wanted = |key: &str| is_of(&view, &wanted.source, &wanted.by, &wanted.bucket, key);
    let after = wanted.after.as_ref();
    let page = store.held(&wanted.bucket, wanted.uploads, after, is_wanted);
    page.map(Reply::Held).map_err(|e| store_error(&e))
}
