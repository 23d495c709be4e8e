//! Errors that clients get in the place of an answer.

use prism_http::{BodyError, HeadError};

use crate::redirect::RedirectFault;

/// The reason why a request has no answer of an upstream.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum Error {
    /// The head is malformed.
    #[error("{0}")]
    Head(#[from] HeadError),
    /// The body is malformed.
    #[error("{0}")]
    Body(#[from] BodyError),
    /// The rest of the head did not arrive in time.
    #[error("the request did not arrive in time")]
    TimedOut,
    /// The body is longer than the upstream's `max_body_bytes`.
    #[error("the body of the request is too long")]
    BodyTooLong,
    /// The path can be read in two ways, and an upstream is for some paths only.
    #[error(
        "the path can be read in two ways: it has an escaped slash, a backslash, `..;` or a \
         malformed escape, or leads above the root"
    )]
    AmbiguousPath,
    #[error("no upstream is for this request")]
    NoUpstream,
    /// Every server is out, or no backend is in reach.
    #[error("no server for this request is in reach")]
    OutOfReach,
    #[error("the server takes no connection")]
    NotConnected,
    #[error("the server takes no connection in time")]
    ConnectTimedOut,
    #[error("the server ended the connection without an answer")]
    Ended,
    #[error("the server's answer is malformed")]
    Malformed,
    #[error("the server did not answer in time")]
    Silent,
    /// The answer waited for its connection, and is gone.
    #[error("the answer of the server is lost")]
    Lost,
    #[error("this node has another configuration than most nodes")]
    Differs,
    /// The server's answer is an internal redirect that is not followed.
    #[error("the server's answer names a resource that the client cannot get: {0}")]
    Redirect(#[from] RedirectFault),
    /// Internal redirects lead on and on.
    #[error("the servers' answers name other resources again and again")]
    RedirectLoop,
    /// It may be admitted after this time in seconds.
    #[error("too many requests")]
    TooMany(u32),
}

impl Error {
    /// The status code of the answer.
    pub fn status(&self) -> u16 {
        match self {
            Self::Head(error) => error.status(),
            Self::Body(error) => error.status(),
            Self::AmbiguousPath => 400,
            Self::TimedOut => 408,
            Self::BodyTooLong => 413,
            Self::TooMany(_) => 429,
            Self::NoUpstream => 404,
            Self::NotConnected | Self::Ended | Self::Malformed | Self::Lost => 502,
            Self::Redirect(_) | Self::RedirectLoop => 502,
            Self::OutOfReach | Self::Differs => 503,
            Self::ConnectTimedOut | Self::Silent => 504,
        }
    }

    /// The word for it in the access log.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Head(_) => "MalformedHead",
            Self::Body(_) => "MalformedBody",
            Self::TimedOut => "RequestTimeout",
            Self::BodyTooLong => "BodyTooLong",
            Self::AmbiguousPath => "AmbiguousPath",
            Self::NoUpstream => "NoUpstream",
            Self::OutOfReach => "OutOfReach",
            Self::NotConnected => "NotConnected",
            Self::ConnectTimedOut => "ConnectTimeout",
            Self::Ended => "Ended",
            Self::Malformed => "MalformedAnswer",
            Self::Silent => "AnswerTimeout",
            Self::Lost => "LostAnswer",
            Self::Differs => "ConfigurationDiffers",
            Self::Redirect(_) => "BadRedirect",
            Self::RedirectLoop => "RedirectLoop",
            Self::TooMany(_) => "TooManyRequests",
        }
    }
}
