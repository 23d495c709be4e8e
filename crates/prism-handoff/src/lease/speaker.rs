//! The runs by which a worker says to the switch's agent whether it takes new clients.
//!
//! Not here: the connections on which they say so (`lease`).

use std::sync::atomic::{AtomicU16, Ordering};

use prism_proto::control::{RunId, Term};

use crate::flows::Flows;

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
    pub(super) fn settled_term(self, flows: &Flows, told: Term) -> Option<Term> {
        if self.owns_flows() {
            flows.settled_term().filter(|term| *term == told)
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
