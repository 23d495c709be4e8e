//! Runs work that may block on the disk, away from the threads that serve connections.

use std::sync::Arc;

use prism_s3::{Code, S3Error};
use prism_store::Store;
use tokio::task::JoinHandle;

use crate::Node;

impl Node {
    /// Runs `work` on this node's store, on a thread that may block.
    ///
    /// # Errors
    /// Fails as `work` does. A panic or a missing store is an internal error.
    pub async fn on_store<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self, &Store) -> Result<T, S3Error> + Send + 'static,
    ) -> Result<T, S3Error> {
        let on_store = |node: &Self| {
            let store = node.store.as_ref().ok_or(Code::InternalError)?;
            work(node, store)
        };
        joined(blocking(self, on_store)).await
    }
}

/// Runs `work` on a thread that may block.
pub fn blocking<T: Send + 'static>(
    node: &Arc<Node>,
    work: impl FnOnce(&Node) -> Result<T, S3Error> + Send + 'static,
) -> JoinHandle<Result<T, S3Error>> {
    let node = node.clone();
    tokio::task::spawn_blocking(move || work(&node))
}

/// The result of a blocking task; its panic is an internal error.
///
/// # Errors
/// Fails as the task does.
pub async fn joined<T>(task: JoinHandle<Result<T, S3Error>>) -> Result<T, S3Error> {
    match task.await {
        Ok(result) => result,
        Err(error) => {
            tracing::error!(%error, "a blocking task failed");
            Err(Code::InternalError.into())
        }
    }
}
