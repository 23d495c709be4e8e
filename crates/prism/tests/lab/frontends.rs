//! Frontends that die and come back: new connections go to those that live, and open ones stay
//! where they are.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::support::client::Client;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, say, turn};

const NEW: usize = 200;
const RESTING: usize = 24;
/// Connections that are used again before the frontend claims them.
const YOUNG: usize = 5;
/// The agent's grace, its check, and the time of a change of the list.
const BACK_IN: Duration = Duration::from_secs(8);

impl Cluster {
    /// The clients whose connection is at `host`.
    pub(crate) fn clients_at(&self, host: &str) -> HashSet<SocketAddr> {
        let flows = self.flows().into_iter();
        let at_host = flows.filter(|known| {
            let client = known.flow.client;
            known.owner.via == self.address_like(host, client.ip())
        });
        at_host.map(|known| known.flow.client).collect()
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
    let (alive, dying) = (cluster.clients_at("fe0"), cluster.clients_at("fe1"));
    for vip in cluster.vips() {
        let [alive, dying] = [&alive, &dying].map(|clients| {
            let like = clients
                .iter()
                .filter(|client| client.is_ipv4() == vip.is_ipv4());
            like.count()
        });
        say(&format!("{vip}: {alive} clients at fe0, {dying} at fe1"));
        assert!(alive > 0 && dying > 0);
    }

    // Also an agent that has just started knows that a host has died, once it had a lease.
    cluster.lab.restart("switch").unwrap();
    let started = Instant::now();
    eventually("fe1 has a lease of the new agent", BACK_IN, || {
        cluster.counter("fe1", "handoff", "workers_leased") > 0
    });
    let after = started.elapsed();
    say(&format!("fe1 dies {after:.2?} after the agent has started"));
    cluster.lab.kill("fe1").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let watch = Watch::events(&cluster, "frontends");
    for n in 0..NEW {
        let mut client = cluster.connect();
        client.get(&cluster, &objects[n % 2]);
    }
    clients.retain(|client| alive.contains(&client.local()));
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
