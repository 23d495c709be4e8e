//! The switch's side of terms: which commands it takes, and when it knows all flows.
//!
//! A term is *young* until all living nodes have announced their flows, and 10 s at most. In a
//! young term the switch decides nothing. It takes announcements, by which the greatest epoch of a
//! flow wins. It drops a client's packets of flows that it does not know, except SYNs, and every
//! RST to a client. A standby takes the same announcements, and never settles.
//!
//! Not here: the flow table, packets, and the nodes' side ([`crate::announce`]).

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::control::{Ops, RunId, Status, Term};
use crate::lease::{Done, TermNotice};

mod told;

pub use told::{KnownTerms, LONE_STEP, LONE_WORDS, MOST_TOLD, UNHEARD_NS};

/// The longest time that a term is young. A node that is out of reach for longer has died by its
/// lease.
pub const YOUNG_NS: u64 = 10_000_000_000;
/// The time in which a node on the other host of a pair gets a lease of a new arbiter, if it lives.
/// That host has most likely died. A living node notices within 200 ms, or 400 ms if a segment is
/// lost, and tries each 50 ms.
pub const ABSENT_NS: u64 = 600_000_000;
/// Epochs from here on (the year 2262) are no times, and no switch takes them.
pub const MAX_EPOCH: u64 = 1 << 63;
/// The most runs of all nodes: connections of leases.
const MAX_RUNS: usize = 16_384;

/// The switch's way with an authentic command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It decides, by the order of epochs.
    Judge,
    /// It takes the greatest epoch of the flow.
    Merge,
    /// It answers `OK` if the flow is as the command states, and `OLD_TERM` if not.
    Compare,
    /// It answers with this status, and changes nothing.
    Refuse(Status),
    /// It does not answer.
    Silence,
}

#[derive(Debug)]
enum Phase {
    /// Another switch decides.
    Standby,
    Young {
        since_ns: u64,
    },
    Settled,
}

/// One of the two switches. Each makes terms of its own, so that no two tables have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchOfPair {
    /// Makes odd terms. A single switch is the first one.
    First,
    /// Makes even terms.
    Second,
}

impl SwitchOfPair {
    /// `None`: all terms of this place are used up.
    fn term_after(self, term: Term) -> Option<Term> {
        let next = term.next()?;
        let is_odd = !next.0.is_multiple_of(2);
        if is_odd == (self == Self::First) {
            Some(next)
        } else {
            next.next()
        }
    }
}

/// A node whose flows are awaited.
#[derive(Debug, Default)]
struct Node {
    leased: BTreeSet<RunId>,
    done: BTreeSet<RunId>,
    /// The most runs that one of its processes has named; 0 before that.
    runs: u16,
    /// It had a lease, and has none.
    is_dead: bool,
}

impl Node {
    fn is_done(&self) -> bool {
        let is_complete = self.runs > 0 && self.done.len() >= usize::from(self.runs);
        self.is_dead || (is_complete && self.leased.is_subset(&self.done))
    }
}

/// The term of one switch.
#[derive(Debug)]
pub struct SwitchTerm {
    /// Its place in the pair.
    place: SwitchOfPair,
    /// The present term, or of a standby the last one.
    term: Term,
    /// The greatest term that was heard of.
    greatest: Term,
    phase: Phase,
    /// When it began to decide, and its term then.
    since_ns: u64,
    first: Term,
    /// How often the word of a node has counted alone since then.
    lone_words: BTreeMap<IpAddr, u8>,
    /// Nodes have told a greater term, and the next one is for that.
    is_behind: bool,
    nodes: BTreeMap<IpAddr, Node>,
    /// Addresses of the other host of a pair. In host mode it has a node.
    other_host: Vec<IpAddr>,
}

