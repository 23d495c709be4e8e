//! Accepting: clients, with or without TLS, and other nodes.

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_proto::newcomers::Bounds;
use prism_tls::accept::ServerConfig;
use rustls::pki_types::CertificateDer;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use crate::client_limits::counted_as;
use crate::client_tls::secure;
use crate::config::longest_segment_bytes;
use crate::connection::Connection;
use crate::connection_state::ConnectionState;
use crate::dial::tune;
use crate::incoming::Incoming;
use crate::lifecycle::{Lifecycle, WorkerPhase};
use crate::newcomers::{Newcomer, told_to_leave};
use crate::node_tls::{self, Purpose};
use crate::peers::Peers;
use crate::proxied::read_header;
use crate::relay_stream::RelayStream;
use crate::worker::Worker;
use prism_pki::{Identity, peer_name};

/// The time limit of a peer's TLS handshake.
const PEER_HANDSHAKE: Duration = Duration::from_secs(5);
/// Bounds on handshakes at the node port of a process. A node that starts dials a few times for
/// each of its workers. A handshake takes milliseconds and some 50 KiB.
const HANDSHAKE_BOUNDS: Bounds = Bounds {
    per_address: 256,
    in_all: 1024,
};
/// The pause after a failed `accept` (no descriptors left, say).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The accepting part of one worker.
pub(super) struct Acceptor {
    pub(super) worker: Rc<Worker>,
    pub(super) peers: Rc<Peers>,
    pub(super) lifecycle: Rc<Lifecycle>,
    pub(super) incoming: mpsc::Sender<Incoming>,
}

/// A listener for clients.
pub(super) struct ClientListener {
    listener: Arc<TcpListener>,
    service: SocketAddr,
    tls: Option<ServerConfig>,
}

impl ClientListener {
    /// The listeners of one worker for a service.
    fn open(
        worker: &Worker,
        service: SocketAddr,
        tls: Option<ServerConfig>,
    ) -> io::Result<Vec<Self>> {
        let segment_bytes = longest_segment_bytes(worker.config.tunnel_mtu_bytes, service);
        let listeners = &worker.process.listeners;
        let opened = listeners.open(service, segment_bytes)?.into_iter();
        let clients = opened.map(|listener| Self {
            listener,
            service,
            tls: tls.clone(),
        });
        Ok(clients.collect())
    }
}

/// Resolves when the worker's listeners accept.
async fn accepting(pauses: &mut watch::Receiver<bool>) {
    // Never an error, because the worker has the sender.
    let _ = pauses.wait_for(|pauses| !pauses).await;
}

/// Resolves when the worker's listeners pause.
async fn pausing(pauses: &mut watch::Receiver<bool>) {
    let _ = pauses.wait_for(|pauses| *pauses).await;
}

/// The next client. At the last look only those count that wait already. The kernel knows them
/// before the reactor does, and says `WouldBlock` behind the last one.
async fn next_client(
    listener: &TcpListener,
    is_last_look: bool,
) -> io::Result<(TcpStream, SocketAddr)> {
    if !is_last_look {
        return listener.accept().await;
    }
    let (socket, client) = SockRef::from(listener).accept()?;
    socket.set_nonblocking(true)?;
    let client = client.as_socket().ok_or(io::ErrorKind::InvalidData)?;
    Ok((TcpStream::from_std(socket.into())?, client))
}

impl Acceptor {
    /// The listeners for clients, if the worker accepts any.
    pub(super) fn client_listeners(&self) -> io::Result<Vec<ClientListener>> {
        let worker = &self.worker;
        let config = &worker.config;
        let mut clients = Vec::new();
        if !config.listen {
            return Ok(clients);
        }
        for service in &config.services {
            clients.extend(ClientListener::open(worker, *service, None)?);
        }
        if let Some(tls) = &config.tls {
            for service in &tls.addresses {
                clients.extend(ClientListener::open(worker, *service, tls.server.clone())?);
            }
        }
        Ok(clients)
    }

