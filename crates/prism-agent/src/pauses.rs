//! Signals to the agent's loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prism_membership::Directory;
use tokio::sync::watch;

/// Signals to the agent's loop.
#[derive(Default)]
pub(crate) struct Pauses {
    /// The process ends.
    pub(crate) stop: AtomicBool,
    /// The agent returns from its loop, to look for news.
    pub(crate) pause: AtomicBool,
}

/// Makes the agent pause whenever the nodes change. Never returns.
pub(crate) async fn pause_for(mut news: watch::Receiver<Arc<Directory>>, pauses: Arc<Pauses>) {
    // The nodes may have changed before this task started.
    news.mark_changed();
    while news.changed().await.is_ok() {
        news.borrow_and_update();
        pauses.pause.store(true, Ordering::Relaxed);
    }
    std::future::pending().await
}
