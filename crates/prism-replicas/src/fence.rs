//! The fence: whether this backend may answer from its store, by the cluster as it is now.
//!
//! - A node without a lease does not know the cluster's state: the others may have gone on
//!   without it.
//! - A node whose placement is not that of most nodes stores objects where the others do not
//!   look. It relays no requests either.
//! - A node that asks by an old view, or by another placement, is sent back: its objects would
//!   not be found here.

use std::sync::Arc;
use std::time::Duration;

use prism_cluster::State;
use prism_membership::LeaseTerm;
use prism_s3::{Code, S3Error};

use crate::Node;
use crate::replication::Replication;

/// Pause after a failure to adopt an epoch.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The answer of a backend without a lease.
pub fn cut_off() -> S3Error {
    Code::ServiceUnavailable.with_message("This storage node is cut off from its cluster.")
}

/// The answer of a backend whose store is not the one that the cluster knows.
fn another_store() -> S3Error {
    let message = "This storage node has another store than its cluster knows for it: it was \
                   replaced, or put back from an older copy. `prism ctl cluster` names it.";
    Code::ServiceUnavailable.with_message(message)
}

/// The answer of a node whose placement is not that of most nodes.
pub fn differs() -> S3Error {
    let message = "This node's configuration places objects differently from most nodes': \
                   compare the nodes' files.";
    Code::ServiceUnavailable.with_message(message)
}

/// The answer to a node that takes this one for a key's owner, or asks by an old view.
pub fn elsewhere() -> S3Error {
    let message = "This storage node is not the one to ask: the cluster has just changed, or the \
                   nodes' configurations differ.";
    Code::ServiceUnavailable.with_message(message)
}

impl Node {
    /// Checks that this node may serve from its store, under the lease of `term`.
    ///
    /// # Errors
    /// Unavailable without a lease, or if this node's placement differs from most nodes'.
    pub fn check_lease(&self, term: Option<LeaseTerm>) -> Result<(), S3Error> {
        match term {
            _ if self.core.process.places_differently() => Err(differs()),
            Some(_) => Ok(()),
            None if self.replication.has_other_store() => Err(another_store()),
            None => Err(cut_off()),
        }
    }
}

impl Replication {
    /// Returns `result`, if the lease of `term` has lasted until now.
    ///
    /// # Errors
    /// Unavailable if the lease has ended meanwhile; the error of `result`.
    pub fn if_still<T>(
        &self,
        term: Option<LeaseTerm>,
        result: Result<T, S3Error>,
    ) -> Result<T, S3Error> {
        if self.is_still(term) {
            result
        } else {
            Err(cut_off())
        }
    }
}

/// Adopts each new view of the cluster, and reports it. Never returns.
pub async fn follow_views(node: &Arc<Node>) {
    prism_core::follow_views(&node.core, async |state| adopt(node, state).await).await;
}

/// Has the store act by a state, before anything else does. From then on the store prepares and
/// commits no change of an earlier epoch. With etcd the store also saves the state.
async fn adopt(node: &Arc<Node>, state: &State) {
    let epoch = state.epoch;
    loop {
        let here = node.clone();
        let state = state.clone();
        let adopting = tokio::task::spawn_blocking(move || match &here.store {
            Some(store) => {
                // Names and numbers can be encoded. The epoch would count without the saved state.
                let saved = serde_json::to_vec(&state).ok();
                store.adopt(
                    state.epoch,
                    saved.filter(|_| here.core.cluster.is_in_etcd()),
                )
            }
            None => Ok(()),
        });
        let error = match adopting.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => anyhow::Error::from(error),
            Err(error) => error.into(),
        };
        // The cluster waits until this node has adopted it or its lease has ended.
        tracing::error!(%error, epoch, "cannot adopt the epoch; trying again");
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}
