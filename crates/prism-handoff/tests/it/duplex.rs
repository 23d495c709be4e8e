//! Clients that send much before they read, to an application that answers meanwhile; and
//! clients that leave.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use prism_handoff::tls::ServerConfig;
use prism_handoff::{Connection, Endpoint, Moved, TlsService};
use prism_tls::accept::{Certificates, DefaultTimeProvider, Settings};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use socket2::{Domain, SockRef, Socket, Type};

use crate::app::run;
use crate::loopback::{Cluster, free_port, next_client};

/// More than the buffers of both kernels hold.
const LEN: usize = 12 << 20;

fn bytes() -> Vec<u8> {
    (0..LEN).map(|n| (n * 7 % 251) as u8).collect()
}

/// A client whose kernel holds little.
fn connect(address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(32 << 10).unwrap();
    socket.connect(&address.into()).unwrap();
    let stream = TcpStream::from(socket);
    let limit = Some(Duration::from_secs(20));
    stream.set_read_timeout(limit).unwrap();
    stream.set_write_timeout(limit).unwrap();
    stream
}

/// Sends back what comes until the end. Every third wait is given up and begun again.
async fn echo(client: &mut Connection) {
    let (mut waiting, mut sent, mut has_ended) = (Vec::new(), 0, false);
    for call in 0_u64.. {
        let rest = &waiting[sent..];
        if rest.is_empty() && has_ended {
            return;
        }
        let moved = tokio::select! {
            biased;
            moved = client.write_or_fill(rest, !has_ended) => moved.unwrap(),
            () = tokio::task::yield_now(), if call % 3 == 0 => continue,
        };
        match moved {
            Moved::Written(0) => {
                client.write_all(rest).await.unwrap();
                sent = waiting.len();
            }
            Moved::Written(written) => sent += written,
            Moved::Read(0) => has_ended = true,
            Moved::Read(_) => {
                waiting.extend_from_slice(client.buffered());
                client.consume(client.buffered().len());
            }
        }
    }
}

#[test]
fn a_client_may_send_everything_before_it_reads() {
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let address = cluster.service;
        let client = std::thread::spawn(move || {
            let (mut stream, mut got) = (connect(address), Vec::new());
            stream.write_all(&bytes()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            stream.read_to_end(&mut got).unwrap();
            assert!(got == bytes());
        });
        let mut connection = next_client(&mut near).await;
        connection.set_io_timeout(Duration::from_secs(5));
        echo(&mut connection).await;
        connection.close().await;
        client.join().unwrap();
    });
}

#[test]
fn so_may_a_client_with_tls() {
    let cluster = Cluster::new();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(["h".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let certificates = Arc::new(Certificates::load(Vec::new()).unwrap());
    let (chain, pem) = (certificate.pem(), key.serialize_pem());
    let given = certificates.give("h", chain.as_bytes(), pem.as_bytes());
    given.unwrap();
    let clock = Arc::new(DefaultTimeProvider);
    let server = ServerConfig::new(&Settings::default(), certificates, None, clock).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let tls = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    run(async {
        let mut config = cluster.config("near", cluster.pki.path());
        config.tls = Some(TlsService {
            addresses: vec![address],
            server: Some(server),
            kernel: None,
        });
        let mut near = Endpoint::bind(config, Arc::default()).await.unwrap();
        let client = std::thread::spawn(move || {
            let session = ClientConnection::new(Arc::new(tls), "h".try_into().unwrap());
            let mut stream = StreamOwned::new(session.unwrap(), connect(address));
            stream.write_all(&bytes()).unwrap();
            stream.flush().unwrap();
            let mut got = vec![0; LEN];
            stream.read_exact(&mut got).unwrap();
            assert!(got == bytes());
            stream.conn.send_close_notify();
            stream.flush().unwrap();
        });
        let mut connection = next_client(&mut near).await;
        assert!(connection.is_tls());
        connection.set_io_timeout(Duration::from_secs(5));
        echo(&mut connection).await;
        client.join().unwrap();
    });
}

#[test]
fn a_reset_is_noticed_where_nothing_is_moved_and_an_end_in_order_is_not() {
    let cluster = Cluster::new();
    run(async {
        let mut near = cluster.node("near", &Arc::default()).await;
        let client = connect(cluster.service);
        let mut connection = next_client(&mut near).await;
        client.shutdown(Shutdown::Write).unwrap();
        let waiting = connection.write_or_fill(&[], false);
        let waited = tokio::time::timeout(Duration::from_millis(200), waiting).await;
        assert!(waited.is_err(), "{waited:?}");
        let linger = Some(Duration::ZERO);
        SockRef::from(&client).set_linger(linger).unwrap();
        drop(client);
        let waiting = connection.write_or_fill(&[], false);
        let waited = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        let error = waited.unwrap().unwrap_err();
        // So Linux names a reset behind a FIN.
        assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
    });
}
