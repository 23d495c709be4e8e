//! Connections whose owner dies: their clients are told, the switch forgets them, and no other
//! connection is touched.

use std::io::{self, Read};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, RST, Watch, one_of};
use crate::support::{Cluster, eventually, say, turn};
use prism_config::ConfigFile;
use prism_lab::{Capture, CaptureOptions};
use prism_switch::SwitchView;

/// The longest time until a client knows that its owner has died.
const TOLD: Duration = Duration::from_millis(2_500);
/// The same where the owner's host does not answer either: ten seconds of keepalives more.
const TOLD_OF_HOST: Duration = Duration::from_millis(14_000);
/// The time after which all nodes have probed a silent node again.
const PROBED: Duration = Duration::from_secs(1);
/// A size beyond the buffers of sockets and switch.
const LARGE: u64 = 24 << 20;

fn switch_counter(cluster: &Cluster, name: &str) -> u64 {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let view = SwitchView::open(&config.switch.unwrap().pin_dir).unwrap();
    let counters = view.counters().unwrap();
    counters.iter().find(|c| c.name == name).unwrap().value
}

/// A client with an idle connection at the backend of `object`.
fn resting(cluster: &Cluster, object: &Object) -> Client {
    let mut client = cluster.connect();
    client.get(cluster, object);
    client
}

/// A client in the middle of the answer with `object`.
fn amid_answer(cluster: &Cluster, object: &Object) -> Client {
    let mut client = cluster.connect();
    client.send(&Request::get(object).encode(cluster));
    assert_eq!(client.head().status(), 200);
    client
}

/// Reads until the connection ends. Returns how and when it ended.
fn end_of(client: &Client) -> (io::Result<()>, Instant) {
    let mut stream = client.stream();
    let mut buffer = vec![0; 256 << 10];
    let limit = Some(TOLD_OF_HOST * 2);
    stream.set_read_timeout(limit).unwrap();
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return (Ok(()), Instant::now()),
            Ok(_) => {}
            Err(error) => return (Err(error), Instant::now()),
        }
    }
}

/// All of `clients` learn of the end within `limit` after `begun`.
fn assert_all_told(clients: &[Client], begun: Instant, limit: Duration) {
    let ends: Vec<_> = std::thread::scope(|scope| {
        let waiting: Vec<_> = clients.iter().map(|c| scope.spawn(|| end_of(c))).collect();
        waiting.into_iter().map(|w| w.join().unwrap()).collect()
    });
    for (end, at) in ends {
        say(&format!("{end:?} after {:.2?}", at - begun));
        if let Err(error) = &end {
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{error}");
        }
        assert!(at - begun < limit, "told after {:?}", at - begun);
    }
}

#[test]
fn a_killed_backends_clients_are_told_and_its_flows_forgotten() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(3);
    let objects = cluster.one_on_each("small", |_| 100_000);
    let large = Object::new(cluster.key_on("be0", "large"), LARGE);
    cluster.put_all(&objects);
    cluster.put_all(std::slice::from_ref(&large));
    let mut clients: Vec<_> = (0..3).map(|_| resting(&cluster, &objects[0])).collect();
    clients.push(amid_answer(&cluster, &large));
    let mut unconcerned = resting(&cluster, &objects[1]);

    let begun = Instant::now();
    cluster.lab.kill("be0").unwrap();
    assert_all_told(&clients, begun, TOLD);
    // The clients have not closed: the switch itself removes the flows.
    let port = unconcerned.port();
    eventually("the dead owner's flows are gone", TOLD * 2, || {
        cluster.flow_ports() == [port]
    });
    say(&format!("flows gone after {:.2?}", begun.elapsed()));
    let ended = ["flow_expired", "flow_reset"].map(|name| switch_counter(&cluster, name));
    assert!(ended.iter().sum::<u64>() >= 4, "{ended:?}");

    // A new connection gets the others' objects, and an error for the dead node's.
    let mut again = cluster.connect();
    again.get(&cluster, &objects[1]);
    again.get(&cluster, &objects[2]);
    let refused = again.call(&Request::get(&objects[0]).encode(&cluster));
    assert_eq!(refused.status(), 503, "{}", refused.text());
    unconcerned.get(&cluster, &objects[2]);
    unconcerned.get(&cluster, &objects[1]);

    // The connections of its next run are new.
    cluster.lab.restart("be0").unwrap();
    // A frontend and a backend find that out independently.
    eventually("it serves again", Duration::from_secs(5), || {
        let clients = [&mut again, &mut cluster.connect()];
        clients.into_iter().all(|client| {
            let answer = client.call(&Request::get(&objects[0]).encode(&cluster));
            answer.status() == 200
        })
    });
    let mut rested = resting(&cluster, &objects[0]);
    std::thread::sleep(TOLD);
    rested.get(&cluster, &objects[0]);
    rested.get(&cluster, &objects[1]);
    drop((clients, unconcerned, again, rested));
    cluster.assert_no_flows();
}

