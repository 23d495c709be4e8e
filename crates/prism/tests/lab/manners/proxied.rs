//! HAProxy before the service names its clients by the PROXY protocol. A client's address stays
//! with its connection, wherever this goes.

use std::io::Read;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::{Networks, RelayUpTo};
use prism_lab::{Families, Lab, LabName, LabSpec};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::logged::{SERVER, lines, serve};
use crate::successor::take_over;
use crate::support::client::Client;
use crate::support::{Cluster, eventually, tls, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::{Running, configure};

const CLIENT: &str = "127.0.0.7";

/// The ports of HAProxy: by both versions to a service whose connections move, by the second to one
/// that is relayed, with TLS, and without a header.
const V1: u16 = 7001;
const V2: u16 = 7002;
const RELAYED: u16 = 7003;
const TLS: u16 = 7004;
const BARE: u16 = 7005;

fn start_haproxy(cluster: &Cluster, directory: &Path) -> Running {
    let find = |mut all: Box<dyn Iterator<Item = SocketAddr> + '_>, is_v6| {
        all.find(|service| service.is_ipv6() == is_v6).unwrap()
    };
    let http = |is_v6| find(Box::new(cluster.lab.services()), is_v6);
    let https = find(Box::new(cluster.lab.https_services()), false);
    let mut text = String::from(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n",
    );
    for (port, server, header) in [
        (V1, http(false), "send-proxy"),
        (V2, http(false), "send-proxy-v2"),
        (RELAYED, http(true), "send-proxy-v2"),
        (TLS, https, "send-proxy-v2"),
        (BARE, http(false), ""),
    ] {
        let listen = format!("listen l{port}\n bind 127.0.0.1:{port}\n");
        text += &format!("{listen} server prism {server} {header}\n");
    }
    let config = directory.join("haproxy.cfg");
    std::fs::write(&config, text).unwrap();
    let mut command = cluster.lab.command("client", "haproxy").unwrap();
    let command = command.args(["-db", "-q", "-f"]).arg(config);
    Running(command.spawn().unwrap())
}

/// Servers beside two backends, to which the connections of IPv6 clients cannot move.
fn up(log: &Path) -> Cluster {
    let name: LabName = format!("p{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    (spec.family, spec.backends, spec.tls) = (Families::Dual, 2, true);
    spec.relay_up_to = RelayUpTo::Bytes(0);
    let log = log.to_owned();
    spec.configure = Some(Box::new(move |config| {
        configure(config, &format!("upstream = \"{SERVER}\"\n"));
        config.log.access = log;
        for node in config.nodes.iter_mut().filter(|node| node.name != "fe0") {
            node.address.v6 = None;
            node.gateway.as_mut().unwrap().v6 = None;
        }
    }));
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    for backend in ["be0", "be1"] {
        let listener = cluster.on(backend, || TcpListener::bind(SERVER).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // It ends as the client likes.
                std::thread::spawn(move || drop(serve(stream.unwrap())));
            }
        });
    }
    cluster.await_servers();
    // The lab's own client has no header.
    let reloaded = cluster.lab.reload(|config| {
        let service = config.service.first_mut();
        service.trusted_proxies = Networks::parse(&["10.0.0.0/8", "fd00::/8"]).unwrap();
        service.accept_proxy_protocol = true;
    });
    reloaded.unwrap();
    cluster
}

fn connect(cluster: &Cluster, port: u16) -> Client {
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    let local: SocketAddr = format!("{CLIENT}:0").parse().unwrap();
    let client = cluster.connect_to(proxy, |socket| socket.bind(&local.into()).unwrap());
    if port != TLS {
        return client;
    }
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    let name = ServerName::from(cluster.lab.https_service().unwrap().ip());
    client.with_tls(ClientConnection::new(config, name).unwrap())
}

