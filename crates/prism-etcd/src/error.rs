//! The errors of calls.

use std::fmt::Display;
use std::io;

use serde_json::Value;

use crate::endpoint::Endpoint;

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
    pub(crate) fn malformed(what: impl Display) -> Self {
        Self::Malformed(what.to_string())
    }

    pub(crate) fn unreachable(endpoint: &Endpoint, source: io::Error) -> Self {
        let endpoint = endpoint.to_string();
        Self::Unreachable { endpoint, source }
    }

    /// An HTTP answer with another status than 200.
    pub(crate) fn refused(status: u16, body: &[u8]) -> Self {
        let message = match serde_json::from_slice(body) {
            Ok(value) => message_of(&value),
            Err(_) => String::from_utf8_lossy(body).trim().to_owned(),
        };
        Self::Refused { status, message }
    }

    /// Whether another member may succeed: this one is out of reach, has no leader, or is too
    /// busy.
    pub(crate) fn is_members_own(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Ended(_) => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..=599),
            Self::Malformed(_) | Self::Compacted(_) => false,
        }
    }
}

/// etcd's message of a failure, in either form that it may have.
pub(crate) fn message_of(error: &Value) -> String {
    let texts = [error.get("message"), error.get("error"), Some(error)];
    let mut texts = texts.into_iter().flatten();
    let text = texts.find_map(Value::as_str);
    text.map_or_else(|| error.to_string(), str::to_owned)
}
