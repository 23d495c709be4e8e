//! Uploads that nobody goes on with are aborted after a time, where the configuration
//! says so. What idle means is `prism-store`'s, and how an upload ends on all
//! replicas; here is when it is looked for, and by whom.

use std::time::Duration;

use prism_s3::{Code, S3Error};
use prism_service::Stage;
use prism_store::{Error, UploadId, UploadName};

use crate::errors::store_error;
use crate::{Replicator, now_ms};

/// A day in milliseconds.
const DAY_MS: u64 = 86_400_000;
/// From the start to the first look: others are being connected to until then.
const FIRST: Duration = Duration::from_secs(1);
/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// After one that did not come to its end.
const AGAIN: Duration = Duration::from_secs(60);
/// Uploads looked at in one go.
const PAGE: usize = 100;

/// Where a look goes on.
type At = Option<(String, UploadId)>;

/// Aborts idle uploads of which this node is the primary, until the node stops.
/// One worker does it.
pub(crate) async fn expire_uploads(replicator: &Replicator) {
    let days = u64::from(replicator.node.config.store.expire_uploads_days);
    if days == 0 || replicator.node.store.is_none() {
        return;
    }
    let mut pause = FIRST;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = replicator.node.orders.reached(Stage::Leaving) => return,
        }
        let before_ms = now_ms().saturating_sub(days.saturating_mul(DAY_MS));
        pause = match expire_all(replicator, before_ms).await {
            Ok(0) => LOOK_EVERY,
            Ok(uploads) => {
                tracing::info!(
                    uploads,
                    days,
                    "uploads that nobody went on with were aborted"
                );
                LOOK_EVERY
            }
            Err(error) => {
                tracing::debug!(%error, "not all idle uploads were looked for");
                AGAIN
            }
        };
    }
}

async fn expire_all(replicator: &Replicator, before_ms: u64) -> Result<usize, S3Error> {
    let mut aborted = 0;
    for bucket in replicator.names_of_buckets().await? {
        let mut at: At = None;
        loop {
            let (name, begin) = (bucket.clone(), at);
            let (idle, next) = replicator
                .node
                .on_store(move |_, store| {
                    let begin = begin.as_ref().map(|(key, id)| (key.as_str(), Some(*id)));
                    match store.uploads().list_idle(&name, before_ms, begin, PAGE) {
                        // Deleted meanwhile.
                        Err(Error::NoSuchBucket) => Ok((Vec::new(), None)),
                        found => found.map_err(|e| store_error(&e)),
                    }
                })
                .await?;
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

/// Whether this node is the one to do it, and has.
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
    replicator.make_certain(bucket, &key).await?;
    let bucket = bucket.to_owned();
    replicator
        .node
        .on_store(move |_, store| {
            let name = UploadName {
                bucket: &bucket,
                key: &key,
                id,
            };
            match store.uploads().abort(name) {
                Ok(()) => Ok(true),
                Err(Error::NoSuchUpload) => Ok(false),
                Err(error) => Err(store_error(&error)),
            }
        })
        .await
}
