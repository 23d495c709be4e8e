//! The service port: garbage, slow heads, and connections that come and go.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use prism_http::Method;

use super::{OBJECTS, POOLED, SEED};
use crate::support::bed::{Bed, NumberedClient, Way};
use crate::support::{Known, eventually, say, turn};

/// Sends bytes and returns the answer's status. An orderly end has to follow.
fn ends_with(bed: &Bed, bytes: &[u8]) -> (u16, String) {
    let mut client = bed.client();
    client.stream.write_all(bytes).unwrap();
    let answer = client.try_answer(&Method::GET);
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
    let answer = answer.unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    assert!(!answer.keep_alive(), "{shown:?}: {}", answer.text());
    client.expect_end();
    (answer.status(), answer.text())
}

#[test]
fn garbage_at_the_service_port_is_answered_and_ends_the_connection() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up_with("hos-garbage", &Way::Direct, |config| {
        config.limits.head_timeout_s = 1;
    });
    bed.fill(OBJECTS);
    let resets = bed.watch_resets();
    let get = "GET /bucket/k HTTP/1.1\r\nHost: x\r\n";
    let put = "PUT /bucket/k HTTP/1.1\r\nHost: x\r\n";
    let long = "a".repeat(20_000);
    let vectors: Vec<(String, u16)> = vec![
        (
            format!(
                "{put}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
            ),
            400,
        ),
        (
            format!("{put}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
            400,
        ),
        (
            format!("{put}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
            400,
        ),
        (format!("{put}Content-Length: +5\r\n\r\nhello"), 400),
        (format!("{put}Content-Length: 0x5\r\n\r\nhello"), 400),
        (format!("{put}Content-Length: 5, 5\r\n\r\nhello"), 400),
        (
            format!("{put}Content-Length: 99999999999999999999\r\n\r\n"),
            400,
        ),
        (
            format!("{put}Content-Length: 18446744073709551615\r\n\r\n"),
            413,
        ),
        (
            format!("{put}Transfer-Encoding: chunked, identity\r\n\r\n"),
            400,
        ),
        (format!("{put}Transfer-Encoding: xchunked\r\n\r\n"), 400),
        (
            format!("{put}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400,
        ),
        (format!("{put}Transfer-Encoding : chunked\r\n\r\n"), 400),
        (
            format!("{put}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            501,
        ),
        (
            "PUT /bucket/k HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            400,
        ),
        (format!("{get}X: a\r\n b\r\n\r\n"), 400),
        (format!("{get}X: a\nY: b\r\n\r\n"), 400),
        (format!("{get}X: a\rb\r\n\r\n"), 400),
        (format!("{get}X: a\0b\r\n\r\n"), 400),
        (format!("{get}Host: y\r\n\r\n"), 400),
        (format!("{get}: empty\r\n\r\n"), 400),
        (format!("{get}Expect: wonders\r\n\r\n"), 417),
        ("GET /bucket/k HTTP/1.1\r\n\r\n".into(), 400),
        ("GET /bucket/k HTTP/2.0\r\nHost: x\r\n\r\n".into(), 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 505),
        ("GET  /bucket/k HTTP/1.1\r\nHost: x\r\n\r\n".into(), 400),
        ("CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n".into(), 501),
        (format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n"), 431),
        (format!("{get}X: {long}\r\n\r\n"), 431),
        (format!("{get}{}\r\n", "a: b\r\n".repeat(200)), 431),
        (long.clone(), 431),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".into(), 400),
    ];
    for (vector, status) in &vectors {
        let (got, text) = ends_with(&bed, vector.as_bytes());
        assert_eq!(
            got,
            *status,
            "{:?}: {text}",
            &vector[..vector.len().min(90)]
        );
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    for n in 0..300 {
        let len = random.usize(1..3_000);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(len);
        let bytes: Vec<u8> = noise.chain(*b"\r\n\r\n").collect();
        let (status, text) = ends_with(&bed, &bytes);
        assert!((400..600).contains(&status), "noise {n}: {text}");
    }
    say(&format!(
        "seed {SEED:#x}: {} vectors, 300 times noise",
        vectors.len()
    ));
    slow_heads_end(&bed);
    // A frontend claims connections that stay, and closes these first (TIME_WAIT).
    let services: Vec<_> = bed.lab.services().collect();
    let at_frontend = |known: &Known| services.contains(&known.owner.addr);
    assert!(bed.flows().iter().all(at_frontend), "nothing is handed off");
    eventually("connections end", Duration::from_secs(5), || {
        bed.total("connections_open") == 0
    });
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

/// Heads that come byte by byte, for longer than the limit.
fn slow_heads_end(bed: &Bed) {
    let start = Instant::now();
    let mut clients: Vec<NumberedClient> = (0..200).map(|_| bed.client()).collect();
    let head = b"GET /bucket/k HTTP/1.1\r\nHost: x\r\n";
    for byte in head.iter().take(6) {
        for client in &mut clients {
            client.stream.write_all(std::slice::from_ref(byte)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for client in &mut clients {
        let answer = client.answer(&Method::GET);
        assert_eq!(answer.status(), 400, "{}", answer.text());
        assert!(answer.text().contains("<Code>RequestTimeout</Code>"));
        client.expect_end();
    }
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up("hos-many", &Way::Direct);
    bed.fill(OBJECTS);
    // All channels exist, so that none is counted as a leftover.
    let mut client = bed.client();
    for n in (0..OBJECTS).chain(0..OBJECTS) {
        client.get(n);
    }
    drop(client);
    bed.assert_drained();
    let hosts = bed.nodes();
    let count = || hosts.iter().map(|h| bed.descriptors(h)).collect::<Vec<_>>();
    let before = count();
    let start = Instant::now();
    let services: Vec<SocketAddr> = bed.lab.services().collect();
    bed.on("client", || {
        let connect = |n: usize| TcpStream::connect(services[n % services.len()]).unwrap();
        for n in 0..4_000 {
            let mut tcp = connect(n / 3);
            // Nothing, half a head, or something that is refused.
            match n % 3 {
                0 => {}
                1 => tcp.write_all(b"GET /bucket/k HT").unwrap(),
                _ => tcp.write_all(b"nonsense\r\n\r\n").unwrap(),
            }
        }
        // Many at a time.
        let open: Vec<TcpStream> = (0..1_000).map(connect).collect();
        drop(open);
    });
    for n in 0..200 {
        bed.client().get(n % OBJECTS);
    }
    let took = start.elapsed();
    bed.assert_drained();
    let is_back = || {
        count()
            .iter()
            .zip(&before)
            .all(|(now, then)| *now <= then + POOLED)
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_back() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(is_back(), "descriptors {before:?}, then {:?}", count());
    say(&format!(
        "5,200 connections in {took:.1?}; descriptors {before:?}, then {:?}",
        count()
    ));
}
