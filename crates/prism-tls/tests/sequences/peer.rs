//! The client: it gets acts, and replies with their outcome.

use std::io::{Read, Write};
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::default_provider;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::setup::{HOST, Server};

pub(crate) enum Act<'a> {
    /// Bytes from the server.
    Receive(&'a [u8]),
    /// Data for the server.
    Send(&'a [u8]),
    /// A new key. rustls always asks for one in return.
    KeyUpdate { ask: bool },
    /// close_notify.
    Close,
}

#[derive(Default)]
pub(crate) struct Reply {
    /// For the server.
    pub(crate) wire: Vec<u8>,
    /// Data from the server.
    pub(crate) plain: Vec<u8>,
    /// Whether the server's close_notify has come.
    pub(crate) closed: bool,
}

pub(crate) trait Peer {
    fn act(&mut self, act: Act<'_>) -> Reply;
}

pub(crate) struct RustlsPeer {
    connection: ClientConnection,
    closed: bool,
}

impl RustlsPeer {
    pub(crate) fn new(server: &Server, suite: &str) -> Self {
        let mut provider = default_provider();
        provider.cipher_suites.retain(|known| {
            let name = format!("{:?}", known.suite());
            name.replacen("TLS13_", "TLS_", 1) == suite
        });
        let mut roots = RootCertStore::empty();
        roots.add(server.certificate.clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(rustls::ALL_VERSIONS)
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = HOST.try_into().unwrap();
        let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
        connection.set_buffer_limit(None);
        Self {
            connection,
            closed: false,
        }
    }

    fn receive(&mut self, mut wire: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        while !wire.is_empty() {
            let taken = self.connection.read_tls(&mut wire).unwrap();
            let state = self.connection.process_new_packets().unwrap();
            self.closed |= state.peer_has_closed();
            let start = plain.len();
            plain.resize(start + state.plaintext_bytes_to_read(), 0);
            self.connection
                .reader()
                .read_exact(&mut plain[start..])
                .unwrap();
            if taken == 0 {
                break;
            }
        }
        plain
    }
}

impl Peer for RustlsPeer {
    fn act(&mut self, act: Act<'_>) -> Reply {
        let mut reply = Reply::default();
        match act {
            Act::Receive(wire) => reply.plain = self.receive(wire),
            Act::Send(data) => self.connection.writer().write_all(data).unwrap(),
            Act::KeyUpdate { .. } => self.connection.refresh_traffic_keys().unwrap(),
            Act::Close => self.connection.send_close_notify(),
        }
        while self.connection.wants_write() {
            self.connection.write_tls(&mut reply.wire).unwrap();
        }
        reply.closed = self.closed;
        reply
    }
}