fn watch_resets(cluster: &Cluster) -> Capture {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("owners-resets.pcap");
    let filter = format!("{} and {RST}", one_of("src host", &cluster.vips()));
    let options = CaptureOptions::default();
    let capture = cluster.lab.capture_with("client", &file, &filter, &options);
    capture.unwrap()
}

#[test]
fn a_host_out_of_reach_has_its_clients_reset() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let objects = cluster.one_on_each("small", |_| 100_000);
    let large = Object::new(cluster.key_on("be0", "large"), LARGE);
    cluster.put_all(&objects);
    cluster.put_all(std::slice::from_ref(&large));
    let clients = [
        resting(&cluster, &objects[0]),
        amid_answer(&cluster, &large),
    ];
    let mut unconcerned = resting(&cluster, &objects[1]);
    let resets = watch_resets(&cluster);

    let namespace = cluster.lab.namespace("switch").unwrap();
    let begun = Instant::now();
    let down = Command::new("nsenter")
        .arg(format!("--net={}", namespace.display()))
        .args(["--", "ip", "link", "set", "be0", "down"])
        .status();
    assert!(down.unwrap().success());
    assert_all_told(&clients, begun, TOLD_OF_HOST);
    let port = unconcerned.port();
    eventually("the flows are gone", TOLD, || {
        cluster.flow_ports() == [port]
    });
    assert!(resets.stop().unwrap().captured > 0, "resets");
    unconcerned.get(&cluster, &objects[1]);
}

fn signal(cluster: &Cluster, host: &str, name: &str) {
    let pid = cluster.lab.pid(host).unwrap().to_string();
    let sent = Command::new("kill").args(["-s", name, &pid]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn neither_a_new_agent_nor_a_backend_that_stands_still_costs_a_connection() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(3);
    let objects = cluster.one_on_each("small", |_| 100_000);
    let large = Object::new(cluster.key_on("be0", "large"), LARGE);
    cluster.put_all(&objects);
    cluster.put_all(std::slice::from_ref(&large));
    let watch = Watch::events(&cluster, "owners");
    let mut at_rest: Vec<_> = (0..3).map(|n| resting(&cluster, &objects[n])).collect();
    let mut client = cluster.connect();
    client.send(&Request::get(&large).encode(&cluster));
    let head = client.head();

    signal(&cluster, "be0", "STOP");
    std::thread::sleep(TOLD);
    cluster.lab.kill("switch").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    cluster.lab.restart("switch").unwrap();
    std::thread::sleep(TOLD);
    signal(&cluster, "be0", "CONT");
    client.expect_body(&head, &large);
    std::thread::sleep(PROBED);
    for (n, client) in at_rest.iter_mut().enumerate() {
        client.get(&cluster, &objects[n]);
        client.get(&cluster, &objects[(n + 1) % 3]);
    }
    assert_eq!(switch_counter(&cluster, "flow_reset"), 0);

    // A node that ends in order hands its connections off.
    let mut moved = resting(&cluster, &objects[2]);
    let port = moved.port();
    drop(client);
    cluster.lab.stop("be2").unwrap();
    moved.get(&cluster, &objects[0]);
    std::thread::sleep(TOLD);
    assert_eq!(switch_counter(&cluster, "flow_reset"), 0);
    let lasting: Vec<u16> = at_rest.iter().map(Client::port).chain([port]).collect();
    drop((moved, at_rest));
    cluster.assert_flows(&lasting);
    watch.finish(ClientResets::None);
}