/// Sends a request on a connection through this port, and checks how the server and the log see
/// the client. Returns the node that answered.
fn ask(client: &mut Client, port: u16, tag: &str, log: &Path) -> String {
    let request = format!("GET /head?tag={tag} HTTP/1.1\r\nHost: h\r\n\r\n");
    let answer = client.call(request.as_bytes());
    let head = String::from_utf8_lossy(&answer.body).into_owned();
    let proto = if port == TLS { "https" } else { "http" };
    for field in [
        format!("X-Forwarded-For: {CLIENT}"),
        format!("X-Real-IP: {CLIENT}"),
        format!("X-Forwarded-Port: {port}"),
        format!("X-Forwarded-Proto: {proto}"),
    ] {
        assert!(head.contains(&format!("\r\n{field}\r\n")), "{tag}: {head}");
    }
    eventually("the request is in the log", PATIENCE, || {
        lines(log, tag).contains_key("/head")
    });
    let line = &lines(log, tag)["/head"];
    let seen: SocketAddr = line["client"].as_str().unwrap().parse().unwrap();
    assert_eq!(seen.ip().to_string(), CLIENT, "{line}");
    let expected = if port == RELAYED { "relayed" } else { "direct" };
    assert_eq!(line["path"], expected, "{line}");
    line["backend"].as_str().unwrap().to_owned()
}

/// The time until a connection ends that begins with these bytes, which are no whole header.
fn time_to_end(cluster: &Cluster, bytes: &[u8]) -> Duration {
    let mut client = cluster.connect();
    let begun = Instant::now();
    client.send(bytes);
    let read = client.stream.read(&mut [0]);
    assert!(matches!(read, Ok(0) | Err(_)), "it was answered");
    begun.elapsed()
}

/// Headers that do not end, or not within bounds, end their connections.
fn check_bounds(cluster: &Cluster) {
    let late = time_to_end(cluster, b"PROXY TCP4 192.0.2.1 ");
    let bounds = Duration::from_secs(9)..Duration::from_secs(15);
    assert!(bounds.contains(&late), "{late:?}");
    // It announces 65,535 bytes of addresses and extensions.
    let mut long = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff".to_vec();
    long.resize(5000, 0);
    let taken = time_to_end(cluster, &long);
    assert!(taken < Duration::from_secs(5), "{taken:?}");
}

#[test]
fn a_client_behind_the_proxy_protocol_keeps_its_address_wherever_its_connection_goes() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let mut cluster = up(&log);
    let _haproxy = start_haproxy(&cluster, directory.path());
    eventually("requests go to a backend", PATIENCE, || {
        let warm = b"GET /?tag=warm HTTP/1.1\r\nHost: h\r\n\r\n";
        let reached = std::panic::catch_unwind(|| connect(&cluster, V1).call(warm));
        reached.is_ok_and(|answer| answer.status() == 200)
            && lines(&log, "warm")
                .get("/")
                .is_some_and(|line| line["path"] == "direct")
    });
    for port in [V1, V2, RELAYED, TLS] {
        let mut client = connect(&cluster, port);
        for n in 0..2 {
            ask(&mut client, port, &format!("{port}-{n}"), &log);
        }
    }

    let mut bare = connect(&cluster, BARE);
    bare.send(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    let answer = bare.stream.read(&mut [0]).unwrap_or(0);
    assert_eq!(answer, 0, "a connection without the header is refused");
    check_bounds(&cluster);
    assert!(cluster.counter("fe0", "handoff", "proxy_headers_refused") >= 3);

    // Connections rest while their node leaves, and while the process of the other one is replaced.
    let mut resting: Vec<(u16, Client)> = Vec::new();
    for port in [V1, TLS] {
        let mut at_be0 = (0..50).filter_map(|n| {
            let mut client = connect(&cluster, port);
            let node = ask(&mut client, port, &format!("{port}-rests-{n}"), &log);
            (node == "be0").then_some(client)
        });
        resting.push((port, at_be0.next().expect("no connection is at be0")));
    }
    cluster.lab.stop("be0").unwrap();
    for (port, client) in &mut resting {
        let node = ask(client, *port, &format!("{port}-left"), &log);
        assert_eq!(node, "be1");
    }
    take_over(&cluster, "be1");
    for (port, client) in &mut resting {
        let node = ask(client, *port, &format!("{port}-taken"), &log);
        assert_eq!(node, "be1");
    }
}
