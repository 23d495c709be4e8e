//! The table of runs with a lease, and of runs whose lease has just ended.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;

use prism_proto::control::{RunId, Term};
use prism_proto::lease::{Done, NO_DIGEST, NewClients, TermNotice};

use super::placements::Placements;

/// Most connections of one node: two processes, each with 1,024 workers, each with two runs. So no
/// node can keep the others out.
pub(super) const MAX_NODE_CONNECTIONS: usize = 4_096;

/// A run of a node.
pub(super) type Run = (IpAddr, RunId);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// Without notice: its clients wait in vain.
    Died,
    /// In order: its kernel finishes the connections.
    Left,
}

/// The nodes that have a lease, or lost it within the grace.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    /// All nodes.
    pub(crate) nodes: HashSet<IpAddr>,
    /// The nodes that take new clients.
    pub(crate) taking: HashSet<IpAddr>,
    /// The nodes that have lost their last lease since the agent began to grant leases.
    pub(crate) lost: HashSet<IpAddr>,
}

/// The connections bound it: a run is forgotten when its end is reported.
#[derive(Debug)]
pub(super) struct LeaseTable {
    /// The connections of each node that has a lease.
    connections: HashMap<IpAddr, usize>,
    pub(super) leases: HashMap<Run, Lease>,
    pub(super) ending: HashMap<Run, Ending>,
    pub(super) returned: HashSet<Run>,
    /// The nodes that have had a lease since the start, or since this switch decides again.
    pub(super) heard: HashSet<IpAddr>,
    pub(super) has_news: bool,
    pub(super) placements: Placements,
    /// Number of leases so far.
    pub(super) begun: u64,
    /// Another switch grants leases.
    pub(super) is_closed: bool,
    /// The greatest term that each node knows, by its newest lease and what that has announced. A
    /// node that knows of none is not among them.
    pub(super) told: HashMap<IpAddr, Term>,
    /// Nodes know of a later term than this switch takes from them.
    pub(super) has_disbelieved: bool,
    /// Nodes whose flows are not known yet.
    pub(super) awaited: usize,
    /// The term, as the runs are to know it.
    pub(super) notice: Option<TermNotice>,
}

/// The digest of a placement that a run announced.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announced {
    /// Number of the run's last lease.
    pub(super) number: u64,
    pub(super) digest: u64,
}

#[derive(Debug, Default)]
pub(super) struct Lease {
    pub(super) connections: usize,
    pub(super) announced: Announced,
    /// When the run first said that it takes no more clients.
    pub(super) withdrawn: Option<Instant>,
    pub(super) answer: Option<NewClients>,
    /// The value of its newest connection.
    pub(super) speaks_of_terms: bool,
    /// The key of its newest connection.
    pub(super) key_id: u32,
    /// Its last message that it has announced all its flows.
    pub(super) done: Option<Done>,
}

#[derive(Debug)]
pub(super) struct Ending {
    pub(super) end: RunEnd,
    /// The run may return until then.
    pub(super) until: Instant,
    pub(super) announced: Announced,
    pub(super) withdrawn: Option<Instant>,
}

impl LeaseTable {
    /// The empty table of an agent that has just `started`.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            connections: HashMap::new(),
            leases: HashMap::new(),
            ending: HashMap::new(),
            returned: HashSet::new(),
            heard: HashSet::new(),
            has_news: false,
            placements: Placements::new(started),
            begun: 0,
            is_closed: false,
            told: HashMap::new(),
            has_disbelieved: false,
            awaited: 0,
            notice: None,
        }
    }

    /// A node has asked for a lease, and knows `term`.
    pub(super) fn note_told(&mut self, node: IpAddr, term: Option<Term>) {
        match term.filter(|term| *term > Term::NONE) {
            Some(term) => self.told.insert(node, term),
            None => self.told.remove(&node),
        };
    }

    /// Forgets what nodes have told that have no lease, and did not lose one within the grace.
    pub(super) fn forget_told(&mut self) {
        let runs = self.leases.keys().chain(self.ending.keys());
        let living: HashSet<IpAddr> = runs.map(|run| run.0).collect();
        self.told.retain(|node, _| living.contains(node));
    }

    /// Counts one more connection of a node. False: it has as many as it may have.
    pub(super) fn count_connection(&mut self, node: IpAddr) -> bool {
        let connections = self.connections.entry(node).or_default();
        let has_room = *connections < MAX_NODE_CONNECTIONS;
        *connections += usize::from(has_room);
        has_room
    }

    /// A counted connection of a node is over.
    pub(super) fn uncount_connection(&mut self, node: IpAddr) {
        if let Some(connections) = self.connections.get_mut(&node) {
            *connections -= 1;
            if *connections == 0 {
                self.connections.remove(&node);
            }
        }
    }

    /// Updates the digests of the nodes of these ended runs. A node gets the digest of its
    /// newest other run. Without one, a node that left gets none, and a node that died keeps
    /// its digest.
    pub(super) fn forget_digests(&mut self, ended: &[(Run, Ending)]) {
        if ended.is_empty() {
            return;
        }
        let leases = self.leases.iter().map(|(run, l)| (run.0, l.announced));
        let ending = self.ending.iter().map(|(run, e)| (run.0, e.announced));
        let mut newest: HashMap<IpAddr, Announced> = HashMap::new();
        for (node, announced) in leases.chain(ending) {
            let newest = newest.entry(node).or_default();
            if announced.number > newest.number {
                *newest = announced;
            }
        }
        for ((node, _), ending) in ended {
            match (newest.get(node), ending.end) {
                (Some(newest), _) => self.placements.set_digest(*node, newest.digest),
                (None, RunEnd::Left) => self.placements.set_digest(*node, NO_DIGEST),
                (None, RunEnd::Died) => {}
            }
        }
    }
}
