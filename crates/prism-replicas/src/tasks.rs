//! The background tasks of replication.

use std::rc::Rc;

use prism_handoff::supervise::keep;

use crate::Replicator;
use crate::buckets::{BucketFollower, purge_buckets};
use crate::catch_up::CatchUp;
use crate::expire::expire_uploads;

/// Spawns what goes on beside serving; most of it at one thread only.
pub fn keep_tasks(replicator: &Rc<Replicator>) {
    let node = &replicator.node;
    let (mut jobs, is_first) = node.replication.join();
    let own = replicator.clone();
    keep("replication", async move || own.carry_out(&mut jobs).await);
    if !is_first {
        return;
    }
    let own = replicator.clone();
    keep("idle uploads", async move || expire_uploads(&own).await);
    let own = replicator.clone();
    keep("buckets", async move || {
        BucketFollower::new(own.clone()).run().await;
    });
    let own = replicator.clone();
    keep("deleted buckets", async move || purge_buckets(&own).await);
    if node.replication.is_on() || node.cluster.is_in_etcd() {
        let own = replicator.clone();
        keep("open changes", async move || own.tidy().await);
        let own = replicator.clone();
        keep("catch-up", async move || {
            CatchUp::new(own.clone()).run().await;
        });
    }
}
