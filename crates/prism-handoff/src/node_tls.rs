//! Mutual TLS between two nodes, up to the end of the handshake. The session then moves from rustls
//! to the record layer that clients' sessions have (docs/design/tls.md). rustls must therefore see
//! no byte behind the handshake, and gets one record at a time.

use std::io;
use std::sync::Arc;

use prism_proto::node::ALPN_HAND_OFF;
use prism_tls::{Capture, HEADER_BYTES, MAX_RECORD_BYTES, Session};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::pki::Identity;
use crate::silence::MAX_SILENCE;

/// The largest number of bytes of a handshake: a chain of certificates and little else.
const MAX_HANDSHAKE_BYTES: usize = 128 << 10;

/// A TLS session with a node, and the connection that it lives on.
pub(crate) struct Secured {
    pub(crate) tcp: TcpStream,
    pub(crate) session: Session,
}

/// The purpose of a connection between nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Channel,
    Relay,
}

/// Does the handshake of a connection to the node `name`.
pub(crate) async fn connect(
    identity: &Identity,
    purpose: Purpose,
    name: ServerName<'static>,
    tcp: TcpStream,
) -> io::Result<Secured> {
    let capture = Capture::default();
    let mut config = match purpose {
        Purpose::Channel => ClientConfig::clone(&identity.hand_off),
        Purpose::Relay => ClientConfig::clone(&identity.relay),
    };
    config.key_log = capture.key_log();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let (tcp, connection) = shake_hands(tcp, connection.into()).await?;
    secured(tcp, connection, capture, purpose)
}

/// Does the handshake of a connection that a node has dialled. `known` names the node by its
/// certificate.
pub(crate) async fn accept(
    config: &ServerConfig,
    tcp: TcpStream,
    known: impl Fn(&CertificateDer<'_>) -> Option<String>,
) -> io::Result<(Secured, Purpose, String)> {
    let capture = Capture::default();
    let mut config = config.clone();
    config.key_log = capture.key_log();
    let connection = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
    let (tcp, connection) = shake_hands(tcp, connection.into()).await?;
    let name = (connection.peer_certificates())
        .and_then(|chain| known(chain.first()?))
        .ok_or_else(|| io::Error::other("its certificate names no node of this cluster"))?;
    let purpose = match connection.alpn_protocol() {
        Some(ALPN_HAND_OFF) => Purpose::Channel,
        _ => Purpose::Relay,
    };
    let secured = secured(tcp, connection, capture, purpose)?;
    Ok((secured, purpose, name))
}

/// Runs a handshake to its end, and reads no byte behind it.
async fn shake_hands(
    mut tcp: TcpStream,
    mut connection: Connection,
) -> io::Result<(TcpStream, Connection)> {
    let mut record = Vec::new();
    let mut taken_bytes = 0;
    loop {
        send(&mut tcp, &mut connection).await?;
        if !connection.is_handshaking() {
            return Ok((tcp, connection));
        }
        read_record(&mut tcp, &mut record).await?;
        taken_bytes += record.len();
        if taken_bytes > MAX_HANDSHAKE_BYTES {
            return Err(io::Error::other("the handshake has more than 128 KiB"));
        }
        if let Err(error) = feed(&mut connection, &record) {
            // It does not matter whether the alert arrives.
            let _ = send(&mut tcp, &mut connection).await;
            return Err(error);
        }
    }
}

/// Sends the output of rustls.
async fn send(tcp: &mut TcpStream, connection: &mut Connection) -> io::Result<()> {
    let mut output = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut output)?;
    }
    tcp.write_all(&output).await
}

async fn read_record(tcp: &mut TcpStream, record: &mut Vec<u8>) -> io::Result<()> {
    let mut header = [0; HEADER_BYTES];
    tcp.read_exact(&mut header).await?;
    let [_, _, _, high, low] = header;
    let record_bytes = HEADER_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if record_bytes > MAX_RECORD_BYTES {
        return Err(io::Error::other("it sent no TLS record"));
    }
    record.clear();
    record.extend_from_slice(&header);
    record.resize(record_bytes, 0);
    let body = record.get_mut(HEADER_BYTES..).unwrap_or_default();
    tcp.read_exact(body).await.map(drop)
}

/// Gives rustls one record.
fn feed(connection: &mut Connection, mut record: &[u8]) -> io::Result<()> {
    while !record.is_empty() {
        if connection.read_tls(&mut record)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let state = connection.process_new_packets();
        if state.map_err(io::Error::other)?.peer_has_closed() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

/// Takes the session out of rustls; the configuration allows that.
fn secured(
    tcp: TcpStream,
    connection: Connection,
    capture: Capture,
    purpose: Purpose,
) -> io::Result<Secured> {
    // A channel breaks if the peer does not acknowledge data, or does not read. A relay stream is
    // read as fast as its client reads (see `silence`).
    if purpose == Purpose::Channel {
        SockRef::from(&tcp).set_tcp_user_timeout(Some(MAX_SILENCE))?;
    }
    let keys = capture.session_keys(connection).map_err(io::Error::other)?;
    let session = Session::new(keys).map_err(io::Error::other)?;
    Ok(Secured { tcp, session })
}
