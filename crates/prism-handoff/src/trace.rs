//! The times of the steps of hand-offs: of all as distributions, and of recent ones as records,
//! for `prism-lab bench handoff` and for operators. Records are bounded, and off by default.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use prism_sys::clock::monotonic_ns;

/// The largest number of records, of 80 bytes each; the oldest one is dropped first.
const MAX_RECORDS: usize = 1 << 17;

/// Steps of a hand-off in their order, by the part of the node that takes them.
#[derive(Clone, Copy)]
pub(crate) enum HandOffStep {
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

    /// Every part.
    pub const ALL: [Self; 3] = [Self::Source, Self::Target, Self::Transit];

    /// The names of the durations between two steps, in the order of [`HandOffStep`].
    pub const fn durations(self) -> &'static [&'static str] {
        match self {
            Self::Source => &["block", "save", "encode", "send", "close", "verdict"],
            Self::Target => &["restore", "own", "resume"],
            Self::Transit => &["decide"],
        }
    }

    const fn first_step(self) -> HandOffStep {
        match self {
            Self::Source => HandOffStep::Start,
            Self::Target => HandOffStep::Received,
            Self::Transit => HandOffStep::TransitReceived,
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
    /// Whether the switch blocked the flow. Otherwise the source's host froze the socket.
    pub is_blocked_by_switch: bool,
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
            is_blocked_by_switch: false,
            at_ns: [0; STEPS],
        }
    }

    pub(crate) fn mark(&mut self, step: HandOffStep) {
        self.mark_at(step, monotonic_ns());
    }

    pub(crate) fn mark_at(&mut self, step: HandOffStep, at_ns: u64) {
        let first = self.part.first_step();
        let index = (step as usize).saturating_sub(first as usize);
        if let Some(slot) = self.at_ns.get_mut(index) {
            *slot = at_ns;
        }
    }
}

/// The upper bounds of the buckets of durations, in nanoseconds.
pub const BUCKETS_NS: [u64; 12] = [
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    250_000,
    1_000_000,
    10_000_000,
    100_000_000,
    1_000_000_000,
];

/// The distribution of a duration.
#[derive(Debug, Default)]
pub struct Distribution {
    sum_ns: AtomicU64,
    count: AtomicU64,
    buckets: [AtomicU64; BUCKETS_NS.len()],
}

impl Distribution {
    fn add(&self, ns: u64) {
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
        let bucket = BUCKETS_NS.iter().position(|bound| ns <= *bound);
        if let Some(bucket) = bucket.and_then(|bucket| self.buckets.get(bucket)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The sum of all durations in nanoseconds.
    pub fn sum_ns(&self) -> u64 {
        self.sum_ns.load(Ordering::Relaxed)
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// The number of durations by the first of [`BUCKETS_NS`] that they do not exceed.
    pub fn buckets(&self) -> [u64; BUCKETS_NS.len()] {
        std::array::from_fn(|n| {
            let bucket = self.buckets.get(n);
            bucket.map_or(0, |bucket| bucket.load(Ordering::Relaxed))
        })
    }
}

/// One end's view of one hand-off, when it has ended there.
#[derive(Clone, Copy, Debug)]
pub struct Ended<'h> {
    /// The times.
    pub record: &'h Record,
    /// The node at the other end: of a source its target, else the node that the connection came
    /// from.
    pub peer: &'h str,
    /// The source's word to the application.
    pub context: &'h [u8],
    /// The outcome: `moved`, `kept`, `lost` or `unknown` at a source; `accepted`, `refused` or
    /// `unknown` at others.
    pub outcome: &'static str,
}

/// An observer of hand-offs. It is called while a connection waits, so it must not block.
pub trait Observer: fmt::Debug + Send + Sync {
    /// A hand-off has ended at this end.
    fn ended(&self, hand_off: &Ended<'_>);
}

/// The durations and records of one process.
#[derive(Debug, Default)]
pub struct Trace {
    durations: [[Distribution; STEPS - 1]; Part::ALL.len()],
    on: AtomicBool,
    records: Mutex<VecDeque<Record>>,
    observer: OnceLock<Arc<dyn Observer>>,
}

impl Trace {
    /// Turns recording on or off, and drops all records.
    pub fn set_on(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
        self.records.lock().clear();
    }

    /// Sets the observer of all hand-offs, once in the life of the process.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        // A second observer would be an error of the caller, and the first one stays.
        let _ = self.observer.set(observer);
    }

    /// A copy of a hand-off's context for [`Self::push`], if there is an observer.
    pub(crate) fn context_for_observer(&self, context: &[u8]) -> Vec<u8> {
        match self.observer.get() {
            Some(_) => context.to_vec(),
            None => Vec::new(),
        }
    }

    /// Takes all records.
    pub fn take(&self) -> Vec<Record> {
        self.records.lock().drain(..).collect()
    }

    /// The distributions of the durations of a part, in the order of [`Part::durations`].
    pub fn durations(&self, part: Part) -> &[Distribution] {
        let durations = self.durations.get(part as usize);
        durations.map_or(&[], |durations| durations)
    }

    pub(crate) fn push(&self, ended: &Ended<'_>) {
        let record = *ended.record;
        if let Some(observer) = self.observer.get() {
            observer.ended(ended);
        }
        let steps = record.at_ns.iter().zip(record.at_ns.iter().skip(1));
        for ((from, to), duration) in steps.zip(self.durations(record.part)) {
            if *from > 0 && *to > 0 {
                duration.add(to.saturating_sub(*from));
            }
        }
        if self.on.load(Ordering::Relaxed) {
            let mut records = self.records.lock();
            if records.len() >= MAX_RECORDS {
                records.pop_front();
            }
            records.push_back(record);
        }
    }
}
