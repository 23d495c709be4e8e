//! Clusters without a switch: the programs run on the nodes' own hosts, and answers go to the
//! client directly.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_lab::{Failure, Families, Family, Layout, Mode};

use crate::support::client::{Client, Request};
use crate::support::packets::{ClientResets, RST, Watch, one_of};
use crate::support::{Cluster, eventually, say, tls, turn};
use crate::switches;

const LEN: u64 = 300_000;
/// An object whose bytes would be seen on any link.
const LARGE: u64 = 16_000_000;
/// Deaths of arbiters' hosts and nodes.
const DEATHS: usize = 2;
/// The rounds of requests over one connection.
const ROUNDS: usize = 4;

/// Three backends and a frontend, with HTTPS: on one segment, or each behind a router.
fn up(layout: Layout) -> Cluster {
    tls::up(3, |spec| {
        spec.mode = Mode::Host;
        spec.layout = layout;
        spec.family = Families::Dual;
    })
}

/// A client of each family, by HTTP and by HTTPS.
fn clients(cluster: &Cluster) -> Vec<Client> {
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    let mut clients = Vec::new();
    for family in Family::ALL {
        clients.push(cluster.connect_over(family));
        clients.push(tls::connect(cluster, &config));
    }
    clients
}

#[test]
fn connections_move_between_hosts_and_no_client_notices() {
    let Some(_turn) = turn() else { return };
    connections_move(&up(Layout::Segment));
}

#[test]
fn connections_move_across_a_router() {
    let Some(_turn) = turn() else { return };
    connections_move(&up(Layout::Routed));
}

fn connections_move(cluster: &Cluster) {
    let objects = cluster.one_on_each("moving", |n| LEN + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(cluster, "host-mode");
    let moved = cluster.sum("handoff", "exports_moved");
    let mut clients = clients(cluster);
    for round in 0..ROUNDS {
        for client in &mut clients {
            for object in &objects {
                client.get(cluster, object);
                if round % 2 == 0 {
                    client.put(cluster, object);
                }
            }
        }
    }
    let (count, all) = (clients.len() as u64, objects.len() as u64);
    drop(clients);
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    assert_eq!(moved, ROUNDS as u64 * count * all, "each request moves one");
    assert_eq!(cluster.sum("handoff", "exports_kept"), 0);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn answers_do_not_pass_the_frontend() {
    let Some(_turn) = turn() else { return };
    for layout in [Layout::Segment, Layout::Routed] {
        answers_pass_by(&up(layout));
    }
}

fn answers_pass_by(cluster: &Cluster) {
    let objects = cluster.one_on_each("large", |_| LARGE);
    cluster.put_all(&objects);
    let count = 4 * LARGE * objects.len() as u64;
    let before = cluster.frontend_bytes();
    for client in &mut clients(cluster) {
        for object in &objects {
            client.get(cluster, object);
        }
    }
    let passed = cluster.frontend_bytes() - before;
    say(&format!(
        "{passed} of {count} fetched bytes at the frontend"
    ));
    // The client's acknowledgements come in and go on.
    assert!(passed < count * 3 / 100, "{passed} of {count} bytes");
    let before = cluster.frontend_bytes();
    for client in &mut clients(cluster) {
        for object in &objects {
            client.put(cluster, object);
        }
    }
    let passed = cluster.frontend_bytes() - before;
    say(&format!(
        "{passed} of {count} uploaded bytes at the frontend"
    ));
}

#[test]
fn the_connection_of_a_dead_backend_ends_and_its_ports_are_free() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(Layout::Segment);
    let objects = cluster.one_on_each("dying", |_| LEN);
    cluster.put_all(&objects);
    let mut client = cluster.connect_from(40_001);
    client.get(&cluster, &objects[0]);
    let dying = cluster.owner(&objects[0].key).to_owned();
    cluster.lab.kill(&dying).unwrap();
    // The kernel of a dead process closes its sockets.
    let end = client.fill();
    let is_reset = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionReset;
    assert!(
        matches!(&end, Ok(false)) || end.as_ref().is_err_and(is_reset),
        "{end:?}"
    );
    drop(client);
    eventually("others are served", Duration::from_secs(10), || {
        let mut client = cluster.connect_from(40_001);
        client.get(&cluster, &objects[1]);
        true
    });
    cluster.lab.restart(&dying).unwrap();
}

/// Two frontends, of which one is the arbiter.
fn up_pair(layout: Layout) -> Cluster {
    tls::up(switches::BACKENDS, |spec| {
        spec.mode = Mode::Host;
        spec.layout = layout;
        spec.family = Families::Dual;
        spec.frontends = 2;
        spec.uplink = Some(switches::LINK.parse().unwrap());
    })
}

#[test]
fn the_death_of_the_arbiter_costs_no_connection_that_has_moved() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up_pair(Layout::Segment);
    switches::survives(&mut cluster, |cluster, progress| {
        // `Kill` ends the node alone: its agent goes on as the arbiter until the addresses move.
        let ways = [Failure::Links, Failure::Kill].iter().cycle();
        let deaths = ways.take(switches::number("PRISM_SWITCH_DEATHS", DEATHS));
        let outages = deaths.map(|how| {
            switches::standby_knows_all(cluster, progress);
            let outage = switches::fail_active(cluster, progress, *how);
            switches::wait_for_both(cluster);
            outage
        });
        let outages = outages.collect();
        switches::standby_knows_all(cluster, progress);
        outages
    });
    switches::standby_forgets_all(&cluster);
}

