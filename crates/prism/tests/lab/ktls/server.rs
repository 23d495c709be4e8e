//! Long answers of an HTTP server behind Prism. Their bytes go from the server's socket to the
//! client's without passing the process, if the kernel makes the records.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use prism_config::{RelayUpTo, Upstream};
use prism_lab::{Lab, LabSpec};

use super::{Aead, Version, config, has_ktls};
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls::connect;
use crate::support::{Cluster, eventually, turn};

const SERVER: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9000);
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const LEN: usize = 1_000_003;
const REQUESTS: usize = 6;

fn body() -> Vec<u8> {
    (0..LEN).map(|n| (n * 7 % 251) as u8).collect()
}

/// Answers every request of a connection with the same body.
fn answer(mut stream: TcpStream) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n");
    let answer = [answer.into_bytes(), body()].concat();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() && stream.write_all(&answer).is_err() {
            return;
        }
    }
}

#[test]
fn long_answers_of_a_server_become_records_of_the_kernel() {
    let Some(_turn) = turn() else { return };
    let has_ktls = has_ktls();
    let name = format!("e{}", std::process::id()).parse().unwrap();
    let spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    let mut spec = spec.configure(|config| {
        let upstream = Upstream {
            address: SERVER.into(),
            ..Upstream::default()
        };
        config.service.first_mut().upstream = Some(vec![upstream].into());
    });
    (spec.backends, spec.tls) = (2, true);
    spec.relay_up_to = RelayUpTo::Bytes(0);
    let cluster = Cluster::around(Lab::up(spec).unwrap());
    for host in cluster.backends() {
        let listener = cluster.on(&host, || TcpListener::bind(SERVER).unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                std::thread::spawn(move || answer(stream.unwrap()));
            }
        });
    }
    eventually("connections move", Duration::from_secs(20), || {
        cluster.connect().call(REQUEST).status() == 200
            && cluster.sum("handoff", "exports_moved") > 0
    });
    let watch = Watch::events(&cluster, "ktls-server");
    let body = body();
    for version in Version::ALL {
        let bodies = cluster.sum("handoff", "tls_kernel_bodies");
        let mut client = connect(&cluster, &config(&cluster, version, Aead::Aes128));
        for n in 0..REQUESTS {
            if n == REQUESTS / 2 && version == Version::Tls13 {
                client.update_keys();
            }
            let answer = client.call(REQUEST);
            assert_eq!(answer.status(), 200);
            assert!(answer.body == body, "{version:?}: another body");
        }
        client.close_tls();
        let bodies = cluster.sum("handoff", "tls_kernel_bodies") - bodies;
        assert_eq!(bodies > 2, has_ktls, "{version:?}: {bodies} bodies");
    }
    watch.finish(ClientResets::None);
}
