//! A client's connection as the application has it, and how it waits for its socket. A write tries
//! the socket before it waits (docs/design/handoff.md).
//!
//! Not here: what is read (`reading`) and written (`writing`), and the end (`closing`).

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use prism_proto::control::FlowKey;
use prism_proto::facts::ClientFacts;
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::connection_state::{Companion, ConnectionState};
use crate::first_flight::FirstFlight;
use crate::guests::Guest;
use crate::records::Records;
use crate::stream::Stream;
use crate::wait_timer::WaitTimer;

/// A live connection with a client.
///
/// Dropping it closes it at once. [`Connection::close`] first makes sure that the client gets the
/// end of an answer.
pub struct Connection {
    pub(crate) stream: Option<Stream>,
    pub(crate) state: Box<ConnectionState>,
    pub(crate) wait_timer: WaitTimer,
    pub(crate) first_flight: FirstFlight,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("client", &self.state.flow.client)
            .field("epoch", &self.state.epoch)
            .field("origin", &self.state.origin)
            .finish_non_exhaustive()
    }
}

impl Connection {
    pub(crate) fn new(stream: impl Into<Stream>, state: Box<ConnectionState>) -> Self {
        Self {
            stream: Some(stream.into()),
            state,
            wait_timer: WaitTimer::default(),
            first_flight: FirstFlight::default(),
        }
    }

    /// The address of the other side: the client's, or that of a proxy before it.
    pub fn client(&self) -> SocketAddr {
        self.state.flow.client
    }

    /// The client, as a proxy has named it that is the other side; else that other side.
    pub fn remote(&self) -> ClientFacts {
        let FlowKey { client, vip } = self.state.flow;
        let named = self.state.proxied.unwrap_or(ClientFacts {
            address: client,
            service: vip,
            is_tls: false,
        });
        ClientFacts {
            is_tls: named.is_tls || self.is_tls(),
            ..named
        }
    }

    /// The address that the client has connected to.
    pub fn service(&self) -> SocketAddr {
        self.state.flow.vip
    }

    /// Whether the client speaks TLS.
    pub fn is_tls(&self) -> bool {
        self.state.tls.is_some()
    }

    /// Name of the node that accepted the connection from the client.
    pub fn origin(&self) -> &str {
        &self.state.origin
    }

    /// When the first byte since the last read was written.
    #[doc(hidden)]
    pub fn wrote_at(&self) -> Option<Instant> {
        self.state.wrote_at
    }

    /// The number of hand-offs since input was last consumed.
    pub fn moves(&self) -> u8 {
        self.state.moves
    }

    /// The context that the exporting application has sent; empty for an accepted connection.
    pub fn context(&self) -> &[u8] {
        &self.state.context
    }

    /// The value that the application keeps beside the connection. It is dropped when the
    /// connection ends or has moved.
    pub fn companion(&mut self) -> &mut Companion {
        &mut self.state.companion
    }

    /// The bytes that were read and not consumed.
    pub fn buffered(&self) -> &[u8] {
        self.state.input.unread()
    }

    /// Consumes the first `n` buffered bytes. Bytes that are not consumed move with a hand-off.
    pub fn consume(&mut self, n: usize) {
        if n > 0 {
            self.state.moves = 0;
        }
        self.state.input.consume(n);
    }

    /// Replaces the first `n` buffered bytes.
    pub fn replace(&mut self, n: usize, bytes: &[u8]) {
        let input = self.state.input.bytes_mut();
        let n = n.min(input.len());
        input.splice(..n, bytes.iter().copied());
    }

    /// A request on it was authenticated, so the connection counts as that of a stranger no more.
    pub fn caller_is_known(&mut self) {
        (self.state.newcomer, self.state.guest) = (None, None);
        self.state.is_known = true;
    }

    /// A request on it was admitted, of whichever caller. If none was authenticated, the connection
    /// gives way to others while it [rests](Self::rests).
    pub fn caller_is_admitted(&mut self) {
        let state = &mut *self.state;
        if !state.is_known && state.guest.is_none() {
            let guests = &state.worker.process.guests;
            state.guest = Some(guests.enter(state.counted_as()));
        }
        state.newcomer = None;
    }

