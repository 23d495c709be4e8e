//! Nodes on loopback without a switch, and so without privilege: clients, relaying, limits,
//! and the end of a node.

use std::io::{ErrorKind, Seek, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::pki::{self, Identity};
use prism_handoff::{
    ClientBounds, ClientLimits, Connection, Endpoint, EndpointConfig, Exported, Incoming, Kept,
    NewcomerLimits, Peer, PeerError, Process, RelayStream,
};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::app::{eventually, run};

/// Certificates of `near` and `far`, and the addresses of one test.
pub struct Cluster {
    pub pki: TempDir,
    pub service: SocketAddr,
    peer_port: u16,
}

impl Cluster {
    pub fn new() -> Self {
        let pki = tempfile::tempdir().unwrap();
        pki::init(pki.path(), &["near".into(), "far".into()]).unwrap();
        Self {
            pki,
            service: (Ipv4Addr::LOCALHOST, free_port()).into(),
            peer_port: free_port(),
        }
    }

    /// The node `near` accepts clients.
    pub fn config(&self, name: &str, pki_dir: &Path) -> EndpointConfig {
        let peer = |name: &str, host| Peer {
            name: name.to_owned(),
            addresses: vec![Ipv4Addr::new(127, 0, 0, host).into()],
        };
        let nodes = [peer("near", 1), peer("far", 2)];
        let identity = Identity::of_node(pki_dir, name).unwrap();
        let mut config = EndpointConfig::new(name, &nodes, &[self.service], identity).unwrap();
        (config.peer_port, config.listen) = (self.peer_port, name == "near");
        config
    }

    pub async fn node(&self, name: &str, process: &Arc<Process>) -> Endpoint {
        let config = self.config(name, self.pki.path());
        Endpoint::bind(config, process.clone()).await.unwrap()
    }

    async fn client(&self) -> TcpStream {
        TcpStream::connect(self.service).await.unwrap()
    }
}

pub fn free_port() -> u16 {
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    free.local_addr().unwrap().port()
}

pub async fn next_client(endpoint: &mut Endpoint) -> Connection {
    match endpoint.next().await {
        Some(Incoming::Client(client)) => client,
        other => panic!("not a client: {other:?}"),
    }
}

async fn next_relay(endpoint: &mut Endpoint) -> (RelayStream, String) {
    match endpoint.next().await {
        Some(Incoming::Relay { stream, peer }) => (stream, peer),
        other => panic!("not a relay stream: {other:?}"),
    }
}

/// Whether the other end closes the connection without a byte.
async fn is_closed(client: &mut TcpStream) -> bool {
    client.read_u8().await.is_err()
}

#[test]
fn a_client_is_served_and_stays_where_there_is_no_switch() {
    let cluster = Cluster::new();
    run(async {
        let process = Arc::default();
        let mut near = cluster.node("near", &process).await;
        let mut client = cluster.client().await;
        client.write_all(b"hello, world").await.unwrap();
        let mut accepted = next_client(&mut near).await;
        assert_eq!(accepted.client(), client.local_addr().unwrap());
        assert_eq!((accepted.origin(), accepted.context()), ("near", &b""[..]));
        assert_eq!(accepted.fill().await.unwrap(), 12);
        accepted.consume(7);
        let exported = near.handle().export(accepted, "far", b"context").await;
        let Exported::Kept {
            connection: mut kept,
            reason: Kept::SwitchSilent,
        } = exported
        else {
            panic!("{exported:?}");
        };
        assert_eq!(kept.buffered(), b"world");
        kept.write_all(b"goodbye").await.unwrap();
        let mut answer = Vec::new();
        let reading = async {
            client.read_to_end(&mut answer).await.unwrap();
            drop(client);
        };
        tokio::join!(kept.close(), reading);
        assert_eq!(answer, b"goodbye");
        let counters = &process.counters;
        assert_eq!(counters.kept_switch_silent.read(), 1);
        assert_eq!(counters.connections_open.read(), 0);
    });
}

#[test]
fn a_client_that_still_sends_gets_the_answer_and_no_reset() {
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let (mut reading, mut writing) = cluster.client().await.into_split();
        let mut accepted = next_client(&mut near).await;
        accepted.write_all(b"too long").await.unwrap();
        let piece = vec![0; 1 << 20];
        let sending = async {
            for _ in 0..64 {
                writing.write_all(&piece).await.unwrap();
            }
            drop(writing);
        };
        tokio::join!(accepted.close(), sending);
        let mut answer = Vec::new();
        reading.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"too long");
    });
}

