//! Whether a worker takes new clients, and the runs that say so to the switch's agent.
//!
//! Not here: the connections on which they say so (`lease`).

use std::sync::atomic::{AtomicU16, Ordering};

use prism_proto::control::{RunId, Term};
use prism_proto::lease::NewClients;
use tokio::sync::watch;

use crate::control::Control;

/// Whether a worker takes new clients. A run repeats its announcement on each new lease.
#[derive(Debug)]
pub(crate) struct Taking {
    stance: watch::Sender<Stance>,
    /// The agent's answer to the present run.
    answer: watch::Sender<Option<NewClients>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stance {
    takes: bool,
    /// It takes none for good.
    has_ended: bool,
    /// The number of the run that says whether the worker takes new clients. It grows each time
    /// that the worker takes them again.
    pub(super) speaker: u32,
}

impl Default for Taking {
    fn default() -> Self {
        Self {
            stance: watch::Sender::new(Stance {
                takes: true,
                has_ended: false,
                speaker: 0,
            }),
            answer: watch::Sender::default(),
        }
    }
}

impl Stance {
    /// Whether the run with this number takes no new clients.
    pub(super) fn is_over_for(&self, number: u32) -> bool {
        !self.takes || self.speaker != number
    }
}

impl Taking {
    /// Takes new clients, or none for a while.
    pub(crate) fn set(&self, takes: bool) {
        self.stance.send_if_modified(|stance| {
            let is_new = !stance.has_ended && stance.takes != takes;
            if is_new {
                stance.takes = takes;
                if takes {
                    stance.speaker += 1;
                    self.answer.send_replace(None);
                }
            }
            is_new
        });
    }

    /// Ends the taking of new clients, and waits until the agent has said where they go.
    pub(crate) async fn end(&self) -> NewClients {
        self.stance.send_modify(|stance| {
            (stance.takes, stance.has_ended) = (false, true);
        });
        let mut answers = self.answer.subscribe();
        loop {
            if let Some(answer) = *answers.borrow_and_update() {
                return answer;
            }
            // The sender lives as long as `self`.
            let _ = answers.changed().await;
        }
    }

    pub(super) fn follow(&self) -> watch::Receiver<Stance> {
        self.stance.subscribe()
    }

    /// Notes the agent's answer to the run with this number.
    pub(super) fn note(&self, number: u32, answer: NewClients) {
        if self.stance.borrow().speaker == number {
            self.answer.send_replace(Some(answer));
        }
    }
}

/// One run of this worker.
#[derive(Clone, Copy)]
pub(super) struct Speaker {
    pub(super) run: RunId,
    /// The first one, 0, owns the flows. Each later one only takes new clients.
    pub(super) number: u32,
}

impl Speaker {
    /// The speaker with this number after the run `own`, which owns the flows.
    pub(super) fn further(own: RunId, number: u32) -> Self {
        let run = loop {
            let run = RunId(fastrand::u16(1..));
            if run != own {
                break run;
            }
        };
        Self { run, number }
    }

    pub(super) fn owns_flows(self) -> bool {
        self.number == 0
    }

    /// The term of which the agent is told again that all flows of this run are announced.
    /// Nothing is announced again in a term that was settled before this lease.
    pub(super) fn settled_term(self, control: &Control, told: Term) -> Option<Term> {
        if self.owns_flows() {
            control.flows.settled_term().filter(|term| *term == told)
        } else {
            Some(told).filter(|told| *told != Term::NONE)
        }
    }
}

/// Counts a run in its process for as long as it lives.
pub(super) struct CountedRun<'p>(&'p AtomicU16);

impl<'p> CountedRun<'p> {
    pub(super) fn new(runs: &'p AtomicU16) -> Self {
        runs.fetch_add(1, Ordering::Relaxed);
        Self(runs)
    }
}

impl Drop for CountedRun<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
