//! Requests that a frontend relays, because the connection cannot move: slow servers, long uploads
//! whose answers come meanwhile, and servers that are out.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use prism_http::Method;
use prism_lab::{Families, Family, Lab, LabName, LabSpec};

use super::behind::{Behind, configure, pattern};
use crate::support::{Cluster, turn};

/// The silence after which a node gives up another one.
const STALL_TIMEOUT_S: u32 = 2;
/// The time that the server needs for an answer.
const WORK: Duration = Duration::from_secs(3);
/// More than all buffers on the way hold.
const UPLOAD_BYTES: usize = 48 << 20;

/// One backend, to which the connections of IPv6 clients cannot move.
pub fn without_ipv6(spec: &mut LabSpec) {
    spec.backends = 1;
    let upstreams = spec.configure.take().unwrap();
    spec.configure = Some(Box::new(move |config| {
        upstreams(config);
        config.limits.stall_timeout_s = STALL_TIMEOUT_S;
        let be0 = config.nodes.iter_mut().find(|node| node.name == "be0");
        let be0 = be0.unwrap();
        be0.address.v6 = None;
        be0.gateway.as_mut().unwrap().v6 = None;
    }));
}

#[test]
fn relayed_requests_are_carried_out_once_and_answered_as_direct_ones_are() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(without_ipv6, "");
    let cluster = &behind.cluster;
    let relayed = cluster.sum("requests", "relayed");
    let mut client = cluster.connect_over(Family::V6);
    // The first request is on a new stream between the nodes, the others are on a used one.
    for method in ["GET", "GET", "POST", "DELETE"] {
        let (id, ms) = (behind.next_id(), WORK.as_millis());
        let request = format!("{method} /bytes?n=10&ms={ms} HTTP/1.1\r\nHost: h\r\n{id}\r\n\r\n");
        let answer = client.call(request.as_bytes());
        assert_eq!(answer.status(), 200, "{method}: {}", answer.text());
        assert!(answer.body == pattern(10), "another body");
    }
    let sent = pattern(UPLOAD_BYTES);
    let id = behind.next_id();
    let head =
        format!("PUT /echo HTTP/1.1\r\nHost: h\r\n{id}\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
    let mut writer = client.stream().try_clone().unwrap();
    let answer = std::thread::scope(|scope| {
        scope.spawn(|| {
            writer.write_all(head.as_bytes()).unwrap();
            writer.write_all(&sent).unwrap();
        });
        client.answer(&Method::PUT)
    });
    assert_eq!(answer.status(), 200, "{}", answer.text());
    let first = answer.body.iter().zip(&sent).position(|(a, b)| a != b);
    let lengths = (answer.body.len(), sent.len());
    assert!(
        answer.body == sent,
        "another body: {lengths:?} bytes, differing from {first:?}"
    );
    let counts = behind.counts();
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert_eq!(cluster.sum("requests", "relayed"), relayed + 5);
    // The backend is the only one, so its error is the answer.
    behind.apps.kill("be0");
    let mut client = cluster.connect_over(Family::V6);
    for method in ["GET", "POST"] {
        let request = format!("{method} /bytes?n=10 HTTP/1.1\r\nHost: h\r\n\r\n");
        let answer = client.call(request.as_bytes());
        assert_eq!(answer.status(), 502, "{method}: {}", answer.text());
    }
}

/// The address of a server that answers before it has read.
const SERVER: &str = "127.0.0.1:9007";

/// Writes an answer of [`UPLOAD_BYTES`] while it reads a body of as many.
fn write_and_read(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let mut writer = stream.try_clone()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
            writer.write_all(head.as_bytes())?;
            writer.write_all(&pattern(UPLOAD_BYTES))
        });
        std::io::copy(
            &mut (&stream).take(UPLOAD_BYTES as u64),
            &mut std::io::sink(),
        )
    })?;
    Ok(())
}

#[test]
fn a_relayed_client_may_send_everything_before_it_reads() {
    let Some(_turn) = turn() else { return };
    let name: LabName = format!("d{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    spec.family = Families::Dual;
    spec.configure = Some(Box::new(|config| {
        configure(config, &format!("upstream = \"{SERVER}\"\n"));
    }));
    without_ipv6(&mut spec);
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    let listener = cluster.on("be0", || TcpListener::bind(SERVER).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || write_and_read(stream.unwrap()));
        }
    });
    cluster.await_servers();
    let relayed = cluster.sum("requests", "relayed");
    let mut client = cluster.connect_over(Family::V6);
    let head = format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {UPLOAD_BYTES}\r\n\r\n");
    client.stream.write_all(head.as_bytes()).unwrap();
    client.stream.write_all(&pattern(UPLOAD_BYTES)).unwrap();
    let answer = client.answer(&Method::POST);
    assert_eq!(answer.status(), 200, "{}", answer.text());
    assert!(answer.body == pattern(UPLOAD_BYTES), "another body");
    assert_eq!(cluster.sum("requests", "relayed"), relayed + 1);
}
