//! The background tasks of a worker.

use std::rc::Rc;

use prism_handoff::supervise::keep;

use super::Worker;
use super::leave::Farewell;

impl Worker {
    /// Spawns what goes on beside serving; some of it at one worker only.
    pub(super) fn keep_tasks(self: &Rc<Self>, farewell: Farewell) {
        let node = &self.node;
        let (mut jobs, is_first) = node.replication.join();
        let worker = self.clone();
        keep("replication", async move || {
            worker.carry_out(&mut jobs).await;
        });
        let worker = self.clone();
        keep("the directory", async move || {
            worker.follow_directory().await;
        });
        let (worker, mut farewell) = (self.clone(), Some(farewell));
        keep("orders", async move || {
            worker.follow_orders(&mut farewell).await;
        });
        if !is_first {
            return;
        }
        let worker = self.clone();
        keep("idle uploads", async move || {
            worker.clone().expire_uploads().await;
        });
        let worker = self.clone();
        keep("buckets", async move || {
            worker.clone().follow_buckets().await;
        });
        let worker = self.clone();
        keep("deleted buckets", async move || {
            worker.clone().purge_buckets().await;
        });
        if node.replication.is_on() || node.cluster.is_in_etcd() {
            let worker = self.clone();
            keep("open changes", async move || {
                worker.clone().tidy().await;
            });
            let worker = self.clone();
            keep("catch-up", async move || {
                worker.clone().catch_up().await;
            });
        }
    }

    /// Finds the other nodes where they are, whenever that changes.
    async fn follow_directory(&self) {
        let mut directory = self.node.cluster.directory.clone();
        loop {
            let peers = self.node.peers(&directory.borrow_and_update());
            self.handle.set_peers(&peers);
            if directory.changed().await.is_err() {
                return;
            }
        }
    }
}
