//! Probes of peers: a handshake that a peer answers as long as its process runs.

use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::node_tls::Purpose;
use crate::peers::{PeerError, Peers};

/// The interval of probes in the first 30 s. Requests fail until a probe is answered, so a peer
/// that starts again should be found at once.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(30);
/// The interval of later probes. With the last attempt of a dial (225 ms) it bounds the time to
/// find a peer again by half a second.
const PROBE_LATER: Duration = Duration::from_millis(250);

impl Peers {
    /// Starts a probe of `name`, unless one is under way.
    pub(crate) fn doubt(self: &Rc<Self>, name: &str) {
        let Some(probe) = self.health().begin_probe(name, Instant::now()) else {
            return;
        };
        let peers = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let begun = Instant::now();
            while let Some(peers) = peers.upgrade() {
                match peers.dial_anyway(&probe.name, Purpose::Relay).await {
                    Err(PeerError::Dial { .. }) => {}
                    Ok(secured) => {
                        let stream = peers.relay_stream(&probe.name, secured);
                        return peers.keep_relay(&probe.name, stream);
                    }
                    Err(PeerError::Unknown(_) | PeerError::HeldOff(_)) => return,
                }
                drop(peers);
                tokio::time::sleep(match begun.elapsed() < SOON {
                    true => PROBE_EVERY,
                    false => PROBE_LATER,
                })
                .await;
            }
        });
    }
}
