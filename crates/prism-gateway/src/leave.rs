//! The orderly end of a node, without cutting a client: it announces its end, has the cluster
//! go on without it, moves its connections to other nodes, and closes the remaining ones
//! between requests.
//!
//! One task of the process gives [`Orders`](prism_service::Orders) by the clock, and each worker
//! follows them.
//!
//! Not here: telling the peers and moving connections (`prism-handoff`), and how the cluster goes
//! on without a backend (`prism-membership`).

use std::time::Duration;

use prism_handoff::{Connection, Exported, Kept};
use prism_service::{Order, Service, Stage};
use tokio::sync::mpsc;

use crate::gateway::Gateway;

/// Time to close the connections that are left at the end of the drain.
pub const CLOSED_IN: Duration = Duration::from_millis(500);
/// Time in which the answers under way at the end of a take-over have to end. Nothing is answered
/// meanwhile if the node has a store.
pub const PASSED_IN: Duration = Duration::from_secs(2);
/// Connections of one worker that move at the same time: far fewer than a node can import at
/// once.
pub(crate) const MOVES_AT_ONCE: usize = 64;
/// Most nodes that one connection is offered to.
const MAX_OFFERS: usize = 3;

/// Each worker holds one, and drops its parts as it has done its part of leaving.
#[derive(Clone)]
pub struct Farewell {
    /// Held until peers know that the node leaves.
    pub(crate) told: mpsc::Sender<()>,
    /// Held until new clients go elsewhere, and the last ones have been accepted.
    pub(crate) accepts: mpsc::Sender<()>,
}

/// The receivers that close when all workers have dropped a part.
pub struct Farewells {
    /// Closes when all peers know that the node leaves.
    pub told: mpsc::Receiver<()>,
    /// Closes when new clients no longer arrive.
    pub accepts: mpsc::Receiver<()>,
}

/// A farewell for the workers to clone, and its receivers for the task that ends the node.
pub fn farewells() -> (Farewell, Farewells) {
    let ((told, all_told), (accepts, none_accepts)) = (mpsc::channel(1), mpsc::channel(1));
    let ends = Farewells {
        told: all_told,
        accepts: none_accepts,
    };
    (Farewell { told, accepts }, ends)
}

impl<S: Service> Gateway<S> {
    /// Follows orders until the last one. Drops the parts of `farewell` when they are done.
    pub async fn follow_orders(&self, farewell: &mut Option<Farewell>) {
        let mut orders = self.following.clone();
        loop {
            let order = *orders.borrow_and_update();
            let stage = order.stage;
            self.handle.pause_accepting(order.to_successor);
            if stage >= Stage::Leaving
                && let Some(Farewell { told, accepts }) = farewell.take()
            {
                let teller = self.handle.clone();
                let sender = self.handle.clone();
                tokio::task::spawn_local(async move {
                    teller.leave().await;
                    drop(told);
                });
                tokio::task::spawn_local(async move {
                    if !order.to_successor {
                        sender.send_clients_elsewhere().await;
                    }
                    drop(accepts);
                });
            }
            self.ordered.notify_waiters();
            if stage == Stage::Ending || orders.changed().await.is_err() {
                return self.handle.accept_no_more().await;
            }
        }
    }

    /// The number of orders that a connection which begins now counts as followed.
    pub(crate) fn told_moves(&self) -> u32 {
        let orders = *self.following.borrow();
        match orders.stage {
            Stage::Serving if !orders.to_successor => orders.moves,
            // A connection that arrives after the order has to move as well.
            _ => orders.moves.wrapping_sub(1),
        }
    }

    /// Resolves when a connection that waits for a request has to move or to end.
    pub(crate) async fn told_to_go(&self, told: u32) {
        let is_told = || self.is_ending() || self.following.borrow().moves != told;
        self.ordered_until(is_told).await;
    }

    /// Moves a connection that waits for its next request to another node, or to this node's
    /// successor. Returns it if none takes it.
    pub(crate) async fn move_away(&self, mut client: Connection) -> Option<Connection> {
        if self.following.borrow().to_successor {
            match self.handle.park(client) {
                Some(stays) if !stays.may_pass() => client = stays,
                parked => return parked,
            }
        }
        // Never an error, because the semaphore is not closed.
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

    /// Whether a connection that has to go is offered to other nodes. One that no node can take
    /// ends with this node.
    pub(crate) fn stays_or_moves(&self) -> bool {
        let Order {
            stage,
            to_successor,
            ..
        } = *self.following.borrow();
        let can_move = self.config().switch.is_some() && !self.successors().is_empty();
        stage == Stage::Serving || stage < Stage::Ending && (to_successor || can_move)
    }

    /// Other nodes that take connections: nodes in reach first, then nodes of the same role.
    fn successors(&self) -> Vec<String> {
        let shared = &self.shared;
        let others = (shared.neighbours)().into_iter();
        let mut others: Vec<_> = others
            .filter(|other| !shared.process.is_leaving(&other.name))
            .map(|other| (other.name, other.is_frontend == shared.is_frontend))
            .collect();
        fastrand::shuffle(&mut others);
        let now = std::time::Instant::now();
        let comes_last = |name: &str| shared.process.comes_last(name, now);
        others.sort_by_key(|(name, is_alike)| (comes_last(name), !is_alike));
        others.truncate(MAX_OFFERS);
        others.into_iter().map(|(name, _)| name).collect()
    }
}
