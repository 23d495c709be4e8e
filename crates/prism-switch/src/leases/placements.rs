//! The placements of nodes: a node whose placement is not that of most nodes gets no new
//! clients. Nodes send digests of their placement with their requests for leases
//! (docs/protocol.md, 1.7).
//!
//! Each node has one vote, the digest of its newest lease. In a tie nobody is refused: one node
//! alone, whose key may be in wrong hands, could otherwise make a tie of a majority.
//!
//! A node that has died still counts. Otherwise deaths could put nodes with a wrong file into
//! the majority. A node that has left in order does not count.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use prism_proto::lease::{NO_DIGEST, PlacementVerdict};

/// The time for which an agent that has started waits for leases. A node without one asks at
/// least once a second.
pub(crate) const SETTLING: Duration = Duration::from_secs(2);
/// Shortest time between two warnings.
const WARN_EVERY: Duration = Duration::from_secs(5);

/// The placements of all nodes that have announced theirs.
#[derive(Debug)]
pub(super) struct Placements {
    started: Instant,
    digests: HashMap<IpAddr, u64>,
    /// The verdicts take all digests into account.
    is_judged: bool,
    /// `None` before the first judgement.
    judgement: Option<Judgement>,
    /// The warning about the last judgement is due.
    is_news: bool,
    warned: Option<Instant>,
}

impl Placements {
    /// No placements, for an agent that has just `started`.
    pub(super) fn new(started: Instant) -> Self {
        Self {
            started,
            digests: HashMap::new(),
            is_judged: false,
            judgement: None,
            is_news: false,
            warned: None,
        }
    }

    /// Sets the digest of a node's placement.
    pub(super) fn set_digest(&mut self, node: IpAddr, digest: u64) {
        let before = match digest {
            NO_DIGEST => self.digests.remove(&node),
            digest => self.digests.insert(node, digest),
        };
        self.is_judged &= before.unwrap_or(NO_DIGEST) == digest;
    }

    /// Forgets all other nodes.
    pub(super) fn retain(&mut self, nodes: &HashSet<IpAddr>) {
        let before = self.digests.len();
        self.digests.retain(|node, _| nodes.contains(node));
        self.is_judged &= self.digests.len() == before;
    }

    /// Compares the digests, if they have changed and the agent has run for [`SETTLING`].
    /// Returns whether verdicts may have changed.
    pub(super) fn judge(&mut self, now: Instant) -> bool {
        let is_settling = now.saturating_duration_since(self.started) < SETTLING;
        let before = self.judgement;
        if !is_settling && !self.is_judged {
            self.judgement = Some(Judgement::of(&self.digests));
            self.is_judged = true;
            self.is_news = true;
        }
        self.warn(now);
        self.judgement != before
    }

    /// The verdict on a placement. `None` before the first judgement, and for no digest.
    pub(super) fn verdict(&self, digest: u64) -> Option<PlacementVerdict> {
        let judgement = self.judgement.filter(|_| digest != NO_DIGEST)?;
        Some(match judgement {
            Judgement::Most(most) if most != digest => PlacementVerdict::Differs,
            Judgement::Most(_) | Judgement::Tie | Judgement::Nobody => PlacementVerdict::Agrees,
        })
    }

    /// No digest is that of most nodes, because as many have another one.
    pub(super) fn is_tie(&self) -> bool {
        self.judgement == Some(Judgement::Tie)
    }

    /// Whether a node places objects otherwise than most nodes. False if that is unknown.
    pub(super) fn differs(&self, node: IpAddr) -> bool {
        let digest = self.digests.get(&node).copied().unwrap_or(NO_DIGEST);
        self.verdict(digest) == Some(PlacementVerdict::Differs)
    }

    /// Logs nodes that differ, once for each change but not more often than [`WARN_EVERY`].
    fn warn(&mut self, now: Instant) {
        let is_early = |at| now.saturating_duration_since(at) < WARN_EVERY;
        if !self.is_news || self.warned.is_some_and(is_early) {
            return;
        }
        self.is_news = false;
        let mut groups: BTreeMap<u64, Vec<IpAddr>> = BTreeMap::new();
        for (node, digest) in &self.digests {
            groups.entry(*digest).or_default().push(*node);
        }
        if groups.len() < 2 {
            return;
        }
        self.warned = Some(now);
        let mut groups: Vec<_> = groups.into_values().collect();
        groups.iter_mut().for_each(|group| group.sort_unstable());
        groups.sort_by_key(|group| std::cmp::Reverse(group.len()));
        if self.is_tie() {
            tracing::warn!(
                ?groups,
                "the configurations of these groups of nodes place objects differently. The \
                largest groups are of one size, so all nodes serve. Compare the nodes' files"
            );
        } else {
            tracing::warn!(
                ?groups,
                "the configurations of these groups of nodes place objects differently; only the \
                largest serves. Compare the nodes' files"
            );
        }
    }
}

/// The comparison of all digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// More nodes have this digest than any other.
    Most(u64),
    Tie,
    /// No node has one.
    Nobody,
}

impl Judgement {
    fn of(digests: &HashMap<IpAddr, u64>) -> Self {
        let mut counts: HashMap<u64, usize> = HashMap::new();
        for digest in digests.values() {
            *counts.entry(*digest).or_default() += 1;
        }
        let Some((digest, count)) = counts.iter().max_by_key(|(_, count)| **count) else {
            return Self::Nobody;
        };
        let equals = counts.values().filter(|other| *other == count).count();
        if equals == 1 {
            Self::Most(*digest)
        } else {
            Self::Tie
        }
    }
}
