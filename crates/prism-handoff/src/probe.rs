//! Probes of peers: a handshake that a peer answers as long as its process runs.

use std::rc::Weak;
use std::time::{Duration, Instant};

use crate::endpoint::Shared;
use crate::node_tls::Purpose;
use crate::peers::{PeerError, Peers};

/// A wait for a peer that lasts so long has a probe made.
pub(crate) const DOUBT_AFTER: Duration = Duration::from_millis(500);
/// Between two probes of a peer that does not answer, for so long. Until one is answered
/// requests fail, so a peer that starts again is to be found at once.
const PROBE_EVERY: Duration = Duration::from_millis(100);
const SOON: Duration = Duration::from_secs(30);
/// Between the later ones. With the time after the last attempt of a dial (225 ms) this bounds
/// how long a peer is back before it is found: half a second.
const PROBE_LATER: Duration = Duration::from_millis(250);

/// The peer that a relay stream was dialled to.
pub(crate) struct Asked {
    pub(crate) name: String,
    pub(crate) shared: Weak<Shared>,
}

impl Asked {
    /// An answer takes long. Whether it is not to be waited for.
    pub(crate) fn is_lost(&self) -> bool {
        let Some(shared) = self.shared.upgrade() else {
            return false;
        };
        shared.peers.doubt(&self.name);
        shared.process.health.is_suspect(&self.name)
    }
}

impl Peers {
    /// Something takes long at `name`, or has failed: finds out whether it answers, unless
    /// that is being done.
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
