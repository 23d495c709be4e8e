//! Requests that one node relays to another one, on the loopback interface.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_config::{Config, RelayUpTo, seconds};
use prism_handoff::pki::{self, Identity};
use prism_handoff::{Endpoint, EndpointConfig, Peer, Process};
use prism_service::{Peers, Route};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::LocalSet;

use crate::echo::Echo;
use crate::{free_address, parsed, parts, serve};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The longest silence of a node.
const STALL_TIMEOUT_S: u32 = 1;
/// A client that waits for longer has failed.
const GIVEN_UP_IN: Duration = Duration::from_secs(10);

/// Two nodes, of which the first one relays all requests of a client to the second one.
struct Pair {
    address: SocketAddr,
    far: Echo,
}

impl Pair {
    /// `route`: how the first one sends requests to these.
    async fn up(route: fn(Vec<String>) -> Route) -> Self {
        let dir = tempfile::tempdir().unwrap();
        pki::init(dir.path(), &["near".into(), "far".into()]).unwrap();
        let nodes = [("near", 1), ("far", 2)].map(|(name, host)| Peer {
            name: name.into(),
            addresses: vec![[127, 0, 0, host].into()],
        });
        let address = free_address(LOCALHOST);
        let peer_port = free_address(LOCALHOST).port();
        let far = Echo::default();
        let near = Echo {
            route: Some(route(vec!["far".into()])),
            ..Echo::default()
        };
        for (name, service) in [("near", near), ("far", far.clone())] {
            let identity = Identity::of_node(dir.path(), name).unwrap();
            let endpoint = EndpointConfig::new(name, &nodes, &[address], identity);
            let endpoint = EndpointConfig {
                listen: name == "near",
                peer_port,
                ..endpoint.unwrap()
            };
            let process = Arc::new(Process::default());
            let endpoint = Endpoint::bind(endpoint, process.clone()).await.unwrap();
            let mut config: Config = Config::default();
            config.limits.stall_timeout_s = STALL_TIMEOUT_S;
            config.service.relay_up_to = RelayUpTo::Bytes(4_096);
            let stall_timeout = seconds(config.limits.stall_timeout_s);
            let peers = Rc::new(Peers::new(endpoint.handle(), stall_timeout));
            let mut parts = parts(config);
            parts.process = process;
            serve(name, endpoint, service, parts, peers);
        }
        Self { address, far }
    }

    /// A client, whose connection to the second node has had a request.
    async fn client(&self) -> TcpStream {
        let mut client = TcpStream::connect(self.address).await.unwrap();
        client.write_all(&get("/first")).await.unwrap();
        assert_eq!(answer(&mut client).await, (200, String::new()));
        client
    }

    /// How often a request was carried out.
    fn served(&self, path: &str) -> usize {
        let served = self.far.served.borrow();
        served.iter().filter(|served| *served == path).count()
    }
}

fn get(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").into_bytes()
}

fn put_head(path: &str, body_bytes: usize) -> Vec<u8> {
    let head = format!("PUT {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {body_bytes}\r\n\r\n");
    head.into_bytes()
}

/// The next answer, which has a length.
async fn answer(client: &mut TcpStream) -> (u16, String) {
    let mut bytes = head(client).await.into_bytes();
    let text = String::from_utf8_lossy(&bytes).to_lowercase();
    let (_, length) = text.split_once("content-length: ").unwrap();
    let (length, _) = length.split_once("\r\n").unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    read(client, &mut body).await;
    bytes.extend_from_slice(&body);
    parsed(&bytes).remove(0)
}

/// The head of the next answer.
async fn head(client: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        read(client, &mut byte).await;
        head.push(byte[0]);
    }
    String::from_utf8(head).unwrap()
}

async fn read(client: &mut TcpStream, bytes: &mut [u8]) {
    let reading = tokio::time::timeout(GIVEN_UP_IN, client.read_exact(bytes));
    reading.await.unwrap().unwrap();
}

fn run(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    LocalSet::new().block_on(&runtime.unwrap(), work);
}