    /// The connection waits for its next request.
    pub fn rests(&self) {
        if let Some(guest) = &self.state.guest {
            guest.rests();
        }
    }

    /// The next request begins. Returns false if the connection has to give way to another one.
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.state.guest.as_ref().is_none_or(Guest::wakes)
    }

    /// Whether a process that takes over this node may take it.
    #[doc(hidden)]
    pub fn may_pass(&self) -> bool {
        self.state.may_pass
    }

    /// Whether no request on it has been signed or admitted yet.
    pub fn is_newcomer(&self) -> bool {
        self.state.newcomer.is_some()
    }

    /// Sets the time limit of each read and write.
    pub fn set_io_timeout(&mut self, timeout: Duration) {
        self.state.io_timeout = timeout;
    }

    /// Sends an acknowledgement that the kernel has delayed. A socket that moves cannot send it
    /// later, and a client with Nagle's algorithm may wait for it before its next small packet.
    pub fn acknowledge(&self) {
        if let Some(stream) = &self.stream {
            // The next use of the connection finds the error.
            let _ = SockRef::from(&stream.as_fd()).set_tcp_quickack(true);
        }
    }

    pub(crate) fn is_in_kernel(&self) -> bool {
        (self.state.tls.as_ref()).is_some_and(|tls| tls.is_in_kernel())
    }

    /// Whether TCP has every record: see [`crate::kernel_tx`].
    pub(crate) fn is_settled(&self) -> io::Result<bool> {
        match (&self.state.tls, &self.stream) {
            (Some(records), Some(socket)) => records.is_settled(socket.as_fd()),
            _ => Ok(true),
        }
    }

    /// Writes `output`, which an earlier owner or the record layer has filled.
    pub(crate) async fn flush(&mut self, more: bool) -> io::Result<()> {
        if self.state.output.is_empty() {
            return Ok(());
        }
        if self.is_in_kernel() {
            // The kernel would seal these records again. No code puts any there.
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut output = std::mem::take(&mut self.state.output);
        self.write_parts(&output, more).await?;
        // The next write fills the same buffer.
        if more {
            output.clear();
            self.state.output = output;
        }
        Ok(())
    }

    /// Writes bytes to the socket unchanged.
    pub(crate) async fn write_parts(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
        let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        flags.set(SendFlags::MORE, more);
        while !bytes.is_empty() {
            let sent = self
                .written(|s| Ok(rustix::net::send(s, bytes, flags)?))
                .await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Calls `write` until it takes something, and waits for the socket in between.
    pub(crate) async fn written(
        &mut self,
        mut write: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        self.state.wrote_at.get_or_insert_with(Instant::now);
        let written = match write(present(&self.stream)?) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.state.worker.deferred.run_some();
                let stream = watched(&mut self.stream)?;
                let waiting = stream.async_io(Interest::WRITABLE, || write(stream.as_fd()));
                let timeout = self.state.wait_time();
                let flight = &mut self.first_flight;
                let timer = &mut self.wait_timer;
                flight.wait(timer, timeout, stream.as_fd(), waiting).await?
            }
            done => done?,
        };
        let kernel = self.state.tls.as_mut().and_then(Records::kernel_mut);
        if let Some(kernel) = kernel {
            kernel.took(written);
        }
        Ok(written)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            drop(stream);
            self.state.on_closed();
        }
    }
}

/// The socket.
pub(crate) fn present(stream: &Option<Stream>) -> io::Result<BorrowedFd<'_>> {
    let stream = stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
    Ok(stream.as_fd())
}

/// The socket, registered with the reactor.
pub(crate) fn watched(stream: &mut Option<Stream>) -> io::Result<&TcpStream> {
    let not_connected = io::ErrorKind::NotConnected;
    let watched = stream.take().ok_or(not_connected)?.watched()?;
    match stream.insert(watched.into()) {
        Stream::Watched(stream) => Ok(stream),
        Stream::Unwatched(_) => Err(not_connected.into()),
    }
}
