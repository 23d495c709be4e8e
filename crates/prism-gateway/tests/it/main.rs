//! Whole requests through a gateway: a client on the loopback interface, one node without a
//! switch, and a service that sends bodies back. No privileges are needed.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

mod echo;
mod relayed;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_config::{Config, Running, Tls};
use prism_gateway::{Challenges, Gateway, Parts, Shared};
use prism_handoff::{Endpoint, EndpointConfig, Process};
use prism_http::{Limits, ResponseHead};
use prism_service::{Link, Orders, Peers, RequestCounters, Requests};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use echo::Echo;

/// A port of a loopback address that was free just now.
fn free_address(host: IpAddr) -> SocketAddr {
    let listener = std::net::TcpListener::bind((host, 0)).unwrap();
    listener.local_addr().unwrap()
}

/// Sends `bytes` to a gateway, and returns all bytes of its answers and its counters.
fn answers(bytes: &[u8]) -> (Vec<u8>, Arc<RequestCounters>) {
    answers_with(Config::default(), None, bytes)
}

/// The same with a configuration and answers to challenges.
fn answers_with(
    config: Config,
    challenges: Option<Challenges>,
    bytes: &[u8],
) -> (Vec<u8>, Arc<RequestCounters>) {
    answers_at(Ipv4Addr::LOCALHOST.into(), config, challenges, bytes)
}

/// The same of a gateway at this address.
fn answers_at(
    host: IpAddr,
    config: Config,
    challenges: Option<Challenges>,
    bytes: &[u8],
) -> (Vec<u8>, Arc<RequestCounters>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let counters = Arc::new(RequestCounters::default());
    let given = counters.clone();
    let received = LocalSet::new().block_on(&runtime.unwrap(), async move {
        let (address, process) = (free_address(host), Arc::new(Process::default()));
        let alone = EndpointConfig::alone("a", &[address]);
        let endpoint = Endpoint::bind(alone, process.clone()).await;
        let endpoint = endpoint.unwrap();
        let parts = Parts {
            counters: given,
            process,
            challenges,
            ..parts(config)
        };
        let peers = Rc::new(Peers::none());
        serve("a", endpoint, Echo::default(), parts, peers);
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(bytes).await.unwrap();
        let mut received = Vec::new();
        let reading = client.read_to_end(&mut received);
        let read = tokio::time::timeout(Duration::from_secs(20), reading).await;
        read.unwrap().unwrap();
        received
    });
    (received, counters)
}

/// The parts of a node that is alone.
fn parts(config: Config) -> Parts {
    Parts {
        requests: Arc::<Requests>::default(),
        config: Arc::new(Running::new(config)),
        process: Arc::default(),
        counters: Arc::default(),
        link: Arc::new(Link::new(0)),
        orders: Orders::default(),
        neighbours: Box::new(Vec::new),
        challenges: None,
    }
}

/// Serves what arrives at an endpoint.
fn serve(name: &str, endpoint: Endpoint, service: Echo, parts: Parts, peers: Rc<Peers>) {
    let node = prism_config::Node {
        name: name.into(),
        ..prism_config::Node::default()
    };
    let shared = Arc::new(Shared::new(&node, parts));
    let gateway = Rc::new(Gateway::new(shared, service, endpoint.handle(), peers));
    tokio::task::spawn_local(gateway.run(endpoint));
}

/// The status and body of each answer.
fn parsed(mut bytes: &[u8]) -> Vec<(u16, String)> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (head, len) = ResponseHead::parse(bytes, &Limits::DEFAULT)
            .unwrap()
            .unwrap();
        let body = head.declared_length().unwrap().unwrap() as usize;
        let text = String::from_utf8(bytes[len..len + body].to_vec());
        all.push((head.status(), text.unwrap()));
        bytes = &bytes[len + body..];
    }
    all
}

#[test]
fn requests_in_one_segment_are_answered_in_order() {
    let put = "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let chunks =
        "PUT /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n0\r\n\r\n";
    let refused = "PUT /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nno";
    let last = "GET /c HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (received, counters) = answers([put, refused, chunks, last].concat().as_bytes());
    let expected = [(200, "abc"), (400, "refused"), (200, "de"), (200, "")];
    let expected = expected.map(|(status, body)| (status, body.to_owned()));
    assert_eq!(parsed(&received), expected);
    let (requests, malformed) = (counters.requests.read(), counters.malformed.read());
    assert_eq!((requests, malformed), (4, 1));
}

