//! Which nodes place objects as most nodes do, by the digests that they send with their
//! requests for leases (docs/protocol.md, 1.7).
//!
//! A node that has died still counts: otherwise the deaths of others would put those with
//! the wrong file into the majority. A node that has left in order does not.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use prism_proto::lease::{NO_DIGEST, PlacementVerdict};

use crate::frontends::SETTLING;

/// Shortest time between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// The placements of all nodes that have said theirs.
#[derive(Debug)]
pub(super) struct Placements {
    started: Instant,
    said: HashMap<IpAddr, u64>,
    /// The verdicts are of all that has been said.
    is_judged: bool,
    /// The digest that more nodes have than any other; the outer `None` before the first
    /// judgement.
    most: Option<Option<u64>>,
    /// The warning about what was found last is due.
    is_news: bool,
    warned: Option<Instant>,
}

impl Placements {
    /// None yet, of an agent that has `started` then.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            said: HashMap::new(),
            is_judged: false,
            most: None,
            is_news: false,
            warned: None,
        }
    }

    /// A node has said the digest of its placement, now or again.
    pub(super) fn say(&mut self, node: IpAddr, digest: u64) {
        let before = match digest {
            NO_DIGEST => self.said.remove(&node),
            digest => self.said.insert(node, digest),
        };
        self.is_judged &= before.unwrap_or(NO_DIGEST) == digest;
    }

    /// Only these nodes count.
    pub(super) fn retain(&mut self, nodes: &HashSet<IpAddr>) {
        let before = self.said.len();
        self.said.retain(|node, _| nodes.contains(node));
        self.is_judged &= self.said.len() == before;
    }

    /// Compares what has been said, if that has changed and the agent has been there for
    /// [`SETTLING`]. True: verdicts may have changed.
    pub(super) fn judge(&mut self, now: Instant) -> bool {
        let is_settling = now.saturating_duration_since(self.started) < SETTLING;
        let before = self.most;
        if !is_settling && !self.is_judged {
            self.most = Some(most(&self.said));
            self.is_judged = true;
            self.is_news = true;
        }
        self.warn(now);
        self.most != before
    }

    /// The verdict on a placement; none yet, or where nothing is said about it.
    pub(super) fn verdict(&self, digest: u64) -> Option<PlacementVerdict> {
        let most = self.most.filter(|_| digest != NO_DIGEST)?;
        Some(match most == Some(digest) {
            true => PlacementVerdict::Agrees,
            false => PlacementVerdict::Differs,
        })
    }

    /// Whether the placement of a node is known not to be that of most nodes.
    pub(super) fn differs(&self, node: IpAddr) -> bool {
        let digest = self.said.get(&node).copied().unwrap_or(NO_DIGEST);
        self.verdict(digest) == Some(PlacementVerdict::Differs)
    }

    /// Logs who differs, once for each change and not more often than [`WARN_EVERY`].
    fn warn(&mut self, now: Instant) {
        let is_early = |at| now.saturating_duration_since(at) < WARN_EVERY;
        if !self.is_news || self.warned.is_some_and(is_early) {
            return;
        }
        self.is_news = false;
        let mut groups: BTreeMap<u64, Vec<IpAddr>> = BTreeMap::new();
        for (node, digest) in &self.said {
            groups.entry(*digest).or_default().push(*node);
        }
        if groups.len() < 2 {
            return;
        }
        self.warned = Some(now);
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        tracing::warn!(
            ?groups,
            "the configurations of these groups of nodes place objects differently; only the \
            largest serves, none in a tie. Compare the nodes' files"
        );
    }
}

/// The digest that more nodes have than any other. None in a tie.
fn most(said: &HashMap<IpAddr, u64>) -> Option<u64> {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for digest in said.values() {
        *counts.entry(*digest).or_default() += 1;
    }
    let (digest, count) = counts.iter().max_by_key(|(_, count)| **count)?;
    let equals = counts.values().filter(|other| *other == count).count();
    (equals == 1).then_some(*digest)
}
