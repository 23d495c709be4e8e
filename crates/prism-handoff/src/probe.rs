//! Probes of peers: a handshake that a peer answers as long as its process runs.

use std::rc::Weak;
use std::time::{Duration, Instant};

use crate::endpoint::Shared;
use crate::node_tls::Purpose;
use crate::peers::{PeerError, Peers};

/// A wait for a peer that lasts so long has a probe made.
pub(crate) const DOUBT_AFTER: Duration = Duration::from_millis(500);
/// Between two probes of a peer that does not answer, and how many are made so soon.
const PROBE_EVERY: Duration = Duration::from_millis(250);
const SOON: u32 = 40;
/// Between the later ones.
const PROBE_LATER: Duration = Duration::from_secs(1);

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
            let mut times = 0;
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
                times += 1;
                tokio::time::sleep(match times <= SOON {
                    true => PROBE_EVERY,
                    false => PROBE_LATER,
                })
                .await;
            }
        });
    }
}