#[test]
fn nothing_is_read_behind_a_malformed_head() {
    let ambiguous =
        "PUT /a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n";
    let smuggled = "GET /b HTTP/1.1\r\nHost: h\r\n\r\n";
    let (received, counters) = answers([ambiguous, smuggled].concat().as_bytes());
    let answers = parsed(&received);
    assert_eq!(answers.len(), 1, "{answers:?}");
    assert_eq!(answers[0].0, 400);
    assert_eq!(counters.requests.read(), 0);
}

#[test]
fn a_redirect_names_the_host_that_the_client_has_asked() {
    let https = |port| {
        let mut config: Config = Config::default();
        config.service.tls = Some(Tls {
            redirect_http: true,
            port,
            ..Tls::default()
        });
        config
    };
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    for (host, version, field, port, location) in [
        (v4, "1.1", "Host: name:80\r\n", 443, "https://name/a"),
        (v4, "1.0", "", 443, "https://127.0.0.1/a"),
        (v6, "1.1", "Host: [::1]\r\n", 443, "https://[::1]/a"),
        (
            v6,
            "1.1",
            "Host: [::1]:8080\r\n",
            8443,
            "https://[::1]:8443/a",
        ),
        (v6, "1.0", "", 8443, "https://[::1]:8443/a"),
    ] {
        let request = format!("GET /a HTTP/{version}\r\n{field}Connection: close\r\n\r\n");
        let (received, _) = answers_at(host, https(port), None, request.as_bytes());
        let answer = String::from_utf8(received).unwrap();
        assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
        let line = format!("\r\nlocation: {location}\r\n");
        assert!(answer.to_lowercase().contains(&line), "{answer}");
    }
}

#[test]
fn a_challenge_is_answered_before_a_redirect_and_before_the_service() {
    let redirecting = || {
        let mut config: Config = Config::default();
        config.service.tls = Some(Tls {
            redirect_http: true,
            ..Tls::default()
        });
        config
    };
    let challenges = || -> Option<Challenges> {
        Some(Box::new(|path| match path {
            "/.well-known/known" => Some((200, b"proof".to_vec())),
            path => path.starts_with("/.well-known/").then(|| (404, Vec::new())),
        }))
    };
    let ask = |config, challenges, target: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let (received, counters) = answers_with(config, challenges, request.as_bytes());
        let answer = parsed(&received).remove(0);
        (answer.0, answer.1, counters.requests.read())
    };
    let proof = (200, "proof".to_owned(), 0);
    assert_eq!(
        ask(redirecting(), challenges(), "/.well-known/known"),
        proof
    );
    assert_eq!(
        ask(Config::default(), challenges(), "/.well-known/known"),
        proof
    );
    assert_eq!(
        ask(redirecting(), challenges(), "/.well-known/other").0,
        404
    );
    assert_eq!(ask(redirecting(), challenges(), "/bucket").0, 308);
    // Without ACME the path is one of the service.
    let (status, _, requests) = ask(Config::default(), None, "/.well-known/known");
    assert_eq!((status, requests), (200, 1));
}

#[test]
fn a_redirect_is_followed_on_the_same_connection_and_ends_if_it_goes_round() {
    let posted = "POST /order HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc";
    let ordered = "GET /order HTTP/1.1\r\nHost: h\r\n\r\n";
    let round = "GET /loop HTTP/1.1\r\nHost: h\r\n\r\n";
    let last = "PUT /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 1\r\n\r\nz";
    let (received, counters) = answers([posted, ordered, round, last].concat().as_bytes());
    let expected = [(200, ""), (200, ""), (400, "RedirectLoop"), (200, "z")];
    let expected = expected.map(|(status, body)| (status, body.to_owned()));
    assert_eq!(parsed(&received), expected);
    let text = String::from_utf8(received).unwrap();
    assert_eq!(text.matches("Set-Cookie: /echo").count(), 2, "{text}");
    let limit = u64::from(prism_service::MAX_REDIRECTS);
    assert_eq!(counters.redirects.read(), 2 + limit);
    assert_eq!(counters.requests.read(), 4);
}

#[test]
fn the_body_of_a_redirected_request_is_no_part_of_the_next_one() {
    let bad = "POST /bad HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello";
    let next = "GET /next HTTP/1.1\r\nHost: h\r\n\r\n";
    let (received, counters) = answers([bad, next].concat().as_bytes());
    // Nobody knows any more how long the body was.
    assert_eq!(parsed(&received), [(400, "bad".to_owned())]);
    assert_eq!(counters.malformed.read(), 0);
    let bad = "GET /bad HTTP/1.1\r\nHost: h\r\n\r\n";
    let last = "GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
    let (received, _) = answers([bad, last].concat().as_bytes());
    let expected = [(400, "bad".to_owned()), (200, String::new())];
    assert_eq!(parsed(&received), expected);
}
