//! TLS handshakes, and mutual TLS between two nodes. At the end of its handshake a session moves
//! from rustls to the record layer that clients' sessions have (docs/design/tls.md).

use std::io;
use std::sync::Arc;

use prism_proto::facts::Form;
use prism_proto::node::{
    ALPN_FORMER_CONTEXT, ALPN_HAND_OFF, ALPN_RELAY, HAND_OFF_VERSIONS, RELAY_VERSIONS,
};
use prism_tls::{Capture, Handshake, HandshakeError, Session};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::peer_shares::Admitted;
use crate::silence::MAX_SILENCE;
use prism_pki::Identity;

/// The largest number of bytes of a handshake: a chain of certificates and little else.
const MAX_HANDSHAKE_BYTES: usize = 128 << 10;
/// The size of one read during a handshake: a full record and a little more.
const READ_BYTES: usize = 17 << 10;

/// A TLS session with a node, and the connection that it lives on.
pub(crate) struct Secured {
    pub(crate) tcp: TcpStream,
    pub(crate) session: Session,
    /// Bytes that were read and not opened.
    pub(crate) sealed: Vec<u8>,
    /// The peer speaks of passes.
    pub(crate) has_passes: bool,
    /// The form of the facts of requests that the peer reads.
    pub(crate) form: Form,
    /// The peer's share of this process has the connection; `None` if this node has dialled it.
    pub(crate) admitted: Option<Admitted>,
}

/// The purpose of a connection between nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Channel,
    Relay,
}

impl Purpose {
    fn versions(self) -> &'static [&'static [u8]] {
        match self {
            Self::Channel => HAND_OFF_VERSIONS,
            Self::Relay => RELAY_VERSIONS,
        }
    }
}

/// Does the handshake of a connection to the node `name`.
pub(crate) async fn connect(
    identity: &Identity,
    purpose: Purpose,
    name: ServerName<'static>,
    mut tcp: TcpStream,
) -> io::Result<Secured> {
    let capture = Capture::default();
    let versions = purpose.versions();
    let mut config = ClientConfig::clone(&identity.present().client);
    config.alpn_protocols = versions.iter().map(|version| version.to_vec()).collect();
    config.key_log = capture.key_log();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let mut handshake = Handshake::new(connection.into(), capture, MAX_HANDSHAKE_BYTES);
    let shaken = shake_hands(&mut tcp, &mut handshake).await;
    shaken.map_err(|error| name_versions(error, versions))?;
    secured(tcp, handshake, purpose)
}

/// Does the handshake of a connection that a node has dialled. `known` names the node by its
/// certificate.
pub(crate) async fn accept(
    identity: &Identity,
    mut tcp: TcpStream,
    known: impl Fn(&CertificateDer<'_>) -> Option<String>,
) -> io::Result<(Secured, Purpose, String)> {
    let capture = Capture::default();
    let mut config = ServerConfig::clone(&identity.present().server);
    // The server's order decides.
    let versions = [HAND_OFF_VERSIONS, RELAY_VERSIONS].concat();
    config.alpn_protocols = versions.iter().map(|version| version.to_vec()).collect();
    config.key_log = capture.key_log();
    let connection = ServerConnection::new(Arc::new(config)).map_err(io::Error::other)?;
    let mut handshake = Handshake::new(connection.into(), capture, MAX_HANDSHAKE_BYTES);
    let shaken = shake_hands(&mut tcp, &mut handshake).await;
    shaken.map_err(|error| name_versions(error, &versions))?;
    let name = (handshake.state().peer_certificates())
        .and_then(|chain| known(chain.first()?))
        .ok_or_else(|| io::Error::other("its certificate names no node of this cluster"))?;
    let purpose = match handshake.state().alpn_protocol() {
        Some(version) if HAND_OFF_VERSIONS.contains(&version) => Purpose::Channel,
        _ => Purpose::Relay,
    };
    let secured = secured(tcp, handshake, purpose)?;
    Ok((secured, purpose, name))
}

/// Names the versions of this node, `ours`, in the error of two nodes that share none: TLS's own
/// error names no version. Any other error stays as it is.
fn name_versions(error: io::Error, ours: &[&[u8]]) -> io::Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(
            HandshakeError::Refused(AlertDescription::NoApplicationProtocol)
            | HandshakeError::Incompatible(rustls::Error::NoApplicationProtocol),
        ) => {
            let ours: Vec<_> = ours.iter().copied().map(String::from_utf8_lossy).collect();
            io::Error::other(format!(
                "it speaks none of this node's versions, {}; its log names its own ones: upgrade \
                 the older one of the two nodes, by way of a release between them",
                ours.join(", ")
            ))
        }
        _ => error,
    }
}

/// Runs a handshake to its end.
pub(crate) async fn shake_hands(tcp: &mut TcpStream, handshake: &mut Handshake) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    let mut read = 0;
    loop {
        let mut output = Vec::new();
        let input = buffer.get(..read).unwrap_or_default();
        let is_over = handshake.receive(input, &mut output);
        let sent = tcp.write_all(&output).await;
        // After an error it does not matter whether the alert arrives.
        if is_over.map_err(io::Error::other)? {
            return sent;
        }
        sent?;
        read = tcp.read(&mut buffer).await?;
        if read == 0 {
            return Err(io::Error::other(HandshakeError::Closed));
        }
    }
}

/// Takes the session out of rustls; the configuration allows that.
fn secured(tcp: TcpStream, handshake: Handshake, purpose: Purpose) -> io::Result<Secured> {
    // A channel breaks if the peer does not acknowledge data, or does not read. A relay stream is
    // read as fast as its client reads (see `silence`).
    if purpose == Purpose::Channel {
        SockRef::from(&tcp).set_tcp_user_timeout(Some(MAX_SILENCE))?;
    }
    let version = handshake.state().alpn_protocol();
    let has_passes = version == Some(ALPN_HAND_OFF) || version == Some(ALPN_FORMER_CONTEXT);
    let form = if version == Some(ALPN_HAND_OFF) || version == Some(ALPN_RELAY) {
        Form::Entries
    } else {
        Form::Former
    };
    let (keys, sealed) = handshake.finish().map_err(io::Error::other)?;
    let session = Session::new(keys).map_err(io::Error::other)?;
    Ok(Secured {
        tcp,
        session,
        sealed,
        has_passes,
        form,
        admitted: None,
    })
}