#[test]
fn a_request_at_a_node_that_is_silent_is_not_sent_again() {
    run(async {
        // Without a switch no connection moves.
        for route in [Route::Relay, Route::HandOff] {
            let pair = Pair::up(route).await;
            for method in ["GET", "DELETE"] {
                let mut client = pair.client().await;
                let (before, begun) = (pair.served("/silent"), Instant::now());
                let request = format!("{method} /silent HTTP/1.1\r\nHost: h\r\n\r\n");
                client.write_all(request.as_bytes()).await.unwrap();
                let (status, text) = answer(&mut client).await;
                assert_eq!((status, text.as_str()), (400, "OutOfReach"));
                assert_eq!(pair.served("/silent"), before + 1, "{method}");
                let silence = Duration::from_secs(STALL_TIMEOUT_S.into());
                assert!(begun.elapsed() < 2 * silence, "{:?}", begun.elapsed());
            }
        }
    });
}

#[test]
fn an_error_of_the_only_node_that_may_answer_is_the_answer() {
    run(async {
        let pair = Pair::up(Route::Relay).await;
        let mut client = pair.client().await;
        for _ in 0..2 {
            client.write_all(&get("/out")).await.unwrap();
            assert_eq!(answer(&mut client).await, (400, "out of order".into()));
        }
        client.write_all(&put_head("/out", 4)).await.unwrap();
        client.write_all(b"body").await.unwrap();
        assert_eq!(answer(&mut client).await, (400, "out of order".into()));
    });
}

#[test]
fn an_interim_answer_does_not_stop_an_upload() {
    run(async {
        let pair = Pair::up(Route::Relay).await;
        let mut client = pair.client().await;
        for _ in 0..2 {
            client.write_all(&put_head("/hints", 8)).await.unwrap();
            client.write_all(b"half").await.unwrap();
            let interim = head(&mut client).await;
            assert!(
                interim.starts_with("HTTP/1.1 103 Early Hints\r\n"),
                "{interim}"
            );
            client.write_all(b"rest").await.unwrap();
            assert_eq!(answer(&mut client).await, (200, "halfrest".into()));
        }
    });
}

#[test]
fn an_upload_goes_on_while_its_answer_comes() {
    run(async {
        let pair = Pair::up(Route::Relay).await;
        let mut client = pair.client().await;
        client.write_all(&put_head("/stream", 8)).await.unwrap();
        let mut half = [0; 4];
        for (n, piece) in [b"half", b"rest"].into_iter().enumerate() {
            client.write_all(piece).await.unwrap();
            if n == 0 {
                assert!(head(&mut client).await.starts_with("HTTP/1.1 200 "));
            }
            read(&mut client, &mut half).await;
            assert_eq!(&half, piece);
        }
        client.write_all(&get("/next")).await.unwrap();
        assert_eq!(answer(&mut client).await.0, 200);
        // More than all buffers on the way hold, of a client that writes and reads at once.
        let sent: Vec<u8> = (0..40_000_000_u32).map(|n| (n % 251) as u8).collect();
        let (mut reader, mut writer) = client.split();
        let writing = async {
            let head = put_head("/stream", sent.len());
            writer.write_all(&head).await.unwrap();
            writer.write_all(&sent).await.unwrap();
        };
        let reading = async {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.unwrap();
            received
        };
        let both = async { tokio::join!(writing, reading) };
        let ((), received) = tokio::time::timeout(GIVEN_UP_IN, both).await.unwrap();
        assert!(received.ends_with(&sent), "{} bytes", received.len());
    });
}

#[test]
fn the_node_with_the_connection_follows_the_redirect_of_another_node() {
    run(async {
        for route in [Route::Relay as fn(Vec<String>) -> Route, Route::HandOff] {
            let pair = Pair::up(route).await;
            let mut client = pair.client().await;
            client.write_all(&get("/order")).await.unwrap();
            let head = head(&mut client).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert!(head.contains("\r\nSet-Cookie: /echo\r\n"), "{head}");
            assert!(!head.to_lowercase().contains("prism-answer"), "{head}");
            assert_eq!((pair.served("/order"), pair.served("/echo")), (1, 1));
            client.write_all(&get("/loop")).await.unwrap();
            let (status, text) = answer(&mut client).await;
            assert_eq!((status, text.as_str()), (400, "RedirectLoop"));
            let limit = usize::from(prism_service::MAX_REDIRECTS);
            assert_eq!(pair.served("/loop"), 1 + limit);
            client.write_all(&get("/last")).await.unwrap();
            assert_eq!(answer(&mut client).await.0, 200);
        }
    });
}
