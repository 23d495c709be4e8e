//! A node that leaves without ending connections: a leaving worker tells all peers, and takes no
//! more connections.
//!
//! Not here: moving the connections, which is a hand-off like any other.

use std::time::Duration;

use prism_proto::lease::NewClients;
use tokio::task::JoinSet;

use crate::connection::Connection;
use crate::export::Exported;
use crate::handle::Handle;
use crate::lifecycle::WorkerPhase;

/// The time limit for telling the peers. A peer out of reach hands nothing over anyway.
const HEARD_IN: Duration = Duration::from_secs(1);

/// The time limit for the agent's answer that new clients go elsewhere. The agent takes 2 s if it
/// has just started or changed the lists. The other 2 s are for a lease that broke meanwhile, or a
/// busy host.
const ELSEWHERE_IN: Duration = Duration::from_secs(4);

/// The time that listeners stay open after new clients go elsewhere. A closed listener would answer
/// the last segment of a handshake with a RST. The time covers a round trip of 1 s, or a lost last
/// segment, which the client's first data repeats. The switch finds such connections for 2 s.
const HANDSHAKES_END_IN: Duration = Duration::from_secs(1);

/// The interval of looks whether all imports have ended.
const IMPORTED_IN: Duration = Duration::from_millis(5);

impl Handle {
    /// Refuses connections from peers from now on, and finishes the imports under way. Tells all
    /// peers, and waits a bounded time for their answers. New clients are accepted as before.
    pub async fn leave(&self) {
        self.lifecycle.enter(WorkerPhase::Leaving);
        let mut telling = JoinSet::new();
        for name in self.peers.names() {
            let peers = self.peers.clone();
            telling.spawn_local(async move {
                match peers.channel(&name).await {
                    Ok(channel) => channel.announce_leaving().await,
                    Err(error) => tracing::debug!(%error, "a peer is not told of this node's end"),
                }
            });
        }
        let all_heard = async { while telling.join_next().await.is_some() {} };
        if tokio::time::timeout(HEARD_IN, all_heard).await.is_err() {
            tracing::info!("not all peers have heard that this node leaves");
        }
        // Each import ends by its own deadlines.
        while self.lifecycle.importing.get() > 0 {
            tokio::time::sleep(IMPORTED_IN).await;
        }
    }

    /// Whether the switch sends new clients here. Clients that come nevertheless are accepted: if
    /// no other frontend takes them, the switch sends them here as before.
    pub fn take_new_clients(&self, takes: bool) {
        if self.announces_intake() {
            self.intake.set(takes);
        }
    }

    /// Has the switch send new clients to other frontends, and closes the listeners when handshakes
    /// under way have ended. Clients that come before that are accepted. The listeners close at
    /// once if no other frontend takes clients, or if the switch's agent does not answer within 4
    /// s.
    pub async fn send_clients_elsewhere(&self) {
        if self.announces_intake() {
            match tokio::time::timeout(ELSEWHERE_IN, self.intake.end()).await {
                Ok(NewClients::GoElsewhere) => tokio::time::sleep(HANDSHAKES_END_IN).await,
                Ok(NewClients::HaveNobodyElse) => {
                    tracing::info!("no other frontend takes new clients");
                }
                Err(_) => tracing::warn!(
                    "the switch's agent does not say that new clients go \
                    to other frontends; they are refused from now on"
                ),
            }
        }
        self.accept_no_more().await;
    }

    /// Accepts the clients that are connected already and no others, and waits until the listeners
    /// are closed.
    pub async fn accept_no_more(&self) {
        self.lifecycle.enter(WorkerPhase::Deaf);
        let mut listeners = self.lifecycle.listeners.subscribe();
        let _ = listeners.wait_for(|open| *open == 0).await;
    }

    /// Hands over a connection between two requests; the next request may have arrived in part. If
    /// it was accepted here, it counts as accepted by `peer` from then on.
    pub async fn pass_over(&self, mut connection: Connection, peer: &str) -> Exported {
        let own = &self.worker.config.name;
        let is_own = connection.state.origin == *own;
        if is_own {
            peer.clone_into(&mut connection.state.origin);
        }
        match self.export(connection, peer, &[]).await {
            Exported::Kept {
                mut connection,
                reason,
            } => {
                if is_own {
                    own.clone_into(&mut connection.state.origin);
                }
                Exported::Kept { connection, reason }
            }
            exported => exported,
        }
    }

    /// Whether the switch's agent hears of new clients from this worker.
    fn announces_intake(&self) -> bool {
        self.worker.control.is_some() && self.worker.config.listen
    }
}
