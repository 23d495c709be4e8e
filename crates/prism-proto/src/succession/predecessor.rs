//! The order of a take-over, as the process that is replaced keeps it.
//!
//! ```text
//!  Preparing --prepared--> [Closing the store] --> Starting --ready--> Passing --all gone--> Over
//!      |                          |                   |                  |
//!      +--------------------------+----- broken ------+------------------+--> it goes on
//! ```
//!
//! Until the successor is ready, nothing has passed. From then on each connection passes by itself:
//! the successor answers `Taken` before it touches the socket. A connection without an answer when
//! the link breaks is therefore still the predecessor's, as it was.
//!
//! A store can be open in one process only. A predecessor with a store closes it before the
//! successor starts. All connections then wait in the predecessor until the successor is ready.

use std::collections::BTreeSet;

/// News for the predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The successor could load its configuration.
    Prepared,
    /// The predecessor serves nothing any more, and its store is closed.
    Closed,
    /// The successor accepts connections.
    Ready,
    /// The successor takes a connection.
    Taken(u64),
    /// The successor refuses a connection.
    Refused(u64),
    /// The predecessor has no connection left.
    AllGone,
    /// The link has ended, and everything that came on it was handled.
    Broken,
}

/// The reaction of the predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stop serving, keep the waiting connections, and close the store.
    Close,
    /// Tell the successor to start.
    Start,
    /// Accept no more, and pass the connections.
    Pass,
    /// Forget a connection that the successor has.
    Forget(u64),
    /// Serve a connection on, which the successor has refused.
    Keep(u64),
    /// Tell the successor that it has everything, and end.
    End,
    /// Serve on as before: accept, and serve these connections, which were sent and not taken.
    GoOn(BTreeSet<u64>),
    /// End the link, handle what has come on it, and then report [`Event::Broken`].
    HangUp,
    /// Wait for news.
    Wait,
}

/// A process with a successor.
#[derive(Debug)]
pub struct Predecessor {
    has_store: bool,
    phase: Phase,
    next_id: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Preparing,
    /// The store is being closed. `is_broken`: it is to be opened again.
    Closing {
        is_broken: bool,
    },
    Starting,
    /// Connections that were sent and are not answered.
    Passing {
        unanswered: BTreeSet<u64>,
    },
    Over,
}

impl Predecessor {
    /// The successor has got the listeners, and loads its configuration.
    pub fn new(has_store: bool) -> Self {
        Self {
            has_store,
            phase: Phase::Preparing,
            next_id: 0,
        }
    }

    /// The number for a connection that is to be sent; `None` if none may be sent now.
    pub fn send(&mut self) -> Option<u64> {
        let Phase::Passing { unanswered } = &mut self.phase else {
            return None;
        };
        self.next_id += 1;
        unanswered.insert(self.next_id);
        Some(self.next_id)
    }

    /// The number of connections without an answer.
    pub fn unanswered(&self) -> usize {
        match &self.phase {
            Phase::Passing { unanswered } => unanswered.len(),
            _ => 0,
        }
    }

    /// Handles news.
    pub fn handle(&mut self, event: Event) -> Action {
        match (&mut self.phase, event) {
            (Phase::Over, _) => Action::Wait,
            (Phase::Preparing, Event::Prepared) if self.has_store => {
                self.phase = Phase::Closing { is_broken: false };
                Action::Close
            }
            (Phase::Preparing, Event::Prepared)
            | (Phase::Closing { is_broken: false }, Event::Closed) => {
                self.phase = Phase::Starting;
                Action::Start
            }
            (Phase::Closing { is_broken: true }, Event::Closed) => self.go_on(BTreeSet::new()),
            (Phase::Closing { is_broken }, Event::Broken) => {
                *is_broken = true;
                Action::Wait
            }
            (Phase::Starting, Event::Ready) => {
                self.phase = Phase::Passing {
                    unanswered: BTreeSet::new(),
                };
                Action::Pass
            }
            (Phase::Passing { unanswered }, Event::Taken(id)) => {
                if unanswered.remove(&id) {
                    Action::Forget(id)
                } else {
                    Action::HangUp
                }
            }
            (Phase::Passing { unanswered }, Event::Refused(id)) => {
                if unanswered.remove(&id) {
                    Action::Keep(id)
                } else {
                    Action::HangUp
                }
            }
            (Phase::Passing { unanswered }, Event::AllGone) => {
                if unanswered.is_empty() {
                    self.phase = Phase::Over;
                    Action::End
                } else {
                    Action::Wait
                }
            }
            (Phase::Passing { unanswered }, Event::Broken) => {
                let unanswered = std::mem::take(unanswered);
                self.go_on(unanswered)
            }
            (Phase::Preparing | Phase::Starting, Event::Broken) => self.go_on(BTreeSet::new()),
            (Phase::Preparing | Phase::Starting, Event::AllGone) => Action::Wait,
            // The successor does not keep to the protocol.
            (
                Phase::Preparing | Phase::Closing { .. } | Phase::Starting | Phase::Passing { .. },
                _,
            ) => Action::HangUp,
        }
    }

    fn go_on(&mut self, unanswered: BTreeSet<u64>) -> Action {
        self.phase = Phase::Over;
        Action::GoOn(unanswered)
    }
}

#[cfg(test)]
#[path = "predecessor_tests.rs"]
mod tests;
