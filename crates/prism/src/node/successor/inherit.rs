//! The successor's side of a take-over.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_handoff::succession::Parked;
use prism_process::Stops;
use prism_proto::succession::{Message, VERSIONS};
use rustix::net::RecvFlags;
use serde::Deserialize;

use super::link::{Link, receive_bytes};
use crate::node::server::Server;

/// The longest wait for the predecessor's next message before it says go. A predecessor with a
/// store first lets its answers end.
const GO_IN: Duration = Duration::from_secs(600);
/// The longest wait for room in the link.
const ROOM_IN: Duration = Duration::from_secs(10);
/// The longest wait for the answer on the admin socket.
const ANSWER_IN: Duration = Duration::from_secs(5);
/// The longest answer on the admin socket.
const MAX_ANSWER_BYTES: usize = 4096;

/// The sockets that a process gets from its predecessor.
#[derive(Debug, Default)]
pub(crate) struct Inheritance {
    pub(in crate::node) listeners: Vec<TcpListener>,
    pub(in crate::node) admin: Option<UnixListener>,
    /// Connections that this very process has parked, because its successor has failed.
    pub(in crate::node) parked: Vec<Parked>,
    /// The signals that this very process follows already, if its successor has failed.
    pub(in crate::node) stops: Option<Stops>,
    /// The link to the predecessor.
    pub(in crate::node) link: Option<Link>,
}

/// The predecessor's answer.
#[derive(Deserialize)]
struct Answer {
    take_over: Option<u8>,
    error: Option<String>,
}

impl Inheritance {
    /// Asks the process with this admin socket for its listeners. Nothing has changed there yet.
    pub(crate) fn ask(admin_socket: &Path) -> anyhow::Result<Self> {
        let link = connect(admin_socket)
            .with_context(|| format!("taking over the node at {}", admin_socket.display()))?;
        let mut inheritance = Self::default();
        loop {
            let received = link.receive_within(GO_IN);
            match received.context("the predecessor's listeners")? {
                (Message::Listener(Some(_)), Some(socket)) => {
                    inheritance.listeners.push(socket.into());
                }
                (Message::Listener(None), Some(socket)) => inheritance.admin = Some(socket.into()),
                (Message::Prepare, _) => break,
                (message, _) => bail!("the predecessor has sent {message:?} too early"),
            }
        }
        inheritance.link = Some(link);
        Ok(inheritance)
    }

    /// Tells the predecessor that the configuration is good, and waits until it has stopped as far
    /// as it has to.
    pub(crate) fn prepared(&self) -> anyhow::Result<()> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        link.send_within(&Message::Prepared, None, ROOM_IN)
            .context("the predecessor has ended or waits no more")?;
        tracing::info!("taking over: waiting for the predecessor");
        match link.receive_within(GO_IN) {
            Ok((Message::Go, _)) => Ok(()),
            Ok((message, _)) => bail!("the predecessor has sent {message:?} instead of Go"),
            Err(error) => Err(error).context("the predecessor goes on itself"),
        }
    }

    /// Tells the predecessor, if there is one, that this process can accept connections.
    ///
    /// # Errors
    /// It has given this process up, and serves on itself.
    pub(crate) fn ready(&self) -> anyhow::Result<()> {
        let Some(link) = &self.link else {
            return Ok(());
        };
        let told = link.send_within(&Message::Ready, None, ROOM_IN);
        told.context("the predecessor goes on itself")
    }

    /// Whether this process starts from nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.admin.is_none()
    }

    /// Takes the listener of this address out, if there is one.
    pub(crate) fn take_listener(&mut self, address: SocketAddr) -> Option<TcpListener> {
        let is_it = |listener: &TcpListener| listener.local_addr().is_ok_and(|at| at == address);
        let at = self.listeners.iter().position(is_it)?;
        Some(self.listeners.swap_remove(at))
    }
}

/// The reason for a refusal on the admin socket. A release before take-over calls it an unknown
/// command.
fn refusal(error: &str) -> &str {
    if error.starts_with("unknown command") {
        "the running process is of a release that cannot be taken over, and goes on; restart \
             the node instead"
    } else {
        error
    }
}

fn connect(admin_socket: &Path) -> anyhow::Result<Link> {
    let mut stream = UnixStream::connect(admin_socket).context("does it run?")?;
    stream.set_read_timeout(Some(ANSWER_IN))?;
    stream.set_write_timeout(Some(ANSWER_IN))?;
    let versions: Vec<_> = VERSIONS.iter().map(ToString::to_string).collect();
    writeln!(stream, "take-over {}", versions.join(" "))?;
    let mut bytes = vec![0; MAX_ANSWER_BYTES];
    let mut len = 0;
    let mut passed = None::<OwnedFd>;
    while !bytes.get(..len).unwrap_or_default().ends_with(b"\n") {
        let room = bytes.get_mut(len..).unwrap_or_default();
        let received = receive_bytes(&stream, room, RecvFlags::empty());
        let (read, socket) = received.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })?;
        passed = passed.or(socket);
        len += read;
        if read == 0 {
            break;
        }
    }
    let answer = bytes.get(..len).unwrap_or_default();
    let answer: Answer = serde_json::from_slice(answer)
        .with_context(|| String::from_utf8_lossy(answer).into_owned())?;
    if let Some(error) = answer.error {
        bail!(refusal(&error).to_owned());
    }
    let version = answer
        .take_over
        .filter(|version| VERSIONS.contains(version));
    match (version, passed) {
        (Some(version), Some(socket)) => Ok(Link::new(socket, version)),
        _ => bail!(
            "the running process has chosen a version of the take-over that is not one of \
             {VERSIONS:?}, which this one speaks; upgrade by way of a release between the two, or \
             restart the node"
        ),
    }
}

/// Takes the predecessor's connections until it has none left.
pub(in crate::node) async fn take_connections(server: &Arc<Server>, link: &Link) {
    let services = server.services();
    let watched = match link.watched() {
        Ok(watched) => watched,
        Err(error) => {
            link.hang_up();
            return tracing::error!(%error, "cannot take the predecessor's connections");
        }
    };
    let mut taken = 0_u64;
    let mut refused = 0_u64;
    loop {
        let (id, state, socket) = match watched.receive().await {
            Ok((Message::Connection { id, state }, Some(socket))) => (id, state, socket),
            Ok((Message::End, _)) => {
                return tracing::info!(taken, refused, "the predecessor has passed everything");
            }
            Ok((message, _)) => {
                link.hang_up();
                return tracing::error!(?message, "the predecessor does not keep to the protocol");
            }
            Err(error) => {
                return tracing::warn!(%error, taken, "the predecessor has ended early");
            }
        };
        let parked = Parked::new(socket, state);
        let checked = parked.check(&services);
        let answer = match &checked {
            Ok(()) => Message::Taken { id },
            Err(_) => Message::Refused { id },
        };
        // Before the socket is touched. If the predecessor does not get it, it goes on with it.
        if let Err(error) = link.send_within(&answer, None, ROOM_IN) {
            return tracing::warn!(%error, "the predecessor does not listen any more");
        }
        match checked {
            Ok(()) => {
                taken += 1;
                server.core.process.parking.adopt(parked);
            }
            Err(error) => {
                refused += 1;
                let client = parked.state().flow.client;
                tracing::warn!(%client, %error, "a connection stays with the predecessor");
            }
        }
    }
}
