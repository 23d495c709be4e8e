//! Processes that end and return while clients are connected.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prism_http::Method;

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, say, turn};

const MIB: u64 = 1 << 20;

#[test]
fn the_other_backends_serve_on_when_one_is_killed() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(3);
    let objects = cluster.one_on_each("killed", |_| 100_000);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "killed");
    let mut clients: Vec<Client> = (0..4).map(|_| cluster.connect()).collect();
    for (client, object) in clients.iter_mut().zip(&objects) {
        client.get(&cluster, object);
    }
    // The last has only been connected; the first is with the one that dies.
    let dead = &objects[0];
    cluster
        .lab
        .kill(cluster.owner(&dead.key).to_owned().as_str())
        .unwrap();
    let mut first = clients.remove(0);
    let port = first.port();
    first.expect_end();
    drop(first);
    for client in &mut clients {
        for object in objects.iter().skip(1).rev().chain(&objects[1..]) {
            client.get(&cluster, object);
        }
        let refused = client.call(&Request::get(dead).encode(&cluster));
        assert_eq!(refused.status(), 503, "{}", refused.text());
        client.get(&cluster, &objects[1]);
    }
    cluster.lab.restart("be0").unwrap();
    let begun = Instant::now();
    loop {
        clients[0].send(&Request::get(dead).encode(&cluster));
        let head = clients[0].head();
        if head.status() == 200 {
            clients[0].expect_body(&head, dead);
            break;
        }
        clients[0].body(&head, &Method::GET, |_| {});
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "still {}",
            head.status()
        );
    }
    drop(clients);
    cluster.assert_flows(&[port]);
    watch.finish(ClientResets::None);
}

#[test]
fn transfers_go_on_while_the_switch_agent_restarts() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(3);
    let objects = cluster.one_on_each("restart", |n| (n as u64 + 1) * MIB);
    let long = Object::new("long".into(), 300 * MIB);
    cluster.put_all(&objects);
    cluster.put_all(std::slice::from_ref(&long));
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "agent-restart");
    let requests: Vec<Vec<u8>> = objects
        .iter()
        .map(|object| Request::get(object).encode(&cluster))
        .collect();
    let mut busy: Vec<Client> = (0..4).map(|_| cluster.connect()).collect();
    let mut slow = cluster.connect();
    slow.send(&Request::get(&long).encode(&cluster));
    let stop = AtomicBool::new(false);
    let (stop, requests, objects, long) = (&stop, &requests, &objects, &long);
    let (fetched, slow_read) = std::thread::scope(|scope| {
        let busy = busy.drain(..).enumerate().map(|(n, mut client)| {
            scope.spawn(move || {
                let mut count = n;
                while !stop.load(Ordering::Relaxed) {
                    client.send(&requests[count % 3]);
                    client.expect(&objects[count % 3]);
                    count += 1;
                }
                count - n
            })
        });
        let busy: Vec<_> = busy.collect();
        let slow = scope.spawn(move || read_slowly(&mut slow, long, stop));
        let cluster = &mut cluster;
        std::thread::sleep(Duration::from_millis(300));
        cluster.lab.restart("switch").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        cluster.lab.kill("switch").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        cluster.lab.restart("switch").unwrap();
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        let fetched: usize = busy.into_iter().map(|t| t.join().unwrap()).sum();
        (fetched, slow.join().unwrap())
    });
    say(&format!(
        "{fetched} objects fetched; {} of 300 MiB read before the end of the restarts",
        slow_read / MIB
    ));
    assert!(fetched > 20);
    assert!(slow_read < long.len, "the long transfer ended too early");
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// Reads an answer in small steps until told to go on at full speed. Returns the bytes read by
/// then.
fn read_slowly(client: &mut Client, object: &Object, go_on: &AtomicBool) -> u64 {
    let head = client.head();
    assert_eq!(head.status(), 200);
    let (mut offset, mut slowly) = (0, 0);
    client.body(&head, &Method::GET, |piece| {
        object.check(offset, piece);
        offset += piece.len() as u64;
        if !go_on.load(Ordering::Relaxed) {
            slowly = offset;
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    assert_eq!(offset, object.len);
    slowly
}
