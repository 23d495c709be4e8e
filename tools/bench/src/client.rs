//! Connections of clients other than `wrk`: over TCP or TLS, from the lab's client host.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use prism_lab::Lab;
use prism_netns::NetNs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, StreamOwned};

/// Longest wait for the next byte of an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Size of a socket's send buffer. It is enough for any link of a lab, and so small that the
/// bytes written are close to the bytes sent.
const SEND_BYTES: usize = 256 << 10;
/// Longest time for which a server may refuse connections after its start.
const START_TIMEOUT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// A TCP or TLS connection.
pub(crate) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// The trusted authority, and the expected name of the server.
#[derive(Clone)]
pub(crate) struct Trust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl Trust {
    /// Trusts the authority of this file for a server of this address. TLS 1.3 with
    /// AES-128-GCM, as in the papers.
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

/// The network namespace of the lab's client host.
pub(crate) fn network(lab: &Lab) -> Result<NetNs> {
    let path = lab.namespace("client")?;
    let name = path.file_name().and_then(|name| name.to_str());
    Ok(NetNs::named(name.context("a namespace without a name")?)?)
}

/// Connects from the network namespace of the calling thread.
pub(crate) fn connect(address: SocketAddr, trust: Option<&Trust>) -> Result<Box<dyn Stream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_send_buffer_size(&stream, SEND_BYTES)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    match trust {
        None => Ok(Box::new(stream)),
        Some(trust) => trust.secure(stream),
    }
}

/// Connects to a server that may have been started just now.
pub(crate) fn connect_to_started(
    address: SocketAddr,
    trust: Option<&Trust>,
) -> Result<Box<dyn Stream>> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        match connect(address, trust) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(PAUSE),
            result => return result.with_context(|| format!("connecting to {address}")),
        }
    }
}
