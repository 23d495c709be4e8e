//! The fence: whether this backend may answer from its store, by the cluster as it is now.
//!
//! - A node without a lease does not know the cluster's state: the others may have gone on
//!   without it.
//! - A node whose placement is not that of most nodes stores objects where the others do not
//!   look. It relays no requests either.
//! - A node that asks by an old view, or by another placement, is sent back: its objects would
//!   not be found here.

use prism_membership::LeaseTerm;
use prism_s3::{Code, S3Error};

use crate::Node;
use crate::replication::Replication;

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
