//! Connections of our own, where `wrk` does not do: over TCP or TLS, from the host
//! of a lab that clients are on.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prism_lab::Lab;
use prism_sys::netns::NetNs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// No byte of an answer takes this long.
const TIMEOUT: Duration = Duration::from_secs(30);
/// What a socket holds of what was written to it: enough for any link of a lab, and
/// not so much that what was written is far from what has left.
const SEND_BYTES: usize = 256 << 10;
/// How long a server that was just started may refuse connections.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// What a client speaks over.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Who is trusted, and whose name is asked for.
#[derive(Clone)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Trust {
    /// In the authority of this file, for a server of this address, with TLS 1.3 and
    /// AES-128-GCM, as the papers measured.
    pub(crate) fn new(ca_file: &Path, server: IpAddr) -> Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(ca_file)? {
            roots.add(certificate?)?;
        }
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        provider.cipher_suites =
            vec![rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256];
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self {
            config: Arc::new(config),
            name: ServerName::from(server),
        })
    }

    fn secure(&self, mut stream: TcpStream) -> Result<Box<dyn Stream>> {
        let mut session = ClientConnection::new(Arc::clone(&self.config), self.name.clone())?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok(Box::new(StreamOwned::new(session, stream)))
    }
}

/// A connection, and when it was made.
pub(crate) struct Connection {
    pub(crate) stream: Box<dyn Stream>,
    /// The client's.
    pub(crate) port: u16,
    /// The handshake of TCP is over.
    pub(crate) connected: Instant,
    /// So is that of TLS, if there is one.
    pub(crate) secured: Instant,
}

/// The network of the host that clients of `lab` are on.
pub(crate) fn network(lab: &Lab) -> Result<NetNs> {
    let path = lab.namespace("client")?;
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(NetNs::named(name.context("a namespace without a name")?)?)
}

/// Connects from the network of the calling thread.
pub(crate) fn connect(address: SocketAddr, trust: Option<&Trust>) -> Result<Connection> {
    let stream = TcpStream::connect(address)?;
    let connected = Instant::now();
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BYTES)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let port = stream.local_addr()?.port();
    let stream = match trust {
        None => Box::new(stream),
        Some(trust) => trust.secure(stream)?,
    };
    Ok(Connection {
        stream,
        port,
        connected,
        secured: Instant::now(),
    })
}

/// The same of a server that may just have been started.
pub(crate) fn connect_patiently(address: SocketAddr, trust: Option<&Trust>) -> Result<Connection> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match connect(address, trust) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            result => return result.with_context(|| format!("connecting to {address}")),
        }
    }
}