#[test]
fn a_client_that_drips_holds_a_closing_connection_for_a_bounded_time() {
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let mut client = cluster.client().await;
        let accepted = next_client(&mut near).await;
        let dripping = async {
            while client.write_u8(0).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        };
        let closing = tokio::time::timeout(Duration::from_secs(15), accepted.close());
        tokio::select! {
            biased;
            closed = closing => closed.unwrap(),
            () = dripping => {}
        }
    });
}

/// Two ends of a connection over loopback.
async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let connecting = TcpStream::connect(listener.local_addr().unwrap());
    let (near, far) = tokio::join!(connecting, listener.accept());
    (near.unwrap(), far.unwrap().0)
}

#[test]
fn bytes_of_another_socket_are_sent_in_order_and_its_end_or_silence_is_told() {
    const LEN: usize = 5_000_000;
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let mut client = cluster.client().await;
        let mut accepted = next_client(&mut near).await;
        let (source, mut server) = pair().await;
        let bytes: Vec<u8> = (0..LEN).map(|n| (n * 7 % 251) as u8).collect();
        let mut got = vec![0; 3 + LEN];
        let answering = async {
            server.write_all(&bytes).await.unwrap();
            server.write_all(b"of the next answer").await.unwrap();
        };
        let reading = async {
            // Everything is full before the client begins.
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.read_exact(&mut got).await.unwrap();
        };
        let sending = async {
            accepted.write_more(b"abc").await.unwrap();
            let patience = Duration::from_secs(20);
            let sent = accepted.send_stream(&source, LEN as u64, patience).await;
            assert_eq!(sent.unwrap(), LEN as u64);
        };
        tokio::join!(answering, reading, sending);
        assert_eq!(got[..3], b"abc"[..]);
        assert!(got[3..] == bytes);
        // A pipe that was used before has nothing left in it.
        let silence = Duration::from_millis(50);
        let sent = accepted.send_stream(&source, 18, silence).await.unwrap();
        assert_eq!(sent, 18);
        client.read_exact(&mut got[..18]).await.unwrap();
        assert_eq!(&got[..18], b"of the next answer");
        let silent = accepted.send_stream(&source, 1, silence).await.unwrap_err();
        assert_eq!(silent.kind(), ErrorKind::TimedOut);
        drop(server);
        let ended = accepted.send_stream(&source, 1, silence).await.unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn a_part_of_a_file_is_sent_in_order_and_its_early_end_is_told() {
    const LEN: usize = 20_000_000;
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let mut client = cluster.client().await;
        let mut accepted = next_client(&mut near).await;
        let bytes: Vec<u8> = (0..LEN).map(|n| (n * 7 % 251) as u8).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let len = LEN as u64 - 1000;
        let mut got = vec![0; LEN - 1000];
        let reading = async {
            // The socket is full before the client begins.
            tokio::time::sleep(Duration::from_millis(100)).await;
            client.read_exact(&mut got).await.unwrap();
        };
        let (sent, ()) = tokio::join!(accepted.send_file(&file, 1000, len), reading);
        sent.unwrap();
        assert_eq!(accepted.partial_bytes(), len);
        assert!(got == bytes[1000..]);
        // The position of the file is not used.
        assert_eq!(file.stream_position().unwrap(), LEN as u64);
        let ended = accepted.send_file(&file, LEN as u64 - 3, 4).await;
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::UnexpectedEof);
        let refused = accepted.send_file(&file, u64::MAX - 1, 1).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_relay_stream_carries_requests_and_answers_and_is_used_again() {
    let cluster = Cluster::new();
    run(async {
        let (here, there) = (Arc::default(), Arc::default());
        let near = cluster.node("near", &here).await.handle();
        let mut far = cluster.node("far", &there).await;
        let is_kept = Notify::new();
        let answering = async {
            let (mut stream, peer) = next_relay(&mut far).await;
            assert_eq!(peer, "near");
            for _ in 0..2 {
                stream.fill().await.unwrap();
                let request = stream.buffered().to_vec();
                stream.consume(request.len());
                stream.write(&request).await.unwrap();
                stream.flush().await.unwrap();
            }
            // The asker has kept the stream, and does not expect its end.
            is_kept.notified().await;
            stream.close().await;
        };
        let asking = async {
            for is_second in [false, true] {
                let mut stream = near.relay("far").await.unwrap();
                assert_eq!(stream.was_used(), is_second);
                stream.write(b"request").await.unwrap();
                stream.flush().await.unwrap();
                assert_eq!(stream.fill().await.unwrap(), 7);
                assert_eq!(stream.buffered(), b"request");
                stream.consume(7);
                assert!(stream.is_clean());
                near.keep_relay("far", stream);
            }
            is_kept.notify_one();
            // One that was used before may have been closed by the peer meanwhile.
            let mut stream = near.relay("far").await.unwrap();
            assert!(stream.was_used());
            assert_eq!(stream.fill().await.unwrap(), 0);
        };
        tokio::join!(answering, asking);
        assert!(near.fresh_relay("far").await.is_ok());
    });
}

#[test]
fn a_peer_that_is_unknown_or_dead_is_named() {
    let cluster = Cluster::new();
    run(async {
        let near = cluster.node("near", &Arc::default()).await.handle();
        let unknown = near.relay("nobody").await.err();
        assert!(matches!(unknown, Some(PeerError::Unknown(name)) if name == "nobody"));
        let dead = near.relay("far").await.err();
        assert!(matches!(dead, Some(PeerError::Dial { name, .. }) if name == "far"));
        near.set_peers(&[]);
        let removed = near.relay("far").await.err();
        assert!(matches!(removed, Some(PeerError::Unknown(name)) if name == "far"));
    });
}

#[test]
fn a_node_of_another_authority_is_refused() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    run(async {
        let process = Arc::<Process>::default();
        let _near = cluster.node("near", &process).await;
        let stranger = cluster.config("far", other.pki.path());
        let stranger = Endpoint::bind(stranger, Arc::default()).await.unwrap();
        assert!(stranger.handle().relay("near").await.is_err());
        let counters = &process.counters;
        eventually("refused", || counters.peers_refused.read() > 0).await;
    });
}

