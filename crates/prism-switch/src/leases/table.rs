//! The table of the runs that hold leases, or held one until just now.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use prism_proto::control::RunId;
use prism_proto::lease::{NO_DIGEST, NewClients};

use super::RunEnd;
use super::placements::Placements;

/// A run of a node.
pub(super) type Run = (IpAddr, RunId);

/// Bounded by the connections: a run is forgotten when its end is told.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) held: HashMap<Run, Held>,
    pub(super) ending: HashMap<Run, Ending>,
    pub(super) returned: HashSet<Run>,
    pub(super) has_news: bool,
    pub(super) placements: Placements,
    /// Leases that have begun.
    pub(super) begun: u64,
}

/// The digest of a placement, and the number of the lease that it came with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Said {
    pub(super) number: u64,
    pub(super) digest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Held {
    pub(super) connections: usize,
    pub(super) said: Said,
    /// When it first said that it takes no more clients.
    pub(super) withdrawn: Option<Instant>,
    pub(super) answer: Option<NewClients>,
}

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) end: RunEnd,
    /// Until then the run may come back.
    pub(super) until: Instant,
    pub(super) said: Said,
    pub(super) withdrawn: Option<Instant>,
}

impl Table {
    /// Empty, of an agent that has `started` then.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            held: HashMap::new(),
            ending: HashMap::new(),
            returned: HashSet::new(),
            has_news: false,
            placements: Placements::new(started),
            begun: 0,
        }
    }

    /// Notes the digests of nodes of which these runs have ended. The newest other run of a
    /// node speaks for it. Without one, a node that left says nothing, and a node that died
    /// keeps its last digest.
    pub(super) fn say_again(&mut self, ended: &[(Run, Ending)]) {
        if ended.is_empty() {
            return;
        }
        let held = self.held.iter().map(|(run, h)| (run.0, h.said));
        let ending = self.ending.iter().map(|(run, e)| (run.0, e.said));
        let mut newest: HashMap<IpAddr, Said> = HashMap::new();
        for (node, said) in held.chain(ending) {
            let newest = newest.entry(node).or_default();
            if said.number > newest.number {
                *newest = said;
            }
        }
        for ((node, _), ending) in ended {
            match (newest.get(node), ending.end) {
                (Some(said), _) => self.placements.say(*node, said.digest),
                (None, RunEnd::Left) => self.placements.say(*node, NO_DIGEST),
                (None, RunEnd::Died) => {}
            }
        }
    }
}
