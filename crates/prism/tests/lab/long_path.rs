//! Connections of clients that are far away.

use std::time::{Duration, Instant};

use prism_lab::delay::{Delay, DelayTally};

use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, turn};

/// The added round trip, and its tolerance on a busy machine.
const RTT: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_millis(500);
/// Requests over one connection.
const FETCHES: usize = 12;

/// The time that a new connection takes.
fn connect_time(cluster: &Cluster) -> Duration {
    let began = Instant::now();
    drop(cluster.connect());
    began.elapsed()
}

#[test]
fn a_far_client_gets_every_byte_over_a_connection_that_moves() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each("far", |n| 200_000 + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "far");
    let host = cluster.lab.addresses("client").unwrap();
    let delay = cluster.in_client(|| Delay::start(&host, &cluster.vips(), RTT).unwrap());
    assert_eq!(delay.tally(), DelayTally::default());

    let took: Vec<_> = (0..5).map(|_| connect_time(&cluster)).collect();
    assert!(took.iter().all(|took| *took >= RTT), "{took:?}");
    assert!(took.iter().min() < Some(&(RTT + LATE)), "{took:?}");

    // One of each family.
    for _ in cluster.vips() {
        let moved = cluster.sum("handoff", "exports_moved");
        let (mut client, began) = (cluster.connect(), Instant::now());
        for object in objects.iter().cycle().take(FETCHES) {
            client.get(&cluster, object);
        }
        // Each answer begins a round trip after its request, or later.
        assert!(began.elapsed() >= RTT * FETCHES as u32);
        drop(client);
        let moved = cluster.sum("handoff", "exports_moved") - moved;
        assert!(moved >= FETCHES as u64, "{moved} hand-offs");
        cluster.assert_no_flows();
    }
    let tally = delay.tally();
    assert!(tally.passed > 0 && tally.dropped == 0, "{tally:?}");

    // The path is as short as before.
    drop(delay);
    let took: Vec<_> = (0..5).map(|_| connect_time(&cluster)).collect();
    assert!(took.iter().min() < Some(&RTT), "{took:?}");
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}