#[test]
fn a_client_beyond_the_limit_is_closed_unless_a_newcomer_gives_way() {
    let cluster = Cluster::new();
    run(async {
        let process = Arc::<Process>::default();
        let mut config = cluster.config("near", cluster.pki.path());
        config.clients = Arc::new(ClientLimits::new(ClientBounds {
            connections: 1,
            ..ClientBounds::default()
        }));
        let mut near = Endpoint::bind(config, process.clone()).await.unwrap();
        let mut first = cluster.client().await;
        let mut newcomer = next_client(&mut near).await;
        assert!(newcomer.is_newcomer());
        let mut second = cluster.client().await;
        let evicted = newcomer.fill().await.unwrap_err();
        assert_eq!(evicted.kind(), std::io::ErrorKind::ConnectionAborted);
        drop(newcomer);
        assert!(is_closed(&mut first).await);
        let mut known = next_client(&mut near).await;
        known.caller_is_known();
        assert!(is_closed(&mut cluster.client().await).await);
        known.write_all(b"!").await.unwrap();
        assert_eq!(second.read_u8().await.unwrap(), b'!');
        let counters = &process.counters;
        assert_eq!(counters.unauthenticated_evicted.read(), 1);
        assert_eq!(counters.connections_over_limit.read(), 1);
    });
}

