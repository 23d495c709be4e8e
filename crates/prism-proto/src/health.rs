//! The health of peers: one record for all workers of a process and all kinds of requests
//! (docs/design/relay.md). A request that waits long starts a probe: a handshake. A peer that
//! leaves probes unanswered is suspect, and gets no requests until it answers one.
//!
//! Not here: the probes (`prism-handoff`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// A wait for a peer that lasts this long starts a probe.
pub const DOUBT_AFTER: Duration = Duration::from_millis(500);
/// Handshakes in a row without an answer that make a peer suspect: one may get lost on a busy
/// host. A refusal counts at once.
const MAX_MISSES: u8 = 2;
/// Time after a handshake in which a peer is not probed again, however long its answers take.
const SURE_FOR: Duration = Duration::from_secs(2);
/// A peer that failed a request comes last for this time.
const AVOIDED_FOR: Duration = Duration::from_secs(2);

/// The state of all peers of the process.
#[derive(Debug, Default)]
pub struct Health(HashMap<String, PeerHealth>);

/// The state of one peer.
#[derive(Debug, Default)]
struct PeerHealth {
    state: State,
    /// The number of failed handshakes so far.
    missed: u64,
    /// The right to probe it, while a probe is under way.
    probe: Weak<()>,
    avoided_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Well { sure_until: Instant },
    Doubted { misses: u8 },
    Suspect,
}

impl Default for State {
    fn default() -> Self {
        Self::Doubted { misses: 0 }
    }
}

impl State {
    fn missed(self, error: io::ErrorKind) -> Self {
        let misses = match self {
            Self::Well { .. } => 1,
            Self::Doubted { misses } => misses + 1,
            Self::Suspect => return self,
        };
        if error == io::ErrorKind::TimedOut && misses < MAX_MISSES {
            Self::Doubted { misses }
        } else {
            Self::Suspect
        }
    }

    fn is_sure(self, now: Instant) -> bool {
        matches!(self, Self::Well { sure_until } if now < sure_until)
    }
}

impl Health {
    /// Whether `name` is suspect, and gets no requests.
    pub fn is_suspect(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|p| p.state == State::Suspect)
    }

    /// The number of failed handshakes with `name`. A connection from before one of them may be
    /// slow to recover: TCP doubles the time between its attempts.
    pub fn times_missed(&self, name: &str) -> u64 {
        self.0.get(name).map_or(0, |peer| peer.missed)
    }

    /// Whether others that could answer should be asked before `name`.
    pub fn comes_last(&self, name: &str, now: Instant) -> bool {
        self.0.get(name).is_some_and(|peer| {
            peer.state == State::Suspect || peer.avoided_until.is_some_and(|until| now < until)
        })
    }

    /// Notes that `name` failed a request: others are asked first for a while.
    pub fn avoid(&mut self, name: &str, now: Instant) {
        self.0.entry(name.to_owned()).or_default().avoided_until = Some(now + AVOIDED_FOR);
    }

    /// Notes a completed handshake with `name`. Returns whether it was suspect.
    pub fn reached(&mut self, name: &str, now: Instant) -> bool {
        let peer = self.0.entry(name.to_owned()).or_default();
        let sure_until = now + SURE_FOR;
        let before = std::mem::replace(&mut peer.state, State::Well { sure_until });
        before == State::Suspect
    }

    /// Notes a report that `name` lives again. The next request tests it, without waiting for a
    /// probe.
    pub fn lives(&mut self, name: &str) {
        if let Some(peer) = self.0.get_mut(name)
            && peer.state == State::Suspect
        {
            peer.state = State::default();
        }
    }

    /// Lets the next request to each suspect test it: this host may have been cut off itself.
    pub fn test_suspects(&mut self) {
        for peer in self.0.values_mut() {
            if peer.state == State::Suspect {
                peer.state = State::default();
            }
        }
    }

    /// Notes a failed handshake with `name`. Returns whether that makes it suspect.
    pub fn missed(&mut self, name: &str, error: io::ErrorKind) -> bool {
        let peer = self.0.entry(name.to_owned()).or_default();
        let before = peer.state;
        peer.state = before.missed(error);
        peer.missed += 1;
        before != State::Suspect && peer.state == State::Suspect
    }

    /// The right to probe `name`, until it is dropped; `None` if a probe is under way or would tell
    /// nothing new.
    pub fn begin_probe(&mut self, name: &str, now: Instant) -> Option<Arc<()>> {
        let peer = self.0.entry(name.to_owned()).or_default();
        if peer.probe.strong_count() > 0 || peer.state.is_sure(now) {
            return None;
        }
        let probe = Arc::default();
        peer.probe = Arc::downgrade(&probe);
        Some(probe)
    }

    /// Forgets all peers but these.
    pub fn keep(&mut self, names: &HashSet<&str>) {
        self.0.retain(|name, _| names.contains(name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind::{ConnectionRefused, TimedOut};

    use super::*;

    #[test]
    fn a_peer_is_suspect_after_two_timeouts_or_a_refusal_until_it_is_reached() {
        let (mut health, now) = (Health::default(), Instant::now());
        assert!(!health.is_suspect("a"));
        for round in 0..3 {
            assert!(!health.missed("a", TimedOut) && !health.is_suspect("a"));
            assert!(health.missed("a", TimedOut) && health.is_suspect("a"));
            // The change is reported once.
            assert!(!health.missed("a", TimedOut) && health.is_suspect("a"));
            assert!(health.comes_last("a", now) && !health.comes_last("b", now));
            assert!(health.reached("a", now) && !health.is_suspect("a"));
            assert!(!health.reached("a", now), "{round}");
        }
        assert!(health.missed("b", ConnectionRefused) && health.is_suspect("b"));
        assert_eq!((health.times_missed("a"), health.times_missed("b")), (9, 1));
        // After a report that the peer is back, the next request tests it.
        health.lives("b");
        assert!(!health.is_suspect("b"));
        assert!(health.missed("b", ConnectionRefused) && health.is_suspect("b"));
        health.test_suspects();
        assert!(!health.is_suspect("b"));
        // A timeout before an answer does not count later.
        assert!(!health.missed("c", TimedOut));
        health.reached("c", now);
        assert!(!health.missed("c", TimedOut) && !health.is_suspect("c"));
    }

    #[test]
    fn one_probes_and_not_what_has_just_answered() {
        let (mut health, now) = (Health::default(), Instant::now());
        let probe = health.begin_probe("a", now);
        assert!(probe.is_some() && health.begin_probe("a", now).is_none());
        assert!(health.begin_probe("b", now).is_some());
        // After its end another wait begins another probe.
        drop(probe);
        let again = health.begin_probe("a", now);
        assert!(again.is_some());
        health.reached("a", now);
        drop(again);
        assert!(health.begin_probe("a", now).is_none());
        assert!(health.begin_probe("a", now + SURE_FOR).is_some());
        health.missed("a", ConnectionRefused);
        assert!(health.begin_probe("a", now).is_some());
    }

    #[test]
    fn a_peer_that_failed_comes_last_for_a_while_and_one_that_is_gone_is_forgotten() {
        let (mut health, now) = (Health::default(), Instant::now());
        health.avoid("a", now);
        assert!(health.comes_last("a", now) && !health.is_suspect("a"));
        assert!(!health.comes_last("a", now + AVOIDED_FOR));
        health.missed("b", ConnectionRefused);
        health.keep(&HashSet::from(["a"]));
        assert!(!health.is_suspect("b"));
    }
}
