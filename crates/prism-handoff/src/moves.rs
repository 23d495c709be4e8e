//! The connections that have moved from this process to others: how many to each peer, and the
//! last ones. Every hand-off is counted, so this is cheap and bounded.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::SystemTime;

use parking_lot::Mutex;

/// The number of last moves that are known.
const LAST: usize = 64;

/// A connection that has moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The number of this move since the process began, from 1.
    pub number: u64,
    /// The time when the peer had taken it.
    pub at: SystemTime,
    /// The client.
    pub client: SocketAddr,
    /// The peer that has it.
    pub to: String,
}

/// The moves of one process.
#[derive(Debug, Default)]
pub struct Moves(Mutex<Moved>);

#[derive(Debug, Default)]
struct Moved {
    count: u64,
    by_peer: BTreeMap<String, u64>,
    last: VecDeque<Move>,
}

impl Moves {
    /// The number of connections that have moved to each peer.
    pub fn by_peer(&self) -> BTreeMap<String, u64> {
        self.0.lock().by_peer.clone()
    }

    /// The last moves, at most 64, the oldest first.
    pub fn last(&self) -> Vec<Move> {
        self.0.lock().last.iter().cloned().collect()
    }

    pub(crate) fn add(&self, client: SocketAddr, to: &str) {
        let at = SystemTime::now();
        let moved = &mut *self.0.lock();
        moved.count += 1;
        match moved.by_peer.get_mut(to) {
            Some(count) => *count += 1,
            None => drop(moved.by_peer.insert(to.to_owned(), 1)),
        }
        let oldest = (moved.last.len() >= LAST)
            .then(|| moved.last.pop_front())
            .flatten();
        // The oldest name has room for the new one.
        let mut name = oldest.map(|oldest| oldest.to).unwrap_or_default();
        name.clear();
        name.push_str(to);
        moved.last.push_back(Move {
            number: moved.count,
            at,
            client,
            to: name,
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_last_moves_are_known_and_all_are_counted() {
        let moves = Moves::default();
        for port in 1..=100 {
            let to = if port % 4 == 0 { "b" } else { "a" };
            moves.add(SocketAddr::from(([10, 0, 0, 1], port)), to);
        }
        let last = moves.last();
        assert_eq!(last.len(), LAST);
        let numbers = last.iter().map(|moved| moved.number);
        assert!(numbers.eq(37..=100));
        let newest = last.last().unwrap();
        assert_eq!((newest.client.port(), newest.to.as_str()), (100, "b"));
        let by_peer = moves.by_peer();
        assert_eq!((by_peer.get("a"), by_peer.get("b")), (Some(&75), Some(&25)));
    }
}