#[test]
fn a_guest_gives_way_while_it_rests_and_an_address_has_its_share() {
    let cluster = Cluster::new();
    run(async {
        let process = Arc::<Process>::default();
        let mut config = cluster.config("near", cluster.pki.path());
        let limits = Arc::new(ClientLimits::new(ClientBounds {
            connections: 2,
            ..ClientBounds::default()
        }));
        config.clients = limits.clone();
        let mut near = Endpoint::bind(config, process.clone()).await.unwrap();
        let (mut one, mut other) = (cluster.client().await, cluster.client().await);
        let mut busy = next_client(&mut near).await;
        let mut resting = next_client(&mut near).await;
        busy.caller_is_admitted();
        resting.caller_is_admitted();
        assert!(!resting.is_newcomer());
        busy.rests();
        resting.rests();
        // Its next request has begun.
        assert!(busy.wakes());
        let mut third = cluster.client().await;
        let evicted = resting.fill().await.unwrap_err();
        assert_eq!(evicted.kind(), std::io::ErrorKind::ConnectionAborted);
        assert!(!resting.wakes());
        drop(resting);
        assert!(is_closed(&mut other).await);
        busy.write_all(b"!").await.unwrap();
        assert_eq!(one.read_u8().await.unwrap(), b'!');
        let mut known = next_client(&mut near).await;
        known.caller_is_admitted();
        known.caller_is_known();
        known.rests();
        // One guest is busy, and the other connection's caller is known.
        assert!(is_closed(&mut cluster.client().await).await);
        known.write_all(b"!").await.unwrap();
        assert_eq!(third.read_u8().await.unwrap(), b'!');
        let counters = &process.counters;
        assert_eq!(counters.guests_evicted.read(), 1);
        assert_eq!(counters.connections_over_limit.read(), 1);

        let share = NewcomerLimits {
            unknown_per_address: 1,
            ..NewcomerLimits::default()
        };
        let bounds = ClientBounds {
            connections: 9,
            newcomers: share,
            ..ClientBounds::default()
        };
        limits.set(bounds.clone());
        assert!(is_closed(&mut cluster.client().await).await);
        assert_eq!(counters.address_over_limit.read(), 1);
        // The address of a proxy stands for many clients.
        limits.set(ClientBounds {
            proxies: vec!["127.0.0.0/8".parse().unwrap()],
            ..bounds.clone()
        });
        let mut of_proxy = cluster.client().await;
        drop(next_client(&mut near).await);
        assert!(is_closed(&mut of_proxy).await);
        assert_eq!(counters.address_over_limit.read(), 1);
        limits.set(bounds);
        drop(busy);
        let mut fourth = cluster.client().await;
        let mut next = next_client(&mut near).await;
        next.write_all(b"!").await.unwrap();
        assert_eq!(fourth.read_u8().await.unwrap(), b'!');
    });
}

/// A header of the PROXY protocol of version 2, with this command and these addresses.
fn header(command: u8, ends: &[u8]) -> Vec<u8> {
    let family = if ends.is_empty() { 0 } else { 0x11 };
    let len = u8::try_from(ends.len()).unwrap();
    let start = b"\r\n\r\n\0\r\nQUIT\n";
    [&start[..], &[command, family, 0, len], ends].concat()
}