    pub(super) async fn accept_clients(self: &Rc<Self>, open: &ClientListener) {
        let mut phase = self.lifecycle.phase.subscribe();
        let mut is_deaf = false;
        let mut pauses = self.lifecycle.pauses.subscribe();
        let mut starts = self.lifecycle.pauses.subscribe();
        loop {
            if *pauses.borrow() {
                // Clients that wait are the successor's.
                tokio::select! {
                    () = accepting(&mut starts) => continue,
                    _ = phase.wait_for(|phase| *phase >= WorkerPhase::Deaf) => return,
                }
            }
            let accepted = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= WorkerPhase::Deaf), if !is_deaf => {
                    is_deaf = true;
                    continue;
                }
                () = pausing(&mut pauses), if !is_deaf => continue,
                accepted = next_client(&open.listener, is_deaf) => accepted,
            };
            let (stream, client) = match accepted {
                Ok(accepted) => accepted,
                Err(error) if is_deaf && error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Some(newcomer) = self.let_enter(client) else {
                continue;
            };
            self.worker.counters.accepted.add_one();
            // The connection counts as open from here on.
            let mut state = ConnectionState::new(&self.worker, client, open.service, open.service);
            state.newcomer = Some(newcomer);
            state.claim();
            if self.worker.config.clients.sends_header(client.ip()) {
                let proxied = self.clone().accept_proxied(stream, state, open.tls.clone());
                tokio::task::spawn_local(proxied);
                continue;
            }
            if let Some(tls) = open.tls.clone() {
                tokio::task::spawn_local(secure(stream, state, tls, self.incoming.clone()));
                continue;
            }
            let client = Incoming::Client(Connection::new(stream, state));
            if self.incoming.send(client).await.is_err() {
                return;
            }
        }
    }

    /// Accepts the connection of a proxy that names its client. The bounds of that client apply
    /// from then on.
    async fn accept_proxied(
        self: Rc<Self>,
        mut stream: TcpStream,
        mut state: Box<ConnectionState>,
        tls: Option<ServerConfig>,
    ) {
        let read = tokio::select! {
            read = read_header(&mut stream) => read,
            () = told_to_leave(state.leave()) => Err(io::ErrorKind::ConnectionAborted.into()),
        };
        match read {
            Ok(None) => {}
            Ok(Some(client)) => {
                state.newcomer = self.enter(client.address);
                state.proxied = Some(client);
            }
            Err(error) => {
                self.worker.counters.proxy_headers_refused.add_one();
                let proxy = state.flow.client;
                self.refused(proxy, &error, "refused connections of proxies");
                state.newcomer = None;
            }
        }
        if state.newcomer.is_none() {
            drop(stream);
            return state.on_closed();
        }
        match tls {
            Some(tls) => secure(stream, state, tls, self.incoming.clone()).await,
            None => {
                let client = Incoming::Client(Connection::new(stream, state));
                // Never an error while the worker runs.
                let _ = self.incoming.send(client).await;
            }
        }
    }

    /// Lets one more client enter, if the bounds for its address allow it.
    fn enter(&self, client: SocketAddr) -> Option<Newcomer> {
        let counters = &self.worker.counters;
        let process = &self.worker.process;
        let limits = self.worker.config.clients.newcomers_of(client.ip());
        let address = counted_as(client.ip());
        let left = limits.unknown_per_address;
        let left = left.saturating_sub(process.guests.of_address(address));
        let bounds = Bounds {
            per_address: limits.per_address.min(left),
            in_all: usize::MAX,
        };
        let Some(newcomer) = process.clients.enter(address, bounds, limits.timeout) else {
            counters.address_over_limit.add_one();
            return None;
        };
        Some(newcomer.counted(counters))
    }

    /// The same, and makes room for it: the oldest newcomer gives way, else the guest that has
    /// rested longest.
    fn let_enter(&self, client: SocketAddr) -> Option<Newcomer> {
        let counters = &self.worker.counters;
        let process = &self.worker.process;
        let newcomer = self.enter(client)?;
        if !self.worker.has_room() {
            if process.clients.oldest_gives_way_to(&newcomer) {
                counters.unauthenticated_evicted.add_one();
            } else if process.guests.longest_rest_leaves() {
                counters.guests_evicted.add_one();
            } else {
                counters.connections_over_limit.add_one();
                return None;
            }
        }
        Some(newcomer)
    }

    pub(super) async fn accept_nodes(self: &Rc<Self>, listener: &TcpListener, identity: &Identity) {
        let mut pauses = self.lifecycle.pauses.subscribe();
        let mut starts = self.lifecycle.pauses.subscribe();
        loop {
            accepting(&mut starts).await;
            let accepted = tokio::select! {
                biased;
                () = pausing(&mut pauses) => continue,
                accepted = listener.accept() => accepted,
            };
            let (stream, from) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection of a node; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let handshakes = &self.worker.process.handshakes;
            let entered = handshakes.enter(from.ip(), HANDSHAKE_BOUNDS, PEER_HANDSHAKE);
            let Some(newcomer) = entered else {
                self.refused_node(from, &"too many handshakes from its address");
                continue;
            };
            let acceptor = self.clone();
            let identity = identity.clone();
            tokio::task::spawn_local(async move {
                let handshake = acceptor.admit(stream, &identity, newcomer);
                if let Err(error) = handshake.await {
                    acceptor.refused_node(from, &error);
                }
            });
        }
    }

    /// Counts a refused connection to the node port.
    fn refused_node(&self, from: SocketAddr, why: &dyn std::fmt::Display) {
        self.worker.counters.peers_refused.add_one();
        self.refused(from, why, "refused connections to the node port");
    }

    /// Logs some of the refused connections.
    fn refused(&self, from: SocketAddr, why: &dyn std::fmt::Display, what: &str) {
        let mut refusals = self.worker.process.refusals.lock();
        if let Some(times) = refusals.count_event(Instant::now()) {
            tracing::warn!(%from, error = %why, times, "{what}");
        }
    }

    /// Admits a node by its certificate.
    async fn admit(
        &self,
        stream: TcpStream,
        identity: &Identity,
        newcomer: Newcomer,
    ) -> io::Result<()> {
        tune(&stream)?;
        let known = |certificate: &CertificateDer<'_>| {
            let names = self.peers.names();
            peer_name(certificate, names.iter().map(String::as_str))
        };
        let accepting = node_tls::accept(identity, stream, known);
        let (mut secured, purpose, peer) = tokio::select! {
            accepted = tokio::time::timeout(newcomer.time_left(), accepting) => {
                accepted.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??
            }
            () = told_to_leave(Some(newcomer.leave())) => {
                let why = "it gave way to other handshakes, because too many are under way";
                return Err(io::Error::other(why));
            }
        };
        drop(newcomer);
        let shares = &self.worker.process.peer_shares;
        let clients = &self.worker.config.clients;
        let admitted = shares.admit(&peer, clients.connections());
        let too_many = || io::Error::other(format!("{peer} has too many connections open"));
        secured.admitted = Some(admitted.ok_or_else(too_many)?);
        self.peers.reached(&peer);
        if purpose == Purpose::Channel {
            let channel = self.peers.adopt(secured, peer);
            if self.lifecycle.is_leaving() {
                tokio::task::spawn_local(async move { channel.announce_leaving().await });
            }
            return Ok(());
        }
        let stream = RelayStream::new(secured, self.worker.spare.clone(), None);
        let sent = self.incoming.send(Incoming::Relay { stream, peer });
        sent.await.map_err(|_| io::ErrorKind::NotConnected.into())
    }
}
