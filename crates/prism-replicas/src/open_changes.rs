//! Settles changes that stay open, and forgets old deletions.
//!
//! Not here: how the outcome of an open change is found (`resolve.rs`).

use std::time::Duration;

use prism_s3::S3Error;
use prism_store::{Decided, Deletion, Store};
use tokio::time::Instant;

use crate::errors::StoreResult;
use crate::resolve::without_epochs;
use crate::{Replicator, now_ms};

/// Age of a change whose outcome this node asks for.
const OPEN_AFTER: Duration = Duration::from_secs(2);
/// Time between two looks at open changes.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Time between two looks at old deletions.
const FORGET_EVERY: Duration = Duration::from_secs(60);

/// Settles open changes.
pub(crate) async fn settle_open_changes(replicator: &Replicator, store: &Store) {
    let node = &replicator.node;
    let mut forgotten = Instant::now();
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        // Nodes that catch up wait for changes of earlier epochs, so these need no age.
        let before = store.open_changes().begun_before(store.epoch());
        let mut open = Vec::from_iter(without_epochs(before));
        for late in store.open_changes().older_than(OPEN_AFTER, None) {
            if !open.contains(&late) {
                open.push(late);
            }
        }
        if let Err(error) = replicator.resolve_changes(open).await {
            tracing::debug!(%error, "changes stay open");
        }
        // A replica that is not in sync may have missed a deletion, and must not take an
        // earlier change for a new one.
        if forgotten.elapsed() >= FORGET_EVERY && node.replication.is_calm() {
            forgotten = Instant::now();
            if let Err(error) = forget_deletions(replicator).await {
                tracing::debug!(%error, "deletions stay remembered");
            }
        }
    }
}

/// Forgets the old deletions that all replicas have applied.
async fn forget_deletions(replicator: &Replicator) -> Result<(), S3Error> {
    let node = &replicator.node;
    let mut after = Vec::new();
    loop {
        let begin = after.clone();
        let found = node.on_store(move |_, store| store.old_deletions(&begin, now_ms()).in_s3());
        let (old, last) = found.await?;
        let mut gone = Vec::new();
        for deletion in old {
            let bucket = &deletion.scope.bucket;
            let key = &deletion.scope.key;
            if !node.replication.is_primary(bucket, key)
                || apply_everywhere(replicator, &deletion).await
            {
                gone.push(deletion);
            }
        }
        node.on_store(move |_, store| store.forget_deletions(&gone).in_s3())
            .await?;
        match last {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}

/// Has all other replicas apply a deletion. Returns whether they have.
async fn apply_everywhere(replicator: &Replicator, deletion: &Deletion) -> bool {
    let replication = &replicator.node.replication;
    let scope = &deletion.scope;
    let decided = Decided {
        stamp: deletion.stamp,
        committed: true,
        scopes: vec![scope.clone()],
        epoch: replication.view().epoch(),
    };
    let others = replication.other_writers(&scope.bucket, &scope.key);
    replicator.announce_outcome(&others, decided).await
}
