//! Probes of peers: a handshake that a peer answers as long as its process runs.

use std::rc::Weak;
use std::time::{Duration, Instant};

use crate::endpoint::Shared;
use crate::node_tls::Purpose;
use crate::peers::{PeerError, Peers};

/// A wait for a peer that lasts this long starts a probe.
pub(crate) const DOUBT_AFTER: Duration = Duration::from_millis(500);
/// The interval of probes in the first 30 s. Requests fail until a probe is answered, so a peer
/// that starts again should be found at once.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(30);
/// The interval of later probes. With the last attempt of a dial (225 ms) it bounds the time to
/// find a peer again by half a second.
const PROBE_LATER: Duration = Duration::from_millis(250);

/// The peer that a relay stream was dialled to.
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) shared: Weak<Shared>,
}

impl Asked {
    /// Called when an answer takes long. Returns whether the peer is suspect.
    pub(crate) fn is_lost(&self) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        shared.peers.doubt(&self.name);
        shared.process.health.is_suspect(&self.name)
    }
}

impl Peers {
    /// Starts a probe of `name`, unless one is under way.
    pub(crate) fn doubt(&self, name: &str) {
        let Some(probe) = self.health.begin_probe(name, Instant::now()) else {
            return;
        };
        let shared = self.importer.clone();
        tokio::task::spawn_local(async move {
            let begun = Instant::now();
            while let Some(shared) = shared.upgrade() {
                match shared.peers.dial_anyway(&probe.name, Purpose::Relay).await {
                    Err(PeerError::Dial { .. }) => {}
                    Ok(secured) => {
                        let stream = shared.peers.relay_stream(&probe.name, secured);
                        return shared.peers.keep_relay(&probe.name, stream);
                    }
                    Err(PeerError::Unknown(_) | PeerError::HeldOff(_)) => return,
                }
                drop(shared);
                tokio::time::sleep(match begun.elapsed() < SOON {
                    true => PROBE_EVERY,
                    false => PROBE_LATER,
                })
                .await;
            }
        });
    }
}
