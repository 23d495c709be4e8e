//! The background tasks of replication.

use std::rc::Rc;

use prism_common::supervise::keep;
use prism_core::run_work;
use prism_service::Stage;
use prism_store::Store;

use crate::Replicator;
use crate::buckets::{follow_buckets, purge_buckets};
use crate::catch_up::keep_caught_up;
use crate::expire::expire_uploads;
use crate::open_changes::settle_open_changes;

/// Spawns the background tasks of the calling thread. The store's tasks run on the first thread
/// only.
pub fn keep_tasks(replicator: &Rc<Replicator>) {
    let (mut jobs, is_first) = replicator.node.replication.jobs.add_worker();
    let own = replicator.clone();
    keep("replication", async move || {
        run_work(&own, &mut jobs).await;
    });
    if !is_first {
        return;
    }
    keep_for_store(replicator, "idle uploads", async |own, _| {
        expire_uploads(own).await
    });
    keep_for_store(replicator, "buckets", async |own, store| {
        follow_buckets(own, store).await
    });
    keep_for_store(replicator, "deleted buckets", async |own, _| {
        purge_buckets(own).await
    });
    if replicator.node.may_replicate() {
        let settle = async |own: &Replicator, store: &Store| settle_open_changes(own, store).await;
        keep_for_store(replicator, "open changes", settle);
        keep_for_store(replicator, "catch-up", async |own, store| {
            keep_caught_up(own, store).await
        });
    }
}

/// Spawns a task for this node's store, if there is one. It ends when the node begins to leave.
fn keep_for_store(
    replicator: &Rc<Replicator>,
    task: &'static str,
    work: impl AsyncFn(&Replicator, &Store) + 'static,
) {
    let own = replicator.clone();
    keep(task, async move || {
        if let Some(store) = &own.node.store {
            tokio::select! {
                () = work(&own, store) => {}
                () = own.node.core.orders.reached(Stage::Leaving) => {}
            }
        }
    });
}
