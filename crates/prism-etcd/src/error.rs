//! The errors of calls.

use std::io;

/// The reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No endpoint answered; the source is of the last one. The call may have been carried
    /// out.
    #[error("etcd at {endpoint}: {source}")]
    Unreachable {
        /// The last endpoint that was tried.
        endpoint: String,
        /// The reason.
        source: io::Error,
    },
    /// etcd refused the call.
    #[error("etcd refuses: {message} (status {status})")]
    Refused {
        /// The status of the HTTP answer.
        status: u16,
        /// etcd's message.
        message: String,
    },
    /// The answer cannot be parsed: the endpoint is no etcd, or an unknown version.
    #[error("cannot parse etcd's answer: {0}")]
    Malformed(String),
    /// A watch asked for revisions that etcd has compacted. The caller has to read all keys
    /// again.
    #[error("etcd has forgotten revisions below {0}")]
    Compacted(u64),
    /// etcd ended a watch.
    #[error("etcd ended the watch: {0}")]
    Ended(String),
}

impl Error {
    pub(crate) fn malformed(what: impl std::fmt::Display) -> Self {
        Self::Malformed(what.to_string())
    }
}
