//! Connections on their way from one worker to another, of this process or of its successor: the
//! socket, and a state that any worker can adopt.
//!
//! Not here: how a worker parks and adopts them (`passing`).

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use prism_proto::node::TlsState;
use prism_proto::succession::ConnectionState as Saved;
use tokio::sync::Notify;

/// A client's connection that no worker has.
#[derive(Debug)]
pub struct Parked {
    pub(crate) socket: OwnedFd,
    pub(crate) state: Box<Saved>,
    /// Whether it may be parked again.
    pub(crate) may_pass: bool,
}

/// Why a connection cannot be adopted.
#[derive(Debug, thiserror::Error)]
pub enum AdoptError {
    /// The configuration has another service.
    #[error("{0} is no service of this node")]
    Service(SocketAddr),
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
    pub fn check(&self, services: &[SocketAddr]) -> Result<(), AdoptError> {
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
        self.parked.lock().pop_front()
    }

    /// Has a worker of this process adopt a connection.
    pub fn adopt(&self, parked: Parked) {
        self.arrived.lock().push_back(parked);
        self.has_arrived.notify_one();
    }

    /// Whether no connection is parked.
    pub fn is_empty(&self) -> bool {
        self.parked.lock().is_empty()
    }

    /// Parks a connection.
    pub fn park(&self, parked: Parked) {
        self.parked.lock().push_back(parked);
    }

    /// Whether a connection waits for a worker that adopts it. No worker counts it yet.
    pub fn has_arrivals(&self) -> bool {
        !self.arrived.lock().is_empty()
    }

    /// Takes a connection that no worker has adopted yet.
    pub fn take_arrival(&self) -> Option<Parked> {
        self.arrived.lock().pop_front()
    }

    /// Waits until a connection may have arrived.
    pub(crate) async fn arrival(&self) {
        self.has_arrived.notified().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::net::TcpListener;

    use prism_proto::control::FlowKey;

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
            proxied: None,
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
