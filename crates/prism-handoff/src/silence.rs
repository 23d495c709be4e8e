//! Tells whether the peer of a relay stream is dead, or just does not read (docs/design/relay.md):
//! by the time since the last segment, and the number of unanswered retransmissions or probes.
//! Keepalive covers a connection without unacknowledged bytes.

use std::time::Duration;

use prism_sys::tcp::TcpInfo;
use tokio::time::Instant;

/// A peer that answers nothing for this time is dead.
pub(crate) const MAX_SILENCE: Duration = Duration::from_secs(5);
/// The interval of looks at a stream that waits.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The number of unanswered retransmissions or probes that count as silence: one may get lost.
const MIN_UNANSWERED: u8 = 2;

/// The result of one look at the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// All sent bytes are acknowledged.
    Nothing,
    /// Some bytes wait for an acknowledgement or for a window.
    Waiting,
    Dead,
}

/// The time since which the peer has answered nothing.
#[derive(Debug, Default)]
pub(crate) struct Silence(Option<Instant>);

impl Silence {
    /// Judges by the kernel's figures at `now`, in a wait that began at `begun`.
    pub(crate) fn look(&mut self, begun: Instant, now: Instant, info: &TcpInfo) -> PeerState {
        let is_probing = info.unanswered_probes > 0;
        if info.unacked_segments == 0 && !is_probing {
            self.0 = None;
            return match info.unsent_bytes {
                0 => PeerState::Nothing,
                _ => PeerState::Waiting,
            };
        }
        let silent = now.saturating_duration_since(self.0.unwrap_or(begun));
        let silent = silent.min(Duration::from_millis(info.heard_ms.into()));
        self.0 = now.checked_sub(silent);
        let unanswered = info.unanswered_timeouts.max(info.unanswered_probes);
        if silent >= MAX_SILENCE && unanswered >= MIN_UNANSWERED {
            PeerState::Dead
        } else {
            PeerState::Waiting
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    use super::*;

    /// The kernel's figures of an idle connection.
    fn quiet() -> TcpInfo {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        TcpInfo {
            unacked_segments: 0,
            ..TcpInfo::read(stream.as_fd()).unwrap()
        }
    }

    /// Looks once a second, and returns the second in which the peer is found dead.
    fn dead_after(seconds: u32, said: impl Fn(u32) -> TcpInfo) -> Option<u32> {
        let (mut silence, begun) = (Silence::default(), Instant::now());
        let mut each = 1..=seconds;
        each.find(|n| {
            let now = begun + *n * LOOK_EVERY;
            silence.look(begun, now, &said(*n)) == PeerState::Dead
        })
    }

    #[test]
    fn a_peer_that_acknowledges_nothing_is_dead_after_five_seconds() {
        let after = dead_after(60, |second| TcpInfo {
            unacked_segments: 3,
            unanswered_timeouts: u8::try_from(second).unwrap().min(4),
            // Nothing was sent for a minute before.
            heard_ms: 60_000 + second * 1000,
            ..quiet()
        });
        assert_eq!(after, Some(5));
        let behind_a_closed_window = dead_after(60, |second| TcpInfo {
            unsent_bytes: 1000,
            unanswered_probes: u8::try_from(second).unwrap().min(3),
            heard_ms: second * 1000,
            ..quiet()
        });
        assert_eq!(behind_a_closed_window, Some(5));
    }

    #[test]
    fn a_peer_that_answers_probes_is_alive_however_long_it_does_not_read() {
        let after = dead_after(600, |second| TcpInfo {
            unsent_bytes: 1000,
            // Probes become rare, and now and then one is under way or lost.
            unanswered_probes: u8::from(second % 20 == 0),
            heard_ms: (second % 25) * 1000,
            ..quiet()
        });
        assert_eq!(after, None);
    }

    #[test]
    fn one_lost_segment_behind_a_rest_is_no_silence() {
        let after = dead_after(60, |second| TcpInfo {
            unacked_segments: u32::from(second < 4),
            unanswered_timeouts: if second < 4 { 3 } else { 0 },
            heard_ms: if second < 4 { 90_000 } else { 0 },
            ..quiet()
        });
        assert_eq!(after, None);
        let (mut silence, now) = (Silence::default(), Instant::now());
        assert_eq!(silence.look(now, now, &quiet()), PeerState::Nothing);
        let unread = TcpInfo {
            unsent_bytes: 1,
            ..quiet()
        };
        assert_eq!(silence.look(now, now, &unread), PeerState::Waiting);
    }
}
