//! Whether a request that failed may be sent again. Pure.
//!
//! A request is sent again only if the server cannot have carried it out, or if carrying it out
//! twice has the same effect as once (RFC 9110, section 9.2.2), and no byte of an answer has come.
//! A request for which no server took a connection was not sent, and any backend may answer it.

use prism_http::Method;
use prism_proxy::Failure;

/// The next step of a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is sent again here, on a new connection.
    Again,
    /// Another backend may answer it.
    Elsewhere,
    /// The client gets an error.
    GiveUp,
}

/// The tries of a request so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tries {
    /// It was sent again here already.
    pub(crate) is_again: bool,
    /// It was sent as often as its upstream's `retries` allow, at all nodes.
    pub(crate) is_last: bool,
    /// A byte of the body was read.
    pub(crate) has_begun: bool,
    /// The bytes that were read of the body are not kept, and cannot be sent again.
    pub(crate) is_lost: bool,
}

/// The next step after `failure`.
pub(crate) fn step(failure: Failure, method: &Method, tries: Tries) -> Step {
    match failure {
        _ if tries.has_begun && tries.is_lost || tries.is_last => Step::GiveUp,
        Failure::Ended {
            was_used: true,
            is_unsent,
            ..
        } if (method.is_idempotent() || is_unsent) && !tries.is_again => Step::Again,
        // Nobody else has the bytes that were read.
        Failure::Ended { .. } if method.is_safe() && !tries.has_begun => Step::Elsewhere,
        Failure::Ended { .. } | Failure::Silent | Failure::Malformed => Step::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_run_twice_or_has_not_run_is_sent_again() {
        let ended = |was_used, is_unsent| Failure::Ended {
            was_used,
            in_order: true,
            is_unsent,
        };
        let idle = ended(true, false);
        let fresh = ended(false, false);
        for (failure, method, expected) in [
            (idle, Method::GET, Step::Again),
            (idle, Method::PUT, Step::Again),
            (idle, Method::POST, Step::GiveUp),
            (idle, Method::PATCH, Step::GiveUp),
            // The end was found just before.
            (ended(true, true), Method::POST, Step::Again),
            (ended(false, true), Method::POST, Step::GiveUp),
            (fresh, Method::GET, Step::Elsewhere),
            (fresh, Method::DELETE, Step::GiveUp),
            (Failure::Silent, Method::GET, Step::GiveUp),
            (Failure::Malformed, Method::GET, Step::GiveUp),
        ] {
            let first = Tries::default();
            assert_eq!(
                step(failure, &method, first),
                expected,
                "{failure:?} {method}"
            );
            for tries in [
                Tries {
                    has_begun: true,
                    is_lost: true,
                    ..first
                },
                Tries {
                    is_last: true,
                    ..first
                },
            ] {
                assert_eq!(step(failure, &method, tries), Step::GiveUp);
            }
        }
        let again = Tries {
            is_again: true,
            ..Tries::default()
        };
        let kept = Tries {
            has_begun: true,
            ..Tries::default()
        };
        assert_eq!(step(idle, &Method::PUT, kept), Step::Again);
        assert_eq!(step(fresh, &Method::GET, kept), Step::GiveUp);
        assert_eq!(step(idle, &Method::GET, again), Step::Elsewhere);
        assert_eq!(step(idle, &Method::DELETE, again), Step::GiveUp);
    }
}
