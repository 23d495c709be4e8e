//! Accepting: clients, with or without TLS, and other nodes.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use prism_sys::listen::{ListenOptions, listen_tcp};
use prism_tls::accept::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};

use super::{Incoming, Shared};
use crate::channel::Channel;
use crate::dial::tune;
use crate::node_tls::{self, Purpose};
use crate::pki::peer_name;
use crate::relay_stream::RelayStream;

/// How long a peer may take for its TLS handshake.
const PEER_HANDSHAKE: Duration = Duration::from_secs(5);
/// Rest after a failed `accept` (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Where clients connect, and how they are spoken to.
pub(super) type ClientListener = (TcpListener, SocketAddr, Option<ServerConfig>);

/// A listener that the other workers' listeners share the address with.
pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let options = ListenOptions {
        nodelay: true,
        ..ListenOptions::default()
    };
    let listener = listen_tcp(address, &options).map_err(io::Error::other)?;
    TcpListener::from_std(listener)
}

impl Shared {
    pub(super) async fn accept_clients(self: Rc<Self>, (listener, service, tls): ClientListener) {
        while self.listening.get() {
            let (stream, client) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            if !self.has_room() {
                self.counters.connections_over_limit.add_one();
                continue;
            }
            self.counters.accepted.add_one();
            // Counted as a connection from here on.
            let rest = self.rest(client, service, service);
            if let Some(tls) = tls.clone() {
                tokio::task::spawn_local(self.clone().secure(stream, rest, tls));
                continue;
            }
            let connection = self.connection(stream, rest);
            if self
                .incoming
                .send(Incoming::Client(connection))
                .await
                .is_err()
            {
                return;
            }
        }
    }

    pub(super) async fn accept_nodes(
        self: Rc<Self>,
        listener: TcpListener,
        config: Arc<rustls::ServerConfig>,
    ) {
        loop {
            let (stream, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a node");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let (shared, config) = (self.clone(), config.clone());
            tokio::task::spawn_local(async move {
                let handshake = shared.admit(stream, &config);
                if let Err(error) = handshake.await {
                    shared.counters.peers_refused.add_one();
                    tracing::warn!(%from, %error, "refused a connection to the node port");
                }
            });
        }
    }

    /// Lets a node in, by its certificate.
    async fn admit(
        self: &Rc<Self>,
        stream: TcpStream,
        config: &Arc<rustls::ServerConfig>,
    ) -> io::Result<()> {
        tune(&stream)?;
        let known = |certificate: &CertificateDer<'_>| {
            let names = self.peers.names();
            peer_name(certificate, names.iter().map(String::as_str))
        };
        let accepting = node_tls::accept(config, stream, known);
        let (secured, purpose, peer) = tokio::time::timeout(PEER_HANDSHAKE, accepting)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let stream = match purpose {
            Purpose::Relay => RelayStream::new(secured, self.spare.clone()),
            Purpose::Channel => {
                let counters = self.counters.clone();
                let (importer, chores) = (Rc::downgrade(self), self.chores.clone());
                let channel = Channel::start(secured, peer, importer, chores, counters);
                self.peers.adopt(&channel);
                return Ok(());
            }
        };
        let incoming = Incoming::Relay { stream, peer };
        self.incoming
            .send(incoming)
            .await
            .map_err(|_| io::ErrorKind::NotConnected.into())
    }
}
