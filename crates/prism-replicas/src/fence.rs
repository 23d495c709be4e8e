//! The fence: whether this backend may answer from its store, by the cluster as it is now.
//!
//! - A node without a lease does not know the cluster's state: the others may have gone on
//!   without it.
//! - A node whose placement is not that of most nodes stores objects where the others do not
//!   look. It relays no requests either.
//! - A node that has not heard what the asking node has heard may act by an older copy of etcd, and
//!   of its own store.
//! - A node that asks by an old view, or by another placement, is sent back: its objects would
//!   not be found here.

use std::time::Duration;

use prism_cluster::LineageMark;
use prism_membership::LeaseTerm;
use prism_proto::facts::{Facts, LineageFacts};
use prism_s3::{Code, S3Error};

use crate::Node;
use crate::replication::Replication;

/// Longest wait for a change in etcd that another node has noted some time ago.
const HEARD_IN: Duration = Duration::from_secs(1);

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

/// The answer to a node that knows contents of etcd which this one does not.
fn behind() -> S3Error {
    let message = "This storage node has an older copy of the cluster's contents in etcd than the \
                   node that has asked it. `prism ctl cluster` names the fault if that lasts.";
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
    /// The change of the cluster's contents in etcd that a node has to know which gets a request of
    /// this one.
    pub fn lineage_facts(&self) -> Option<LineageFacts> {
        let LineageMark { count, id } = self.core.cluster.settled_mark()?;
        Some(LineageFacts { count, id })
    }

    /// Waits until this node has heard what a node had heard that sent these facts.
    ///
    /// # Errors
    /// Unavailable if it has not in time.
    pub async fn hear_of(&self, facts: &Facts) -> Result<(), S3Error> {
        let Some(LineageFacts { count, id }) = facts.lineage else {
            return Ok(());
        };
        let mark = LineageMark { count, id };
        if self.core.cluster.hear_of(mark, HEARD_IN).await {
            Ok(())
        } else {
            Err(behind())
        }
    }

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