#[test]
fn a_proxy_names_its_client_to_whom_the_bounds_apply() {
    let cluster = Cluster::new();
    run(async {
        let process = Arc::<Process>::default();
        let mut config = cluster.config("near", cluster.pki.path());
        config.clients = Arc::new(ClientLimits::new(ClientBounds {
            newcomers: NewcomerLimits {
                per_address: 1,
                ..NewcomerLimits::default()
            },
            proxies: vec!["127.0.0.0/8".parse().unwrap()],
            proxies_send_headers: true,
            ..ClientBounds::default()
        }));
        let mut near = Endpoint::bind(config, process.clone()).await.unwrap();
        let ends = [192, 0, 2, 7, 203, 0, 113, 10, 0x12, 0x67, 0, 80];
        let named = ("192.0.2.7:4711", "203.0.113.10:80");
        let (own, service) = ("127.0.0.1", cluster.service.to_string());
        for (text, client, vip) in [
            (header(0x21, &ends), named.0, named.1),
            (
                b"PROXY TCP4 192.0.2.8 203.0.113.10 4711 80\r\n".to_vec(),
                "192.0.2.8:4711",
                named.1,
            ),
            (
                b"PROXY TCP6 2001:db8::7 2001:db8::1 1 2\r\n".to_vec(),
                "[2001:db8::7]:1",
                "[2001:db8::1]:2",
            ),
            // The proxy's own checks.
            (header(0x20, &[]), own, &service),
            (b"PROXY UNKNOWN\r\n".to_vec(), own, &service),
        ] {
            let mut proxy = cluster.client().await;
            proxy.set_nodelay(true).unwrap();
            let (first, rest) = text.split_at(14);
            proxy.write_all(first).await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
            proxy.write_all(&[rest, b"hello"].concat()).await.unwrap();
            let mut accepted = next_client(&mut near).await;
            let remote = accepted.remote();
            let address = remote.address.to_string();
            assert!(address.starts_with(client), "{address} {client}");
            assert_eq!(remote.service.to_string(), vip);
            assert_eq!(accepted.client(), proxy.local_addr().unwrap());
            accepted.fill().await.unwrap();
            assert_eq!(accepted.buffered(), b"hello");
        }
        let counters = &process.counters;
        let mut first = cluster.client().await;
        first.write_all(&header(0x21, &ends)).await.unwrap();
        let _newcomer = next_client(&mut near).await;
        let mut second = cluster.client().await;
        second.write_all(&header(0x21, &ends)).await.unwrap();
        assert!(is_closed(&mut second).await);
        assert_eq!(counters.address_over_limit.read(), 1);
        for bad in [
            b"GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.7 2001:db8::1 1 2\r\n".to_vec(),
            [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat(),
            header(0x22, &ends),
            header(0x21, &ends[..8]),
        ] {
            let mut proxy = cluster.client().await;
            proxy.write_all(&bad).await.unwrap();
            assert!(is_closed(&mut proxy).await, "{bad:?}");
        }
        assert_eq!(counters.proxy_headers_refused.read(), 5);
    });
}

#[test]
fn a_node_that_ends_accepts_the_clients_that_are_connected_and_no_others() {
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let handle = near.handle();
        let _connected = cluster.client().await;
        handle.leave().await;
        handle.accept_no_more().await;
        drop(next_client(&mut near).await);
        assert!(TcpStream::connect(cluster.service).await.is_err());
        handle.stop();
        assert!(near.next().await.is_none());
    });
}

#[test]
fn an_address_of_another_host_is_an_error() {
    let cluster = Cluster::new();
    run(async {
        let mut config = cluster.config("near", cluster.pki.path());
        config.addresses = vec![IpAddr::from([192, 0, 2, 1])];
        assert!(Endpoint::bind(config, Arc::default()).await.is_err());
    });
}

#[test]
fn a_frontend_of_both_families_knows_where_each_client_came_to() {
    let cluster = Cluster::new();
    run(async {
        let mut config = cluster.config("near", cluster.pki.path());
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, cluster.service.port()));
        config.addresses.push(v6.ip());
        config.services.push(v6);
        let mut near = Endpoint::bind(config, Arc::default()).await.unwrap();
        for service in [cluster.service, v6] {
            let client = TcpStream::connect(service).await.unwrap();
            let connection = next_client(&mut near).await;
            assert_eq!(connection.client(), client.local_addr().unwrap());
            assert_eq!(connection.service(), service);
        }
    });
}

#[test]
fn nodes_without_a_common_family_say_so_and_take_no_connection() {
    let cluster = Cluster::new();
    run(async {
        let mut config = cluster.config("near", cluster.pki.path());
        config.peers[0].addresses = vec![Ipv6Addr::LOCALHOST.into()];
        let near = Endpoint::bind(config, Arc::default()).await.unwrap();
        let handle = near.handle();
        let error = handle.relay("far").await.unwrap_err().to_string();
        assert!(error.contains("far has no address of a family"), "{error}");
        let client = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert!(handle.has_family_of("far", client("[2001:db8::1]:9")));
        assert!(!handle.has_family_of("far", client("192.0.2.1:9")));
        assert!(!handle.has_family_of("none", client("192.0.2.1:9")));
        // Its own host.
        assert!(!handle.has_family_of("far", client("[::1]:9")));
    });
}