impl SwitchTerm {
    /// A standby, or a switch that starts. `stored` is the last term that this host has stored.
    #[must_use]
    pub fn standby(place: SwitchOfPair, stored: Term) -> Self {
        Self {
            place,
            term: stored,
            greatest: stored,
            phase: Phase::Standby,
            since_ns: 0,
            first: stored,
            lone_words: BTreeMap::new(),
            is_behind: false,
            nodes: BTreeMap::new(),
            other_host: Vec::new(),
        }
    }

    /// With the addresses of the other host of a pair. A new arbiter does not wait long for its
    /// node.
    #[must_use]
    pub fn beside(self, other_host: impl IntoIterator<Item = IpAddr>) -> Self {
        Self {
            other_host: other_host.into_iter().collect(),
            ..self
        }
    }

    /// An arbiter that knows all flows: its table has outlived its agent. `kept` is the table's
    /// term. A table of a release without terms has none, and gets one.
    #[must_use]
    pub fn settled(place: SwitchOfPair, stored: Term, kept: Term) -> Self {
        let term = match kept {
            Term::NONE => place.term_after(stored).unwrap_or(stored),
            kept => kept,
        };
        Self {
            term,
            greatest: stored.max(term),
            phase: Phase::Settled,
            ..Self::standby(place, stored)
        }
    }

    /// Becomes the arbiter, with a table that may lack flows. `nodes` are all that may own some.
    /// The caller stores the returned term before it uses it.
    pub fn begin(&mut self, nodes: impl IntoIterator<Item = IpAddr>, now_ns: u64) -> Term {
        let last = self.greatest.max(self.term);
        self.term = self.place.term_after(last).unwrap_or(last);
        self.greatest = self.term;
        self.phase = Phase::Young { since_ns: now_ns };
        if !std::mem::take(&mut self.is_behind) {
            (self.since_ns, self.first) = (now_ns, self.term);
            self.lone_words.clear();
        }
        let mut former = std::mem::take(&mut self.nodes);
        for address in nodes {
            let mut node = former.remove(&address).unwrap_or_default();
            node.done.clear();
            node.runs = 0;
            self.nodes.insert(address, node);
        }
        self.term
    }

    /// Another switch decides from now on.
    pub fn step_down(&mut self) {
        self.phase = Phase::Standby;
        // All leases end.
        self.nodes.values_mut().for_each(|node| node.leased.clear());
    }

    /// The nodes have told what they know of terms. An arbiter whose nodes know a greater term than
    /// its own has to [`Self::begin`] again, or to step down if another switch has taken over.
    /// Returns whether it has to.
    pub fn observe(&mut self, told: &KnownTerms, now_ns: u64) -> bool {
        let believed = told.believed().max(self.believed_alone(told, now_ns));
        self.greatest = self.greatest.max(believed);
        self.is_behind = self.is_arbiter() && self.greatest > self.term;
        self.is_behind
    }

    /// The greatest term that single nodes have told early in a young term.
    fn believed_alone(&mut self, told: &KnownTerms, now_ns: u64) -> Term {
        let is_early = now_ns.saturating_sub(self.since_ns) < YOUNG_NS;
        if !matches!(self.phase, Phase::Young { .. }) || !is_early {
            return Term::NONE;
        }
        let most = MOST_TOLD.min(Term(self.first.0.saturating_add(LONE_STEP)));
        let mut greatest = Term::NONE;
        for (node, term) in &told.known {
            if *term <= self.term || *term > most {
                continue;
            }
            let times = self.lone_words.entry(*node).or_default();
            if *times < LONE_WORDS {
                *times += 1;
                greatest = greatest.max(*term);
            }
        }
        greatest
    }

