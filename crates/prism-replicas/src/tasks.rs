//! The background tasks of replication.

use std::rc::Rc;

use prism_handoff::supervise::keep;

use crate::Replicator;
use crate::buckets::{BucketFollower, purge_buckets};
use crate::catch_up::keep_caught_up;
use crate::expire::expire_uploads;
use crate::open_changes::settle_open_changes;

/// Spawns the background tasks of the calling thread. Only the first thread runs most of them.
pub fn keep_tasks(replicator: &Rc<Replicator>) {
    let node = &replicator.node;
    let (mut jobs, is_first) = node.replication.add_worker();
    let own = replicator.clone();
    keep("replication", async move || own.run_jobs(&mut jobs).await);
    if !is_first {
        return;
    }
    let own = replicator.clone();
    keep("idle uploads", async move || expire_uploads(&own).await);
    let own = replicator.clone();
    keep("buckets", async move || {
        BucketFollower::new(own.clone()).run().await
    });
    let own = replicator.clone();
    keep("deleted buckets", async move || purge_buckets(&own).await);
    if node.replication.is_on() || node.cluster.is_in_etcd() {
        let own = replicator.clone();
        keep("open changes", async move || {
            settle_open_changes(&own).await
        });
        let own = replicator.clone();
        keep("catch-up", async move || keep_caught_up(&own).await);
    }
}
