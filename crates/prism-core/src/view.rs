//! The cluster's state that a node acts by.

use std::sync::Arc;
use std::time::Duration;

use prism_cluster::{State, Status, View};
use tokio::sync::watch;

use crate::Core;

/// The view that a node acts by. The membership may know a later one, which the node adopts first.
#[derive(Debug)]
pub struct ActiveView(watch::Sender<Arc<View>>);

impl ActiveView {
    /// Begins with this view.
    #[must_use]
    pub fn new(view: Arc<View>) -> Self {
        Self(watch::Sender::new(view))
    }

    /// The cluster as this node sees it now. Two calls may return different views.
    #[must_use]
    pub fn now(&self) -> Arc<View> {
        self.0.borrow().clone()
    }

    /// Waits until this node acts by a view of a later epoch, at most for `limit`. Returns
    /// whether it does.
    pub async fn wait_beyond(&self, epoch: u64, limit: Duration) -> bool {
        let mut views = self.0.subscribe();
        let later = views.wait_for(|view| view.epoch() > epoch);
        tokio::time::timeout(limit, later).await.is_ok()
    }

    /// Has this node act by `view`, if it is later than the present one.
    pub fn adopt(&self, view: Arc<View>) {
        self.0.send_if_modified(|present| {
            let is_later = view.epoch() > present.epoch();
            if is_later {
                *present = view;
            }
            is_later
        });
    }
}

/// Has the node act by each new view of the cluster, and reports it. `adopt` comes before
/// anything else acts by the new state. Never returns.
pub async fn follow_views(core: &Core, adopt: impl AsyncFn(&State)) {
    let mut views = core.cluster.view.clone();
    loop {
        let view = views.borrow_and_update().clone();
        adopt(view.state()).await;
        mark_returned_alive(core, view.state());
        core.view.adopt(view.clone());
        core.cluster.adopted(view.state());
        if views.changed().await.is_err() {
            return std::future::pending().await;
        }
        tracing::info!(epoch = views.borrow().epoch(), "the cluster has changed");
    }
}

/// Marks the backends that were out and are back as alive, because the first write in the new
/// epoch needs them.
fn mark_returned_alive(core: &Core, state: &State) {
    let before = core.view.now();
    for (name, backend) in &state.backends {
        let was_out = before.state().status(name.as_str()) == Some(Status::Out);
        if was_out && backend.status != Status::Out {
            core.process.health.lock().lives(name.as_str());
        }
    }
}
