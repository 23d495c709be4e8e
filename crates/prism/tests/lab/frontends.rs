//! Frontends that die and come back: new connections go to those that live, and open ones stay
//! where they are.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, say, turn};

const NEW: usize = 200;
const RESTING: usize = 24;
/// Connections that are used again before the frontend claims them.
const YOUNG: usize = 5;
const AGENT_STARTS: Duration = Duration::from_secs(2);
/// The agent's grace, its check, and the time of a change of the list.
const BACK_IN: Duration = Duration::from_secs(8);

impl Cluster {
    /// The host of each client's connection, by port.
    fn hosts_of_flows(&self) -> HashMap<u16, IpAddr> {
        let flows = self.flows().into_iter();
        flows
            .map(|known| (known.flow.client.port(), known.owner.via))
            .collect()
    }
}

/// A request that a frontend answers itself.
fn ask_frontend(cluster: &Cluster, client: &mut Client) {
    let answer = client.call(&cluster.request("GET", "/"));
    assert_eq!(answer.status(), 200, "{}", answer.text());
}

#[test]
fn a_dead_frontend_gets_no_new_connection_and_one_that_is_back_cuts_none() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| spec.frontends = 2);
    let objects = cluster.one_on_each("small", |_| 10_000);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let mut clients: Vec<Client> = (0..RESTING).map(|_| cluster.connect()).collect();
    for client in &mut clients {
        ask_frontend(&cluster, client);
    }
    eventually("all are claimed", Duration::from_secs(2), || {
        cluster.flows().len() == RESTING
    });
    let (alive, dying) = ["fe0", "fe1"]
        .map(|fe| cluster.lab.address(fe).unwrap())
        .into();
    let hosts = cluster.hosts_of_flows();
    let count = |at: std::net::Ipv4Addr| hosts.values().filter(|ip| **ip == IpAddr::V4(at)).count();
    say(&format!(
        "{} clients at fe0, {} at fe1",
        count(alive),
        count(dying)
    ));
    assert!(count(alive) > 0 && count(dying) > 0);

    // An agent that has just started judges no host yet.
    std::thread::sleep(AGENT_STARTS);
    cluster.lab.kill("fe1").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let watch = Watch::events(&cluster, "frontends");
    for n in 0..NEW {
        let mut client = cluster.connect();
        client.get(&cluster, &objects[n % 2]);
    }
    clients.retain(|client| hosts[&client.port()] == IpAddr::V4(alive));
    for client in &mut clients {
        ask_frontend(&cluster, client);
    }

    // Connections are opened all the time while it comes back, and they stay.
    cluster.lab.restart("fe1").unwrap();
    let begun = Instant::now();
    let mut back_since = None;
    while back_since.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(3)) {
        let mut client = cluster.connect();
        ask_frontend(&cluster, &mut client);
        clients.push(client);
        // A young connection is not claimed yet, and is used while the list changes.
        for young in clients.iter_mut().rev().take(YOUNG) {
            ask_frontend(&cluster, young);
        }
        if back_since.is_none() && cluster.counter("fe1", "handoff", "accepted") > 0 {
            say(&format!(
                "fe1 has clients again after {:.2?}",
                begun.elapsed()
            ));
            back_since = Some(Instant::now());
        }
        assert!(back_since.is_some() || begun.elapsed() < BACK_IN);
        std::thread::sleep(Duration::from_millis(10));
    }
    say(&format!(
        "{} connections were open meanwhile",
        clients.len()
    ));
    for (n, client) in clients.iter_mut().enumerate() {
        ask_frontend(&cluster, client);
        client.get(&cluster, &objects[n % 2]);
    }
    drop(clients);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}
