//! The orderly end of a node, without cutting a client: it announces its end, has the cluster
//! go on without it, moves its connections to other nodes, and closes the remaining ones
//! between requests.
//!
//! One task of the process gives [`Orders`], by the clock; each worker follows them.
//! `prism-handoff` tells the peers and moves connections; `cluster` has the cluster go on
//! without a backend.

use std::time::Duration;

use prism_handoff::{Connection, Exported, Kept};
use prism_service::{Service, Stage};
use tokio::sync::mpsc;

use crate::gateway::Gateway;

/// Time to close the connections that are left at the end of the drain.
pub const CLOSED_IN: Duration = Duration::from_millis(500);
/// Connections of one worker that move at the same time: far below what a node takes in
/// at once.
pub(crate) const MOVES_AT_ONCE: usize = 64;
/// Nodes that one connection is offered to at a time.
const MAX_OFFERS: usize = 3;

/// Each worker holds this until it has done its part of leaving.
#[derive(Clone)]
pub struct Farewell {
    /// Until peers have heard that the node leaves.
    pub(crate) told: mpsc::Sender<()>,
    /// Until new clients go elsewhere, and the last have been accepted.
    pub(crate) accepts: mpsc::Sender<()>,
}

/// The ends of what all workers hold.
pub struct Farewells {
    /// Ends when all peers have heard that the node leaves.
    pub told: mpsc::Receiver<()>,
    /// Ends when no new clients come any more.
    pub accepts: mpsc::Receiver<()>,
}

/// What each thread holds, and what the task that ends the node waits for.
#[must_use]
pub fn farewells() -> (Farewell, Farewells) {
    let ((told, all_told), (accepts, none_accepts)) = (mpsc::channel(1), mpsc::channel(1));
    let ends = Farewells {
        told: all_told,
        accepts: none_accepts,
    };
    (Farewell { told, accepts }, ends)
}

impl<S: Service> Gateway<S> {
    /// Follows orders until the last. The parts of `farewell` are dropped when they are done.
    pub async fn follow_orders(&self, farewell: &mut Option<Farewell>) {
        let mut orders = self.following.clone();
        loop {
            let stage = orders.borrow_and_update().stage;
            if stage >= Stage::Leaving
                && let Some(Farewell { told, accepts }) = farewell.take()
            {
                let (teller, sender) = (self.handle.clone(), self.handle.clone());
                tokio::task::spawn_local(async move {
                    teller.leave().await;
                    drop(told);
                });
                tokio::task::spawn_local(async move {
                    sender.send_clients_elsewhere().await;
                    drop(accepts);
                });
            }
            self.idle.wake();
            if stage == Stage::Ending || orders.changed().await.is_err() {
                return self.handle.accept_no_more().await;
            }
        }
    }

    /// The number of orders that a connection which begins now counts as followed.
    pub(crate) fn told_moves(&self) -> u32 {
        let orders = *self.following.borrow();
        match orders.stage {
            Stage::Serving => orders.moves,
            // A connection that arrives after the order has to move as well.
            _ => orders.moves.wrapping_sub(1),
        }
    }

    /// The order by which a connection is to move that has followed `told` orders.
    pub(crate) fn is_to_move(&self, told: u32) -> Option<u32> {
        let moves = self.following.borrow().moves;
        (moves != told).then_some(moves)
    }

    /// Resolves when a connection that waits for a request is to move, or to end.
    pub(crate) async fn told_to_go(&self, told: u32) {
        let is_told = || self.is_ending() || self.is_to_move(told).is_some();
        self.idle.until(is_told).await;
    }

    /// Moves a connection that waits for its next request to another node. It stays where
    /// none takes it.
    pub(crate) async fn move_away(&self, mut client: Connection) -> Option<Connection> {
        // It does not end: nobody closes it.
        let _turn = self.moving.acquire().await;
        for peer in self.successors() {
            match self.handle.pass_over(client, &peer).await {
                Exported::Moved | Exported::Lost | Exported::Unknown => return None,
                Exported::Kept { connection, reason } => {
                    tracing::debug!(client = %connection.client(), peer, ?reason, "not moved");
                    client = connection;
                    if !matches!(reason, Kept::TargetRefused(_) | Kept::TargetSilent) {
                        break;
                    }
                }
            }
        }
        Some(client)
    }

    /// Whether a connection that is told to go is worth an offer; one that nobody can take
    /// ends with the node.
    pub(crate) fn stays_or_moves(&self) -> bool {
        let stage = self.following.borrow().stage;
        let can_move = self.shared.config().switch.is_some() && !self.successors().is_empty();
        stage == Stage::Serving || stage < Stage::Ending && can_move
    }

    /// Other nodes that take connections, those first that do what this one does.
    fn successors(&self) -> Vec<String> {
        let shared = &self.shared;
        let others = (shared.neighbours)().into_iter();
        let mut others: Vec<_> = others
            .filter(|other| !shared.process.is_leaving(&other.name))
            .map(|other| (other.name, other.is_frontend == shared.is_frontend))
            .collect();
        fastrand::shuffle(&mut others);
        let now = std::time::Instant::now();
        let comes_last = |name: &str| shared.process.health.comes_last(name, now);
        others.sort_by_key(|(name, is_alike)| (comes_last(name), !is_alike));
        others.truncate(MAX_OFFERS);
        others.into_iter().map(|(name, _)| name).collect()
    }
}
