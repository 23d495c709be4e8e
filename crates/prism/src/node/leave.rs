//! The orderly end of a node, without cutting a client: it announces its end, has the cluster
//! go on without it, moves its connections to other nodes, and closes the remaining ones
//! between requests.
//!
//! One task of the process gives the orders by the clock. Each thread follows them
//! (`prism-gateway`).

use std::time::Duration;

use prism_config::seconds;
use prism_gateway::{CLOSED_IN, Farewells};
use prism_service::Stage;
use tokio::time::Instant;

use super::server::Server;

/// Time between two orders to move to the remaining connections.
const MOVE_EVERY: Duration = Duration::from_millis(250);
/// Time between two looks at the remaining connections.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Ends a node within its drain time.
pub(super) async fn wind_down(server: &Server, mut farewells: Farewells) {
    let node = &server.core;
    let begun = Instant::now();
    let limit = seconds(node.config.now().limits.drain_timeout_s);
    node.orders.enter(Stage::Leaving);
    let leaving = async {
        while farewells.told.recv().await.is_some() {}
        // A client has to repeat a write that meets the cluster's step, so the present writes end
        // first.
        let _ = tokio::time::timeout(limit / 4, server.service.changes_ended()).await;
        // The other half of the time is for the clients.
        let left = (limit / 2).saturating_sub(begun.elapsed());
        node.cluster.leave(&node.name, left).await;
    };
    let _ = tokio::time::timeout(limit, leaving).await;
    let open = &node.process.counters.connections_open;
    let mut moved = None::<Instant>;
    let accepts = &farewells.accepts;
    let parking = &node.process.parking;
    let is_over = || accepts.is_closed() && open.read() == 0 && !parking.has_arrivals();
    // New clients are counted before their listener is closed.
    while !is_over() && begun.elapsed() < limit {
        if moved.is_none_or(|moved| moved.elapsed() >= MOVE_EVERY) {
            moved = Some(Instant::now());
            node.orders.move_all();
        }
        if begun.elapsed() >= limit / 4 * 3 {
            node.orders.enter(Stage::Closing);
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    if open.read() > 0 {
        tracing::warn!(
            connections = open.read(),
            "closing the connections that have not moved in the drain time"
        );
    }
    node.orders.enter(Stage::Ending);
    // A worker answers other nodes until it ends, so the lease is given back after that.
    let ended =
        tokio::time::timeout_at(begun + limit + 2 * CLOSED_IN, node.orders.all_have_ended());
    if ended.await.is_ok() {
        node.cluster.give_back_lease().await;
    }
}