    /// No term is left after the present one: a table that begins now has the term of the table
    /// before it, and no node announces anything to it.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.place.term_after(self.term).is_none()
    }

    /// The way with a command that carries `stamp`.
    #[must_use]
    pub fn admit(&self, stamp: Term, ops: Ops) -> Admission {
        let is_query = ops == Ops::QUERY;
        let is_announced = ops.has(Ops::ANNOUNCE);
        match self.phase {
            Phase::Standby if is_announced => Admission::Merge,
            Phase::Standby => Admission::Silence,
            // Another switch has taken over.
            _ if stamp > self.term => Admission::Silence,
            _ if is_query => Admission::Judge,
            // An announcement to a former term may be late: its flow may be over since.
            Phase::Young { .. } if is_announced && stamp == self.term => Admission::Merge,
            Phase::Young { .. } => Admission::Refuse(Status::Young),
            // The answer to an earlier copy may be lost.
            Phase::Settled if is_announced => Admission::Compare,
            // A sender without terms is judged by epochs alone.
            Phase::Settled if stamp == self.term || stamp == Term::NONE => Admission::Judge,
            Phase::Settled => Admission::Refuse(Status::OldTerm),
        }
    }

    /// The present term.
    #[must_use]
    pub fn term(&self) -> Term {
        self.term
    }

    /// This switch decides, or will in this term.
    #[must_use]
    pub fn is_arbiter(&self) -> bool {
        !matches!(self.phase, Phase::Standby)
    }

    /// All flows of living nodes are known. Until then, packets of unknown flows and RSTs are
    /// dropped.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.phase, Phase::Settled)
    }

    /// The number of nodes whose flows are awaited.
    #[must_use]
    pub fn awaited(&self) -> usize {
        match self.phase {
            Phase::Young { .. } => self.nodes.values().filter(|node| !node.is_done()).count(),
            Phase::Standby | Phase::Settled => 0,
        }
    }

    /// The news for the runs' leases; none of a standby.
    #[must_use]
    pub fn notice(&self) -> Option<TermNotice> {
        let term = self.term;
        let is_settled = self.is_settled();
        self.is_arbiter().then_some(TermNotice { term, is_settled })
    }

    /// A run has got a lease. A standby grants none.
    pub fn lease_begins(&mut self, node: IpAddr, run: RunId) {
        let runs: usize = self.nodes.values().map(|node| node.leased.len()).sum();
        if self.is_arbiter()
            && runs < MAX_RUNS
            && let Some(node) = self.nodes.get_mut(&node)
        {
            node.leased.insert(run);
            node.is_dead = false;
        }
    }

    /// A run has died or left. Its flows end by its lease.
    pub fn lease_ends(&mut self, node: IpAddr, run: RunId) {
        if let Some(node) = self.nodes.get_mut(&node)
            && node.leased.remove(&run)
        {
            node.done.remove(&run);
            node.is_dead = node.leased.is_empty();
        }
    }

    /// A run with a lease has announced all its flows.
    pub fn run_is_done(&mut self, node: IpAddr, run: RunId, done: Done) {
        if let Some(node) = self.nodes.get_mut(&node)
            && done.term == self.term
            && node.leased.contains(&run)
        {
            node.done.insert(run);
            node.runs = node.runs.max(done.runs);
        }
    }

    /// The time when [`Self::handle_timeout`] settles the term at the latest.
    #[must_use]
    pub fn next_timeout_ns(&self) -> Option<u64> {
        match self.phase {
            Phase::Young { since_ns } => Some(since_ns.saturating_add(YOUNG_NS)),
            _ => None,
        }
    }

    /// Settles the term if all flows are known, or the time is over. Returns whether it has. The
    /// caller then ends each flow that nobody has announced in this term.
    pub fn handle_timeout(&mut self, now_ns: u64) -> bool {
        let Phase::Young { since_ns } = self.phase else {
            return false;
        };
        let young_ns = now_ns.saturating_sub(since_ns);
        let is_absent = |address: &IpAddr, node: &Node| {
            young_ns >= ABSENT_NS && node.leased.is_empty() && self.other_host.contains(address)
        };
        let mut nodes = self.nodes.iter();
        let is_known = nodes.all(|(address, node)| node.is_done() || is_absent(address, node));
        if young_ns < YOUNG_NS && !is_known {
            return false;
        }
        self.phase = Phase::Settled;
        true
    }
}

#[cfg(test)]
#[path = "term_tests.rs"]
mod tests;
