//! Aborts idle uploads after the configured time (`store.expire_uploads_days`).
//!
//! Not here: what makes an upload idle, and how it ends on all replicas (`prism-store`).

use std::time::Duration;

use prism_s3::{Code, S3Error};
use prism_store::{Error, Store, UploadId, UploadName};

use crate::errors::StoreResult;
use crate::{Node, Replicator, now_ms};

/// A day in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// Pause before the first look, in which the node connects to others.
const START_PAUSE: Duration = Duration::from_secs(1);
/// Pause between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Pause after a look that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(60);
/// Uploads in one call of the store.
const PAGE: usize = 100;

/// The last upload of a page: its key and id.
type LastUpload = Option<(String, UploadId)>;

/// Aborts idle uploads of which this node is the primary.
pub(crate) async fn expire_uploads(replicator: &Replicator) {
    let mut pause = START_PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        let days = u64::from(replicator.node.core.config.now().store.expire_uploads_days);
        if days == 0 {
            pause = LOOK_EVERY;
            continue;
        }
        let before_ms = now_ms().saturating_sub(days.saturating_mul(DAY_MS));
        pause = LOOK_EVERY;
        match expire_all(replicator, before_ms).await {
            Ok(0) => {}
            Ok(uploads) => tracing::info!(uploads, days, "aborted idle uploads"),
            Err(error) => {
                tracing::debug!(%error, "looking for idle uploads failed; trying again");
                pause = RETRY_PAUSE;
            }
        }
    }
}

async fn expire_all(replicator: &Replicator, before_ms: u64) -> Result<usize, S3Error> {
    let mut aborted = 0;
    for bucket in replicator.names_of_buckets().await? {
        let mut at: LastUpload = None;
        loop {
            let name = bucket.clone();
            let begin = at;
            let page = move |_: &Node, store: &Store| {
                let begin = begin.as_ref().map(|(key, id)| (key.as_str(), Some(*id)));
                match store.uploads().list_idle(&name, before_ms, begin, PAGE) {
                    // The bucket was deleted meanwhile.
                    Err(Error::NoSuchBucket) => Ok((Vec::new(), None)),
                    found => found.in_s3(),
                }
            };
            let (idle, next) = replicator.node.on_store(page).await?;
            for (key, id) in idle {
                aborted += usize::from(expire(replicator, &bucket, key, id).await?);
            }
            match next {
                Some(next) => at = Some(next),
                None => break,
            }
        }
    }
    Ok(aborted)
}

/// Aborts an upload, if this node is the primary of its key. Returns whether it did.
async fn expire(
    replicator: &Replicator,
    bucket: &str,
    key: String,
    id: UploadId,
) -> Result<bool, S3Error> {
    let replication = &replicator.node.replication;
    if !replication.is_primary(bucket, &key) {
        return Ok(false);
    }
    if replication.begin().is_none() {
        return Err(Code::ServiceUnavailable.into());
    }
    replicator.resolve_key(bucket, &key).await?;
    let bucket = bucket.to_owned();
    let abort = move |_: &Node, store: &Store| {
        let name = UploadName {
            bucket: &bucket,
            key: &key,
            id,
        };
        match store.uploads().abort(name) {
            Err(Error::NoSuchUpload) => Ok(false),
            aborted => aborted.in_s3().map(|()| true),
        }
    };
    replicator.node.on_store(abort).await
}
