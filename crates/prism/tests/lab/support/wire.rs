//! A stand-in for a node, at either end of the node port.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prism_proto::node::{ALPN_HAND_OFF, ALPN_RELAY, FRAME_PREFIX_BYTES, Frame};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

/// The longest wait for the other end.
const PATIENCE: Duration = Duration::from_secs(8);

/// A TLS connection to or from a node.
pub enum Wire {
    Dialled(Box<rustls::StreamOwned<ClientConnection, TcpStream>>),
    Accepted(Box<rustls::StreamOwned<ServerConnection, TcpStream>>),
}

fn chain(path: &Path) -> Vec<CertificateDer<'static>> {
    let found = CertificateDer::pem_file_iter(path).unwrap();
    found.map(Result::unwrap).collect()
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::aws_lc_rs::default_provider())
}

/// The configuration of a dialler that trusts the cluster's authority: as `who`, with the files
/// of that name in a directory, or without a certificate.
pub fn dialler(authority: &Path, who: Option<(&Path, &str)>, alpn: &[u8]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for root in chain(&authority.join("ca.crt")) {
        roots.add(root).unwrap();
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match who {
        None => config.with_no_client_auth(),
        Some((dir, name)) => {
            let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key"))).unwrap();
            let chain = chain(&dir.join(format!("{name}.crt")));
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// The configuration with which node `name` accepts; it lets everybody in.
pub fn acceptor(dir: &Path, name: &str) -> Arc<ServerConfig> {
    let key = PrivateKeyDer::from_pem_file(dir.join(format!("{name}.key"))).unwrap();
    let chain = chain(&dir.join(format!("{name}.crt")));
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![ALPN_HAND_OFF.to_vec(), ALPN_RELAY.to_vec()];
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

impl Wire {
    /// Dials node `name`. The first read shows whether the node accepts it.
    pub fn dial(address: SocketAddr, name: &str, config: Arc<ClientConfig>) -> io::Result<Self> {
        let mut tcp = TcpStream::connect(address)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        tcp.set_write_timeout(Some(PATIENCE))?;
        let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
        let mut tls = ClientConnection::new(config, name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        let stream = rustls::StreamOwned::new(tls, tcp);
        Ok(Self::Dialled(Box::new(stream)))
    }

    pub fn accept(mut tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(PATIENCE))?;
        let mut tls = ServerConnection::new(config).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut tcp)?;
        }
        let stream = rustls::StreamOwned::new(tls, tcp);
        Ok(Self::Accepted(Box::new(stream)))
    }

    /// The connection carries hand-offs.
    pub fn is_for_hand_offs(&self) -> bool {
        let alpn = match self {
            Self::Dialled(stream) => stream.conn.alpn_protocol(),
            Self::Accepted(stream) => stream.conn.alpn_protocol(),
        };
        alpn == Some(ALPN_HAND_OFF)
    }

    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Dialled(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
            Self::Accepted(stream) => stream.write_all(bytes).and_then(|()| stream.flush()),
        }
    }

    /// Sends an end.
    pub fn end(mut self) {
        match &mut self {
            Self::Dialled(stream) => stream.conn.send_close_notify(),
            Self::Accepted(stream) => stream.conn.send_close_notify(),
        }
        // The other end may be gone.
        let _ = self.send(&[]);
    }

    /// Reads the next bytes. The end is an error.
    pub fn read_some(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let read = match self {
            Self::Dialled(stream) => stream.read(&mut bytes)?,
            Self::Accepted(stream) => stream.read(&mut bytes)?,
        };
        into.extend_from_slice(&bytes[..read]);
        match read {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    fn read_exact(&mut self, bytes: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Dialled(stream) => stream.read_exact(bytes),
            Self::Accepted(stream) => stream.read_exact(bytes),
        }
    }

    /// One raw frame, with its length in front.
    pub fn frame(&mut self) -> io::Result<Vec<u8>> {
        let mut prefix = [0; FRAME_PREFIX_BYTES];
        self.read_exact(&mut prefix)?;
        let len = Frame::announced_len(&prefix).map_err(io::Error::other)?;
        let mut bytes = prefix.to_vec();
        bytes.resize(FRAME_PREFIX_BYTES + len.unwrap_or(0), 0);
        self.read_exact(&mut bytes[FRAME_PREFIX_BYTES..])?;
        Ok(bytes)
    }

    /// One decoded frame.
    pub fn verdict(&mut self) -> io::Result<Frame> {
        let bytes = self.frame()?;
        Frame::decode(&bytes[FRAME_PREFIX_BYTES..]).map_err(io::Error::other)
    }

    /// All bytes until the other end closes.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let read = match self {
            Self::Dialled(stream) => stream.read_to_end(&mut bytes),
            Self::Accepted(stream) => stream.read_to_end(&mut bytes),
        };
        let waited = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        let is_over = read.map_or_else(|error| !waited.contains(&error.kind()), |_| true);
        assert!(is_over, "still open");
        bytes
    }

    /// Checks that the other end closes.
    pub fn assert_ended(&mut self) {
        let ended = self.read_exact(&mut [0]).unwrap_err();
        let waited = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        assert!(!waited.contains(&ended.kind()), "still open: {ended}");
    }
}

/// `body` as a frame.
pub fn framed(body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len()).unwrap().to_be_bytes();
    [&len[..], body].concat()
}
