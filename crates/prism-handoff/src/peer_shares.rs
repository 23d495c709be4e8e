//! The share of this process that one peer may occupy, so that a peer in wrong hands leaves
//! descriptors and memory for the connections of all others.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use prism_proto::node::MAX_FRAME_BYTES;

/// The largest number of bytes of frames that have come in part, over all channels of a peer. Most
/// frames are below 1 MiB, and arrive within milliseconds.
const MAX_PART_BYTES: usize = 8 * MAX_FRAME_BYTES;
/// The least number of connections that a peer may open, however few clients this node takes.
const LEAST_CONNECTIONS: u64 = 1_024;

/// The shares of all peers.
#[derive(Debug, Default)]
pub(crate) struct PeerShares(Mutex<HashMap<String, Arc<PeerShare>>>);

/// The share of one peer.
#[derive(Debug, Default)]
pub(crate) struct PeerShare {
    /// Connections that it has opened.
    connections: AtomicUsize,
    /// Bytes of frames that have come in part.
    part_bytes: AtomicUsize,
}

/// A connection that a peer has opened, until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted(Arc<PeerShare>);

/// The bytes of a frame that has come in part on one channel, until it is dropped.
#[derive(Debug)]
pub(crate) struct PartBytes {
    share: Arc<PeerShare>,
    counted: usize,
}

impl PeerShares {
    fn of(&self, peer: &str) -> Arc<PeerShare> {
        let mut all = self.0.lock();
        // Only names of the configuration enter.
        all.entry(peer.to_owned()).or_default().clone()
    }

    /// Admits a connection of `peer` to a node that takes `clients`: half as many of each peer.
    /// `None`: the peer has as many.
    pub(crate) fn admit(&self, peer: &str, clients: u64) -> Option<Admitted> {
        let most = usize::try_from((clients / 2).max(LEAST_CONNECTIONS)).unwrap_or(usize::MAX);
        let share = self.of(peer);
        let count = &share.connections;
        let admitted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < most).then_some(count + 1)
        });
        admitted.ok().map(|_| Admitted(share))
    }

    /// The count for a new channel to `peer`.
    pub(crate) fn part_of(&self, peer: &str) -> PartBytes {
        let share = self.of(peer);
        PartBytes { share, counted: 0 }
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PartBytes {
    /// The frame has so many bytes now. False: the peer has begun too many.
    pub(crate) fn set(&mut self, bytes: usize) -> bool {
        let count = &self.share.part_bytes;
        let before = self.counted;
        if bytes == before {
            return true;
        }
        self.counted = bytes;
        let add = |count: usize| Some(count.saturating_sub(before).saturating_add(bytes));
        let counted = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        let all = counted.ok().and_then(add).unwrap_or(usize::MAX);
        bytes < before || all <= MAX_PART_BYTES
    }
}

impl Drop for PartBytes {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_peer_has_half_as_many_connections_as_clients_may_have() {
        let shares = PeerShares::default();
        let mut all: Vec<_> = (0..1500).map_while(|_| shares.admit("a", 2600)).collect();
        assert_eq!(all.len(), 1300);
        assert!(shares.admit("b", 2600).is_some());
        all.pop();
        assert!(shares.admit("a", 2600).is_some());
        // A lower limit applies to the next ones.
        assert!(shares.admit("a", 0).is_none());
        all.truncate(1000);
        assert!(shares.admit("a", 0).is_some());
    }

    #[test]
    fn all_frames_that_a_peer_has_begun_are_within_a_bound() {
        let shares = PeerShares::default();
        let mut parts: Vec<_> = (0..9).map(|_| shares.part_of("a")).collect();
        let (last, first) = parts.split_last_mut().unwrap();
        assert!(first.iter_mut().all(|part| part.set(MAX_FRAME_BYTES)));
        assert!(!last.set(1) && shares.part_of("b").set(1));
        // Frames that have ended leave room.
        assert!(first.first_mut().unwrap().set(10) && last.set(MAX_FRAME_BYTES - 10));
        drop(parts);
        assert_eq!(shares.of("a").part_bytes.load(Ordering::Relaxed), 0);
    }
}
