//! Connections that pass to another process of this host, or to another set of workers of this
//! process, together with their sockets. The client notices nothing: the socket stays the same.
//!
//! A worker parks a connection that waits for a request. Any worker can adopt a parked one, and
//! claims its flow again, because the switch has it by the run of the worker that parked it.
//!
//! Not here: the way to the other process (`prism`), and its order (`prism_proto::succession`).

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Mutex;

use prism_proto::control::FlowKey;
use prism_proto::newcomers::Bounds;
use prism_proto::node::TlsState;
use prism_proto::succession::ConnectionState as Saved;
use tokio::sync::Notify;

use crate::buffers::Input;
use crate::client_limits::counted_as;
use crate::connection::Connection;
use crate::endpoint::{Handle, Incoming, Shared};
use crate::kernel_tx::KernelTx;
use crate::records::Records;
use prism_common::supervise::locked;

/// A client's connection that no worker has.
#[derive(Debug)]
pub struct Parked {
    socket: OwnedFd,
    state: Box<Saved>,
    may_pass: bool,
}

/// Why a connection cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The configuration has another service.
    #[error("{0} is no service of this node")]
    Service(std::net::SocketAddr),
    /// The TLS session was saved by another version.
    #[error("its TLS session cannot be restored: {0}")]
    Session(String),
    /// The kernel seals the session's records, but there is no session.
    #[error("its state contradicts itself")]
    Contradiction,
}

/// The parked connections of a process, and those that its workers are to adopt.
#[derive(Debug, Default)]
pub struct Parking {
    parked: Mutex<VecDeque<Parked>>,
    arrived: Mutex<VecDeque<Parked>>,
    has_arrived: Notify,
}

impl Parked {
    /// A connection as it came from another process. Its socket is not touched.
    pub fn new(socket: OwnedFd, state: Box<Saved>) -> Self {
        Self {
            socket,
            state,
            may_pass: true,
        }
    }

    /// The other process has refused it: it is not parked again.
    pub fn must_stay(&mut self) {
        self.may_pass = false;
    }

    /// Its state.
    pub fn state(&self) -> &Saved {
        &self.state
    }

    /// Takes it apart, for a message.
    pub fn into_parts(self) -> (OwnedFd, Box<Saved>) {
        (self.socket, self.state)
    }

    /// Checks that a node with these services can adopt it. The socket is not touched.
    ///
    /// # Errors
    /// [`AdoptError`]: the connection has to stay where it is.
    pub fn check(&self, services: &[std::net::SocketAddr]) -> Result<(), AdoptError> {
        let vip = self.state.flow.vip;
        if !services.contains(&vip) {
            return Err(AdoptError::Service(vip));
        }
        if let Some(TlsState { session, .. }) = &self.state.tls {
            let restored = prism_tls::Session::restore(session);
            restored.map_err(|error| AdoptError::Session(error.to_string()))?;
        }
        if self.state.kernel.is_some() && self.state.tls.is_none() {
            Err(AdoptError::Contradiction)
        } else {
            Ok(())
        }
    }
}

impl Parking {
    /// Takes a parked connection.
    pub fn take(&self) -> Option<Parked> {
        locked(&self.parked).pop_front()
    }

    /// Has a worker of this process adopt a connection.
    pub fn adopt(&self, parked: Parked) {
        locked(&self.arrived).push_back(parked);
        self.has_arrived.notify_one();
    }

    /// Whether no connection is parked.
    pub fn is_empty(&self) -> bool {
        locked(&self.parked).is_empty()
    }

    /// Parks a connection.
    pub fn park(&self, parked: Parked) {
        locked(&self.parked).push_back(parked);
    }

    /// Whether a connection waits for a worker that adopts it. No worker counts it yet.
    pub fn has_arrivals(&self) -> bool {
        !locked(&self.arrived).is_empty()
    }

    /// Takes a connection that no worker has adopted yet.
    pub fn take_arrival(&self) -> Option<Parked> {
        locked(&self.arrived).pop_front()
    }
}

impl Handle {
    /// Parks a connection that waits for a request. Returns it if it cannot pass now.
    pub fn park(&self, mut connection: Connection) -> Option<Connection> {
        let is_settled = connection.is_settled().unwrap_or(false);
        let state = &connection.state;
        // A flow that waits for the switch's word gets it first.
        if !state.may_pass || !is_settled || state.settling.is_some() || !small_enough(&connection)
        {
            return Some(connection);
        }
        let shared = &self.shared;
        let saved = save(&mut connection)?;
        let socket = connection.stream.take().and_then(|stream| stream.into_fd());
        connection.state.count(false);
        if let Some(socket) = socket {
            let state = Box::new(saved);
            shared.process.parking.park(Parked::new(socket, state));
        }
        None
    }

    /// Has the listeners of this worker accept nobody, or accept again. Clients and nodes that
    /// connect meanwhile wait in the kernel.
    pub fn pause_accepting(&self, pauses: bool) {
        self.shared.pauses.send_replace(pauses);
    }
}

