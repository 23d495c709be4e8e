//! What a backend asks itself before it answers from its store: whether it is one
//! that may, by the cluster as it is now.
//!
//! A node that has lost its lease does not know how the cluster is; the others may
//! have gone on without it. A node whose placement is not that of most nodes stores where they
//! do not look: it passes no request on either. A node that asks by an old view, or by a configuration in which
//! keys have other owners, is sent back: what it stored here would not be found.

use std::sync::Arc;
use std::time::Duration;

use prism_cluster::{State, Status};
use prism_s3::{Code, S3Error};

use prism_membership::LeaseTerm;

use crate::Node;
use crate::replication::Replication;
use crate::saved_state;

/// After what time a store that could not adopt an epoch tries again.
const ADOPT_AGAIN: Duration = Duration::from_secs(1);

/// The answer of a backend that must not answer.
pub fn cut_off() -> S3Error {
    Code::ServiceUnavailable.with_message("This storage node is cut off from its cluster.")
}

/// The answer of a node whose placement is not that of most nodes.
pub fn differs() -> S3Error {
    let message = "This node's configuration places objects differently from most nodes': \
                   compare the nodes' files.";
    Code::ServiceUnavailable.with_message(message)
}

/// The answer to a node that takes this one for a key's owner, or asks by an old view of the
/// cluster.
pub fn elsewhere() -> S3Error {
    let message = "This storage node is not the one to ask: the cluster has just changed, or the \
                   nodes' configurations differ.";
    Code::ServiceUnavailable.with_message(message)
}

impl Node {
    /// Whether this node may look into its store, as it might when it got `held`.
    pub fn may_look(&self, held: Option<LeaseTerm>) -> Result<(), S3Error> {
        match held {
            _ if self.process.places_differently() => Err(differs()),
            Some(_) => Ok(()),
            None => Err(cut_off()),
        }
    }
}

impl Replication {
    /// What was found or done, if this node might serve all the time since `term` began.
    ///
    /// # Errors
    /// Unavailable, where its lease has ended meanwhile.
    pub fn if_still<T>(
        &self,
        term: Option<LeaseTerm>,
        result: Result<T, S3Error>,
    ) -> Result<T, S3Error> {
        match self.is_still(term) {
            true => result,
            false => Err(cut_off()),
        }
    }
}

/// Adopts every view of the cluster that comes, and says so.
pub async fn follow_views(node: &Arc<Node>) {
    let mut views = node.cluster.view.clone();
    loop {
        let view = views.borrow_and_update().clone();
        adopt(node, view.state()).await;
        greet(node, view.state());
        node.replication.adopt(view.clone());
        node.cluster.adopted(view.state());
        if views.changed().await.is_err() {
            return std::future::pending().await;
        }
        tracing::info!(epoch = views.borrow().epoch(), "the cluster has changed");
    }
}

/// Backends that were out and have come back live, whatever was found out about them
/// meanwhile: the first write in the new epoch needs them.
fn greet(node: &Node, state: &State) {
    let before = node.replication.view();
    for (name, backend) in &state.backends {
        let was_out = before.state().status(name.as_str()) == Some(Status::Out);
        if was_out && backend.status != Status::Out {
            node.process.health.lives(name.as_str());
        }
    }
}

/// Has the store act by a state, before anything else does: from then on it prepares
/// and commits nothing of an earlier one. Where the state may be lost, it notes it.
async fn adopt(node: &Arc<Node>, state: &State) {
    let epoch = state.epoch;
    loop {
        let (here, state) = (node.clone(), state.clone());
        let adopting = tokio::task::spawn_blocking(move || match &here.store {
            Some(store) if here.cluster.is_in_etcd() => saved_state::write(store, &state),
            Some(store) => store.adopt(state.epoch),
            None => Ok(()),
        });
        match adopting.await {
            Ok(Ok(())) => return,
            // The cluster waits for this node, or goes on without it.
            Ok(Err(error)) => tracing::error!(%error, epoch, "the epoch was not adopted"),
            Err(error) => tracing::error!(%error, epoch, "the epoch was not adopted"),
        }
        tokio::time::sleep(ADOPT_AGAIN).await;
    }
}
