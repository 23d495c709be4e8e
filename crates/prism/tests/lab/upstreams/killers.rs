//! Requests that kill their servers.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use prism_config::RelayUpTo;
use prism_lab::{Lab, LabName, LabSpec};

use super::PATIENCE;
use super::behind::configure;
use crate::support::{Cluster, eventually, turn};

const SERVER: &str = "127.0.0.1:9006";
const BACKENDS: usize = 5;

/// Counts a request, and ends its connection.
fn die(mut stream: TcpStream, visits: &AtomicUsize) {
    let mut head = Vec::new();
    let mut piece = [0; 1024];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece) {
            Ok(read @ 1..) => head.extend_from_slice(&piece[..read]),
            // Prism only looks whether the server is there.
            _ => return,
        }
    }
    visits.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_get_that_kills_its_servers_visits_three_and_a_post_one() {
    let Some(_turn) = turn() else { return };
    let name: LabName = format!("k{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    spec.backends = BACKENDS;
    spec.relay_up_to = RelayUpTo::default();
    spec.configure = Some(Box::new(|config| {
        configure(config, &format!("upstream = \"{SERVER}\"\n"));
    }));
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    let visits = Arc::new(AtomicUsize::new(0));
    for host in cluster.backends() {
        let listener = cluster.on(&host, || TcpListener::bind(SERVER).unwrap());
        let visits = visits.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let visits = visits.clone();
                std::thread::spawn(move || die(stream.unwrap(), &visits));
            }
        });
    }
    cluster.await_servers();
    let ask = |method: &str| {
        let before = visits.load(Ordering::Relaxed);
        let request = format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n");
        let status = cluster.connect().call(request.as_bytes()).status();
        (status, visits.load(Ordering::Relaxed) - before)
    };
    eventually("the servers are asked", PATIENCE, || ask("POST").1 > 0);
    assert_eq!(ask("POST"), (502, 1));
    // One that fails often gets requests again after a while. Others are asked meanwhile.
    assert_eq!(ask("GET"), (502, 3));
}