/// Whether the state of a connection fits into a message, before the session is taken apart.
fn small_enough(connection: &Connection) -> bool {
    let state = &connection.state;
    let sealed = state.tls.as_ref().map(|tls| tls.sealed.unread().to_vec());
    let outline = Saved {
        tls: sealed.map(|sealed| TlsState {
            session: Vec::new().into(),
            sealed,
        }),
        ..outline(connection)
    };
    outline.fits()
}

fn outline(connection: &Connection) -> Saved {
    let state = &connection.state;
    Saved {
        flow: state.flow,
        local: state.local,
        epoch: state.epoch,
        confirmed: state.confirmed,
        since_ns: 0,
        moves: state.moves,
        origin: state.origin.clone(),
        is_newcomer: state.newcomer.is_some(),
        input: state.input.unread().to_vec(),
        output: state.output.clone(),
        tls: None,
        kernel: None,
    }
}

/// Ends the connection's session and claim here. `None` if the session is lost; the connection is
/// then closed.
fn save(connection: &mut Connection) -> Option<Saved> {
    let since_ns = connection.state.claimed.as_ref();
    let since_ns = since_ns.map_or(0, |claimed| claimed.since_ns());
    connection.state.end_claim();
    let records = connection.state.tls.take();
    let mut saved = Saved {
        since_ns,
        ..outline(connection)
    };
    if let Some(records) = records {
        let socket = connection.stream.as_ref()?.as_fd();
        match records.save(socket) {
            Ok((tls, kernel)) => {
                (saved.tls, saved.kernel) = (Some(tls), kernel.map(|kernel| kernel.save()));
            }
            Err(error) => {
                tracing::warn!(%error, client = %saved.flow.client,
                    "cannot save a TLS session; its connection is closed");
                return None;
            }
        }
    }
    Some(saved)
}

impl Shared {
    /// Adopts connections until dropped.
    pub(crate) async fn adopt_arrivals(self: &Rc<Self>) {
        let parking = &self.process.parking;
        loop {
            while let Some(parked) = parking.take_arrival() {
                let client = parked.state.flow.client;
                match self.adopt(parked) {
                    Ok(connection) => {
                        let _ = self.incoming.send(Incoming::Client(connection)).await;
                    }
                    Err(error) => {
                        tracing::error!(%client, %error, "a connection was lost in a take-over");
                    }
                }
                // Other workers take their share.
                tokio::task::yield_now().await;
            }
            parking.has_arrived.notified().await;
        }
    }

    fn adopt(self: &Rc<Self>, parked: Parked) -> std::io::Result<Connection> {
        let Parked {
            socket,
            state: saved,
            may_pass,
        } = parked;
        let saved = *saved;
        let FlowKey { client, vip } = saved.flow;
        let mut records = saved.tls.map(Records::restore).transpose();
        if let (Ok(Some(records)), Some(kernel)) = (&mut records, saved.kernel) {
            records.stay(KernelTx::restore(&kernel), socket.as_fd())?;
        }
        let mut state = self.new_state(client, vip, saved.local);
        state.tls = records.map_err(std::io::Error::other)?;
        (state.input, state.output) = (Input::new(saved.input), saved.output);
        (state.epoch, state.confirmed) = (saved.epoch, saved.confirmed);
        (state.moves, state.origin) = (saved.moves, saved.origin);
        state.may_pass = may_pass;
        if saved.is_newcomer {
            state.newcomer = self.newcomer_again(client);
        }
        self.claim_again(&mut state, saved.since_ns);
        if let Some(closed) = &self.closed_sockets {
            closed.unwatch(saved.local, state.flow);
        }
        Ok(Connection::new(socket, state))
    }

    /// An adopted newcomer has its time again. It enters above all bounds.
    fn newcomer_again(&self, client: std::net::SocketAddr) -> Option<crate::newcomers::Newcomer> {
        let bounds = Bounds {
            per_address: u32::MAX,
            in_all: usize::MAX,
        };
        let timeout = self.config.clients.newcomers().timeout;
        let entered = self
            .process
            .clients
            .enter(counted_as(client.ip()), bounds, timeout);
        entered.map(|newcomer| newcomer.counted(&self.counters))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    /// A connection that came with this saved session.
    fn parked(session: &[u8]) -> (Parked, SocketAddr) {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let vip = socket.local_addr().unwrap();
        let state = Saved {
            flow: FlowKey {
                client: "192.0.2.9:50000".parse().unwrap(),
                vip,
            },
            local: vip,
            epoch: None,
            confirmed: false,
            since_ns: 0,
            moves: 0,
            origin: "fe0".into(),
            is_newcomer: false,
            input: Vec::new(),
            output: Vec::new(),
            tls: Some(TlsState {
                session: session.to_vec().into(),
                sealed: Vec::new(),
            }),
            kernel: None,
        };
        (Parked::new(socket.into(), Box::new(state)), vip)
    }

    #[test]
    fn a_session_of_another_layout_is_refused_before_its_socket_is_touched() {
        let (parked, vip) = parked(b"PTLS\x02\x00\x00\x00");
        let refused = parked.check(&[vip]).unwrap_err().to_string();
        assert!(
            refused.contains("version 2 is unknown here, which has 1"),
            "{refused}"
        );
        let elsewhere = parked.check(&[]).unwrap_err();
        assert!(matches!(elsewhere, AdoptError::Service(at) if at == vip));
    }
}
