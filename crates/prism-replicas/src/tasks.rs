//! The background tasks of replication.

use std::rc::Rc;

use prism_handoff::supervise::keep;

use crate::Replicator;
use crate::buckets::{follow_buckets, purge_buckets};
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
    keep_with(replicator, "idle uploads", async |own| {
        expire_uploads(own).await
    });
    keep_with(replicator, "buckets", async |own| follow_buckets(own).await);
    keep_with(replicator, "deleted buckets", async |own| {
        purge_buckets(own).await
    });
    if node.replication.is_on() || node.cluster.is_in_etcd() {
        keep_with(replicator, "open changes", async |own| {
            settle_open_changes(own).await
        });
        keep_with(replicator, "catch-up", async |own| {
            keep_caught_up(own).await
        });
    }
}

fn keep_with(
    replicator: &Rc<Replicator>,
    task: &'static str,
    work: impl AsyncFn(&Replicator) + 'static,
) {
    let own = replicator.clone();
    keep(task, async move || work(&own).await);
}
