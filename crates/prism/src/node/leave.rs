//! The orderly end of a node, without cutting a client: it announces its end, has the cluster
//! go on without it, moves its connections to other nodes, and closes the remaining ones
//! between requests.
//!
//! One task of the process gives [`Orders`], by the clock; each worker follows them.
//! `prism-handoff` tells the peers and moves connections; `cluster` has the cluster go on
//! without a backend.

use std::time::Duration;

use prism_handoff::{Connection, Exported, Kept};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use super::{Node, Worker};

/// How often connections that are still here are told again to move.
const AGAIN: Duration = Duration::from_millis(250);
/// How often it is looked whether any are left.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Time to close the connections that are left at the end of the drain.
pub(super) const CLOSED_IN: Duration = Duration::from_millis(500);
/// Connections of one worker that move at the same time: far below what a node takes in
/// at once.
pub(super) const MOVES_AT_ONCE: usize = 64;
/// Nodes that one connection is offered to at a time.
const MAX_OFFERS: usize = 3;

/// How far a node has come towards its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stage {
    /// It serves.
    #[default]
    Serving,
    /// It takes no connection from another node, and moves those that it has.
    Leaving,
    /// Answers say that the connection ends.
    Closing,
    /// Connections that wait for a request are closed.
    Ending,
}

/// Orders to the workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    pub(crate) stage: Stage,
    /// Number of orders to move: a connection that has followed fewer is to move.
    pub(crate) moves: u32,
}

/// Has all present connections move to other nodes, each after its present answer.
pub(crate) fn move_all(node: &Node) {
    node.orders
        .send_modify(|orders| orders.moves = orders.moves.wrapping_add(1));
}

/// Each worker holds this until it has done its part of leaving.
#[derive(Clone)]
pub(super) struct Farewell {
    /// Until peers have heard that the node leaves.
    pub(super) told: mpsc::Sender<()>,
    /// Until new clients go elsewhere, and the last have been accepted.
    pub(super) accepts: mpsc::Sender<()>,
}

/// The ends of what all workers hold.
pub(super) struct Farewells {
    pub(super) told: mpsc::Receiver<()>,
    pub(super) accepts: mpsc::Receiver<()>,
}

pub(super) fn farewells() -> (Farewell, Farewells) {
    let ((told, all_told), (accepts, none_accepts)) = (mpsc::channel(1), mpsc::channel(1));
    let ends = Farewells {
        told: all_told,
        accepts: none_accepts,
    };
    (Farewell { told, accepts }, ends)
}

/// Ends a node, by the time that it has for that.
pub(super) async fn wind_down(node: &Node, mut farewells: Farewells) {
    let enter = |stage| node.orders.send_modify(|orders| orders.stage = stage);
    let (begun, limit) = (Instant::now(), node.config.limits.drain_timeout());
    enter(Stage::Leaving);
    let leaving = async {
        while farewells.told.recv().await.is_some() {}
        // A write that the cluster's steps meet has to be made again: these are finished
        // here, where their bodies are.
        let _ = tokio::time::timeout(limit / 4, node.pauses.present_ended()).await;
        // Half of the time is the clients'.
        node.cluster
            .leave((limit / 2).saturating_sub(begun.elapsed()))
            .await;
    };
    let _ = tokio::time::timeout(limit, leaving).await;
    let open = &node.process.counters.connections_open;
    let mut moved = None::<Instant>;
    let accepts = &farewells.accepts;
    // New clients are counted before their listener is closed.
    while (!accepts.is_closed() || open.read() > 0) && begun.elapsed() < limit {
        if moved.is_none_or(|moved| moved.elapsed() >= AGAIN) {
            moved = Some(Instant::now());
            move_all(node);
        }
        if begun.elapsed() >= limit / 4 * 3 {
            enter(Stage::Closing);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    if open.read() > 0 {
        tracing::warn!(
            connections = open.read(),
            "not all connections have moved in time"
        );
    }
    enter(Stage::Ending);
    // Each worker listens for orders until it ends, and answers others until then.
    let ended = tokio::time::timeout_at(begun + limit + 2 * CLOSED_IN, node.orders.closed());
    if ended.await.is_ok() {
        node.cluster.give_back_lease().await;
    }
}

impl Worker {
    /// Follows orders until the last. The parts of `farewell` are dropped when they are done.
    pub(super) async fn follow_orders(&self, farewell: &mut Option<Farewell>) {
        let mut orders = self.orders.clone();
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
    pub(super) fn told_moves(&self) -> u32 {
        let orders = *self.orders.borrow();
        match orders.stage {
            Stage::Serving => orders.moves,
            // A connection that arrives after the order has to move as well.
            _ => orders.moves.wrapping_sub(1),
        }
    }

    /// The order by which a connection is to move that has followed `told` orders.
    pub(super) fn is_to_move(&self, told: u32) -> Option<u32> {
        let moves = self.orders.borrow().moves;
        (moves != told).then_some(moves)
    }

    /// Resolves when a connection that waits for a request is to move, or to end.
    pub(super) async fn told_to_go(&self, told: u32) {
        let is_told = || self.is_ending() || self.is_to_move(told).is_some();
        self.idle.until(is_told).await;
    }

    /// Moves a connection that waits for its next request to another node. It stays where
    /// none takes it.
    pub(super) async fn move_away(&self, mut client: Connection) -> Option<Connection> {
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
    pub(super) fn stays_or_moves(&self) -> bool {
        let stage = self.orders.borrow().stage;
        let can_move = self.node.config.switch.is_some() && !self.successors().is_empty();
        stage == Stage::Serving || stage < Stage::Ending && can_move
    }

    /// Other nodes that take connections, those first that do what this one does.
    fn successors(&self) -> Vec<String> {
        let node = &self.node;
        let is_frontend = node.settings().is_ok_and(prism_config::Node::is_frontend);
        let directory = node.cluster.directory.borrow();
        let mut others: Vec<_> = directory
            .iter()
            .filter(|(name, _)| *name != node.name && !node.process.is_leaving(name))
            .map(|(name, host)| (name.to_owned(), host.is_frontend() == is_frontend))
            .collect();
        drop(directory);
        fastrand::shuffle(&mut others);
        let now = std::time::Instant::now();
        let comes_last = |name: &str| node.process.health.comes_last(name, now);
        others.sort_by_key(|(name, is_alike)| (comes_last(name), !is_alike));
        others.truncate(MAX_OFFERS);
        others.into_iter().map(|(name, _)| name).collect()
    }
}

/// The orders of a node that serves.
pub(super) fn first_orders() -> watch::Sender<Orders> {
    watch::Sender::new(Orders::default())
}
