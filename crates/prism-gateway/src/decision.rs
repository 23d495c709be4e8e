//! The decision about a request, as a value. Pure.

use prism_http::ResponseHead;
use prism_service::{RelayError, Route};

use crate::short::Guess;

/// The next step of a request.
#[derive(Debug, PartialEq)]
pub(crate) enum Decision<E> {
    /// This node answers.
    Here,
    /// The connection moves.
    HandOff(Move),
    /// Another node is asked for a short answer, which this node relays.
    Ask(Guess),
    /// Another node answers, through this one.
    Relay(Vec<String>),
    /// This node relays the answer that waits at this node.
    Fetch(String),
    /// The client gets the resource that this answer of a server names.
    Redirect(Box<ResponseHead>),
    /// The client gets an error.
    Refuse(E),
}

/// The way of a request that is not answered yet. Its connection is as it was when the request was
/// read; of a redirected one the body is gone.
#[derive(Debug, PartialEq)]
pub(crate) enum Onward {
    /// The connection moves.
    Moves(Move),
    /// Another request takes its place, by this answer of a server.
    Redirected(Box<ResponseHead>),
}

/// A movement of the client's connection.
#[derive(Debug, PartialEq)]
pub(crate) struct Move {
    /// The nodes that may take it, best first.
    pub(crate) peers: Vec<String>,
    /// Whether the answer waits at the only one of them.
    pub(crate) is_fetched: bool,
}

impl Move {
    pub(crate) fn to(peers: Vec<String>) -> Self {
        Self {
            peers,
            is_fetched: false,
        }
    }
}

impl<E> Decision<E> {
    /// The first decision about a request. `may_move`: whether the connection can move to a node;
    /// an address of its client's family is needed. `guess`: whether the answer is likely short.
    pub(crate) fn of_route(
        route: Route,
        may_move: impl Fn(&str) -> bool,
        guess: impl FnOnce(&[String]) -> Option<Guess>,
    ) -> Self {
        let mut peers = match route {
            Route::Here => return Self::Here,
            Route::Relay(peers) => return Self::Relay(peers),
            Route::HandOff(peers) => peers,
        };
        peers.sort_by_cached_key(|peer| !may_move(peer));
        if !peers.first().is_some_and(|peer| may_move(peer)) {
            return Self::Relay(peers);
        }
        match guess(&peers) {
            Some(guess) => Self::Ask(guess),
            None => Self::HandOff(Move::to(peers)),
        }
    }

    /// The decision after this node could not begin to answer a request.
    pub(crate) fn after_here(route: Route, error: E, is_untouched: bool) -> Self {
        match route {
            Route::HandOff(peers) if !peers.is_empty() && is_untouched => {
                Self::HandOff(Move::to(peers))
            }
            Route::HandOff(peers) | Route::Relay(peers) if !peers.is_empty() => Self::Relay(peers),
            _ => Self::Refuse(error),
        }
    }

    /// The decision after a node was asked in vain. `is_repeatable`: carrying the request out twice
    /// has the same effect as once. `out_of_reach`: the error if nothing else can be done.
    pub(crate) fn after_asking(
        mut peers: Vec<String>,
        error: &RelayError,
        is_repeatable: bool,
        out_of_reach: impl FnOnce() -> E,
    ) -> Self {
        match error {
            RelayError::Redirected(answer) => Self::Redirect(answer.clone()),
            RelayError::Parked => {
                peers.truncate(1);
                Self::HandOff(Move {
                    peers,
                    is_fetched: true,
                })
            }
            // A hand-off would not reach the node either.
            RelayError::Peer(_) => Self::Relay(peers.split_off(1)),
            RelayError::Elsewhere => Self::HandOff(Move::to(peers.split_off(1))),
            RelayError::TooLong | RelayError::NotRead => Self::HandOff(Move::to(peers)),
            error if is_repeatable && !error.is_silence() => Self::HandOff(Move::to(peers)),
            // It may have been carried out, or be under way.
            _ => Self::Refuse(out_of_reach()),
        }
    }

    /// The decision after a connection that was to move has stayed.
    pub(crate) fn after_move(stayed: Move) -> Self {
        match stayed.peers.first() {
            Some(peer) if stayed.is_fetched => Self::Fetch(peer.clone()),
            _ => Self::Relay(stayed.peers),
        }
    }

