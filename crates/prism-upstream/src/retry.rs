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

/// The next step after `failure`. `has_begun`: a byte of the body was read, which cannot be sent
/// twice. `is_again`: it was sent again already.
pub(crate) fn step(failure: Failure, method: &Method, has_begun: bool, is_again: bool) -> Step {
    let is_idempotent = method.is_safe() || matches!(method, Method::Put | Method::Delete);
    match failure {
        _ if has_begun => Step::GiveUp,
        Failure::Ended { was_used: true, .. } if is_idempotent && !is_again => Step::Again,
        Failure::Ended { .. } if method.is_safe() => Step::Elsewhere,
        Failure::Ended { .. } | Failure::Silent | Failure::Malformed => Step::GiveUp,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_run_twice_or_has_not_run_is_sent_again() {
        let idle = Failure::Ended {
            was_used: true,
            in_order: true,
        };
        let fresh = Failure::Ended {
            was_used: false,
            in_order: true,
        };
        for (failure, method, expected) in [
            (idle, Method::Get, Step::Again),
            (idle, Method::Put, Step::Again),
            (idle, Method::Post, Step::GiveUp),
            (idle, Method::Patch, Step::GiveUp),
            (fresh, Method::Get, Step::Elsewhere),
            (fresh, Method::Delete, Step::GiveUp),
            (Failure::Silent, Method::Get, Step::GiveUp),
            (Failure::Malformed, Method::Get, Step::GiveUp),
        ] {
            assert_eq!(
                step(failure, &method, false, false),
                expected,
                "{failure:?} {method}"
            );
            assert_eq!(step(failure, &method, true, false), Step::GiveUp);
        }
        assert_eq!(step(idle, &Method::Get, false, true), Step::Elsewhere);
        assert_eq!(step(idle, &Method::Delete, false, true), Step::GiveUp);
    }
}
