//! The times of the steps of recent hand-offs, for `prism-lab bench handoff` and for operators.
//! Recording is bounded, and off by default.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::control::now_ns;
use crate::supervise::locked;

/// The largest number of records, of 80 bytes each; the oldest one is dropped first.
pub const MAX_RECORDS: usize = 1 << 17;

/// Steps of a hand-off in their order, by the part of the node that takes them.
#[derive(Clone, Copy)]
pub(crate) enum Step {
    // The source.
    Start,
    /// The switch blocks the flow, or the socket is frozen.
    Blocked,
    Saved,
    Encoded,
    /// The message is written to the channel.
    Sent,
    /// The old socket is closed or kept frozen.
    Closed,
    Verdict,
    // The target.
    /// The message is read and decoded.
    Received,
    Restored,
    /// The switch has redirected the flow.
    Owned,
    /// The socket is live and with the application.
    Live,
    // A node that passes the connection on.
    TransitReceived,
    /// The application has named the node that the connection goes to.
    TransitDecided,
}

/// The part of a node in a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// It hands the connection over.
    Source,
    /// It takes the connection.
    Target,
    /// It passes the connection on without restoring it.
    Transit,
}

impl Part {
    /// The part's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Target => "target",
            Self::Transit => "transit",
        }
    }

    const fn first_step(self) -> Step {
        match self {
            Self::Source => Step::Start,
            Self::Target => Step::Received,
            Self::Transit => Step::TransitReceived,
        }
    }
}

/// The number of steps that a record has room for.
pub const STEPS: usize = 7;

/// One end's view of one hand-off.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Identifier, the same at both ends.
    pub id: u64,
    /// The client's port, to tell connections apart.
    pub client_port: u16,
    /// The part of this end.
    pub part: Part,
    /// The time (`CLOCK_MONOTONIC`) of each step of the part; 0 for a step that did not happen. A
    /// source starts, blocks, saves, encodes, sends, closes, and has the verdict. A target has
    /// received, restored, the flow, and the live socket. A transit has received and decided.
    pub at_ns: [u64; STEPS],
}

impl Record {
    pub(crate) fn new(part: Part, id: u64, client_port: u16) -> Self {
        Self {
            id,
            client_port,
            part,
            at_ns: [0; STEPS],
        }
    }

    pub(crate) fn mark(&mut self, step: Step) {
        self.mark_at(step, now_ns());
    }

    pub(crate) fn mark_at(&mut self, step: Step, at_ns: u64) {
        let first = self.part.first_step();
        let index = (step as usize).saturating_sub(first as usize);
        if let Some(slot) = self.at_ns.get_mut(index) {
            *slot = at_ns;
        }
    }
}

/// The records of one process.
#[derive(Debug, Default)]
pub struct Trace {
    on: AtomicBool,
    records: Mutex<VecDeque<Record>>,
}

impl Trace {
    /// Turns recording on or off, and drops all records.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        locked(&self.records).clear();
    }

    /// Takes all records.
    pub fn take(&self) -> Vec<Record> {
        locked(&self.records).drain(..).collect()
    }

    pub(crate) fn push(&self, record: Record) {
        if self.on.load(Ordering::Relaxed) {
            let mut records = locked(&self.records);
            if records.len() >= MAX_RECORDS {
                records.pop_front();
            }
            records.push_back(record);
        }
    }
}