    /// The decision after an answer that waited was not got. Only a safe request is carried out
    /// again.
    pub(crate) fn after_fetching(
        peer: String,
        error: &RelayError,
        is_safe: bool,
        out_of_reach: impl FnOnce() -> E,
    ) -> Self {
        if is_safe && !error.is_silence() {
            Self::Relay(vec![peer])
        } else {
            Self::Refuse(out_of_reach())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io;

    use prism_handoff::PeerError;

    use super::*;
    use crate::short::tests::guess;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn decide(route: Route, guess: Option<Guess>) -> Decision<u8> {
        Decision::of_route(route, |peer| peer != "v6", |_| guess)
    }

    #[test]
    fn a_connection_moves_to_a_node_of_its_family_unless_the_answer_is_short() {
        use Route::{HandOff, Here, Relay};
        assert_eq!(decide(Here, None), Decision::Here);
        let relayed = Relay(names(&["a"]));
        assert_eq!(
            decide(relayed, Some(guess("a"))),
            Decision::Relay(names(&["a"]))
        );
        let moved = decide(HandOff(names(&["v6", "a"])), None);
        assert_eq!(moved, Decision::HandOff(Move::to(names(&["a", "v6"]))));
        assert_eq!(
            decide(HandOff(names(&["v6"])), None),
            Decision::Relay(names(&["v6"]))
        );
        assert_eq!(
            decide(HandOff(Vec::new()), None),
            Decision::Relay(Vec::new())
        );
        let asked = decide(HandOff(names(&["a"])), Some(guess("a")));
        assert_eq!(asked, Decision::Ask(guess("a")));
    }

    #[test]
    fn a_request_that_was_not_begun_here_goes_to_others_if_there_are_any() {
        let moved = Route::HandOff(names(&["a"]));
        assert_eq!(
            Decision::after_here(moved.clone(), 7, true),
            Decision::HandOff(Move::to(names(&["a"])))
        );
        // A part of its body was read.
        assert_eq!(
            Decision::after_here(moved, 7, false),
            Decision::Relay(names(&["a"]))
        );
        for route in [
            Route::Here,
            Route::Relay(Vec::new()),
            Route::HandOff(Vec::new()),
        ] {
            assert_eq!(Decision::after_here(route, 7, true), Decision::Refuse(7));
        }
    }

    #[test]
    fn what_may_have_been_carried_out_is_not_repeated() {
        let broken = || RelayError::Broken(io::ErrorKind::ConnectionReset.into());
        let silent = || RelayError::Broken(io::ErrorKind::TimedOut.into());
        let both = || Decision::HandOff(Move::to(names(&["a", "b"])));
        let other = || Decision::HandOff(Move::to(names(&["b"])));
        let waiting = Decision::HandOff(Move {
            peers: names(&["a"]),
            is_fetched: true,
        });
        let unknown = || RelayError::Peer(PeerError::Unknown("a".into()));
        for (error, is_repeatable, expected) in [
            (RelayError::Parked, false, waiting),
            (RelayError::Elsewhere, false, other()),
            (RelayError::TooLong, false, both()),
            (RelayError::NotRead, false, both()),
            (unknown(), false, Decision::Relay(names(&["b"]))),
            (broken(), true, both()),
            (broken(), false, Decision::Refuse(7)),
            (silent(), true, Decision::Refuse(7)),
        ] {
            let peers = names(&["a", "b"]);
            let decided = Decision::after_asking(peers, &error, is_repeatable, || 7);
            assert_eq!(decided, expected, "{error:?}");
        }
        for (error, is_safe, expected) in [
            (broken(), true, Decision::Relay(names(&["a"]))),
            (broken(), false, Decision::Refuse(7)),
            (silent(), true, Decision::Refuse(7)),
        ] {
            let decided = Decision::after_fetching("a".into(), &error, is_safe, || 7);
            assert_eq!(decided, expected, "{error:?}");
        }
        let stayed = Move {
            peers: names(&["a"]),
            is_fetched: true,
        };
        assert_eq!(
            Decision::<u8>::after_move(stayed),
            Decision::Fetch("a".into())
        );
        let stayed = Move::to(names(&["a", "b"]));
        assert_eq!(
            Decision::<u8>::after_move(stayed),
            Decision::Relay(names(&["a", "b"]))
        );
    }
}