#[test]
fn connections_go_on_when_the_router_sends_them_to_another_frontend() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up_pair(Layout::Spread);
    let accepted = |cluster: &Cluster| {
        let of = |host: &String| cluster.counter(host, "handoff", "accepted");
        cluster.frontends().iter().map(of).collect::<Vec<_>>()
    };
    switches::survives(&mut cluster, |cluster, progress| {
        let counts = accepted(cluster);
        assert!(
            counts.iter().all(|count| *count > 0),
            "accepted: {counts:?}"
        );
        let frontends = cluster.frontends();
        let both: Vec<&str> = frontends.iter().map(String::as_str).collect();
        for ways in [&both[..1], &both[1..], &both[..]] {
            cluster.lab.spread_over(ways).unwrap();
            progress.wait(cluster, &format!("all go on by {ways:?}"));
        }
        switches::standby_knows_all(cluster, progress);
        let active = cluster.lab.active_switch().unwrap().to_owned();
        let others: Vec<&str> = both
            .iter()
            .copied()
            .filter(|host| *host != active)
            .collect();
        cluster.lab.spread_over(&others).unwrap();
        let outage = switches::fail_active(cluster, progress, Failure::Links);
        switches::wait_for_both(cluster);
        cluster.lab.spread_over(&both).unwrap();
        progress.wait(cluster, "all go on by both again");
        vec![outage]
    });
}

#[test]
fn clients_connect_while_a_frontend_answers_with_syn_cookies() {
    let Some(_turn) = turn() else { return };
    let cluster = up(Layout::Segment);
    cookies_complete(&cluster, &cluster.frontends());
}

#[test]
fn clients_connect_while_several_frontends_answer_with_syn_cookies() {
    let Some(_turn) = turn() else { return };
    let cluster = up_pair(Layout::Spread);
    let frontends = cluster.frontends();
    let is_active = |host: &String| cluster.lab.is_active(host);
    let (arbiter, others): (Vec<_>, Vec<_>) = frontends.into_iter().partition(is_active);
    // First, because all hosts of a lab have the secret of one kernel: if the arbiter made cookies
    // too, it would take those of the others for its own.
    for by in [others, arbiter] {
        let ways: Vec<&str> = by.iter().map(String::as_str).collect();
        cluster.lab.spread_over(&ways).unwrap();
        cookies_complete(&cluster, &by);
    }
}

/// Has these frontends accept by cookies alone. Each client's connection opens and moves.
fn cookies_complete(cluster: &Cluster, frontends: &[String]) {
    let objects = cluster.one_on_each("cookies", |_| LEN);
    cluster.put_all(&objects);
    for host in frontends {
        cluster.on(host, || {
            std::fs::write("/proc/sys/net/ipv4/tcp_syncookies", "2").unwrap();
        });
    }
    let (taken, moved) = (cookies(cluster), cluster.sum("handoff", "exports_moved"));
    let mut clients: Vec<_> = (0..2).flat_map(|_| clients(cluster)).collect();
    for client in &mut clients {
        for object in &objects {
            client.get(cluster, object);
        }
    }
    let count = clients.len() as u64;
    drop(clients);
    assert!(cookies(cluster) - taken >= count, "by cookies");
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    assert!(moved >= count, "{moved} moves of {count} clients");
    cluster.assert_no_flows();
}

/// The cookies that the frontends' kernels have taken.
fn cookies(cluster: &Cluster) -> u64 {
    let of = |host: &String| {
        let read = || std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
        let text = cluster.on(host, read);
        let mut rows = text.lines().filter(|line| line.starts_with("TcpExt:"));
        let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
        let mut row = names.split(' ').zip(values.split(' '));
        let (_, count) = row.find(|(name, _)| *name == "SyncookiesRecv").unwrap();
        count.parse::<u64>().unwrap()
    };
    cluster.frontends().iter().map(of).sum()
}

#[test]
fn transfers_go_on_when_another_frontend_becomes_the_arbiter() {
    let Some(_turn) = turn() else { return };
    let mut cluster = tls::up(3, |spec| {
        spec.mode = Mode::Host;
        spec.family = Families::Dual;
        spec.frontends = 2;
        // The transfers take some seconds.
        spec.uplink = Some("200mbit".parse().unwrap());
    });
    let objects = cluster.one_on_each("lasting", |_| LARGE);
    cluster.put_all(&objects);
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host-mode-takeover.pcap");
    let filter = format!("{} and {RST}", one_of("src host", &cluster.vips()));
    let resets = cluster.lab.capture("client", &file, &filter).unwrap();
    let frontends = cluster.frontends();
    let mut active = frontends.iter().filter(|host| cluster.lab.is_active(host));
    let active = active.next().unwrap().clone();
    let mut clients = clients(&cluster);
    for client in &mut clients {
        client.send(&Request::get(&objects[0]).encode(&cluster));
        client.send(&Request::get(&objects[1]).encode(&cluster));
    }
    // The heads have come: the connections are at backends.
    let heads: Vec<_> = clients.iter_mut().map(Client::head).collect();
    cluster.lab.fail(&active, Failure::Links).unwrap();
    let cut = Instant::now();
    for (client, head) in clients.iter_mut().zip(&heads) {
        client.expect_body(head, &objects[0]);
        client.expect(&objects[1]);
    }
    say(&format!("done {:?} after the cut", cut.elapsed()));
    for client in &mut clients {
        client.get(&cluster, &objects[2]);
    }
    drop(clients);
    cluster.connect().get(&cluster, &objects[0]);
    cluster.lab.heal(&active).unwrap();
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}
