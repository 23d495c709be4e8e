//! Why etcd has not done what it was asked.

use std::io;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No endpoint answered; of the last one, this is why. Whether the call was
    /// carried out is not known.
    #[error("etcd at {endpoint}: {source}")]
    Unreachable {
        /// The last endpoint that was tried.
        endpoint: String,
        /// Why.
        source: io::Error,
    },
    /// etcd answered that it will not.
    #[error("etcd refuses: {message} (status {status})")]
    Refused {
        /// Of the HTTP answer.
        status: u16,
        /// What etcd says.
        message: String,
    },
    /// The answer makes no sense: no etcd, or one of another kind.
    #[error("etcd's answer makes no sense: {0}")]
    Malformed(String),
    /// A watch asked for what etcd no longer has: all has to be read again.
    #[error("etcd has forgotten revisions below {0}")]
    Compacted(u64),
    /// A watch was ended by etcd.
    #[error("etcd ended the watch: {0}")]
    Ended(String),
}

impl Error {
    pub(crate) fn malformed(what: impl std::fmt::Display) -> Self {
        Self::Malformed(what.to_string())
    }
}
