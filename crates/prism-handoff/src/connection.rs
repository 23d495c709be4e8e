//! A client's connection as the application has it. Reads and writes try the socket before they
//! wait (docs/design/handoff.md).

use std::any::Any;
use std::fs::File;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prism_proto::Behaviour;
use prism_proto::control::{FlowKey, Owner, Term};
use prism_proto::steering::CommandOutcome;
use prism_sys::tcp::{Restored, ResumeError};
use rustix::net::SendFlags;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::buffers::Input;
use crate::claims::Claimed;
use crate::client_limits::counted_as;
use crate::control::Control;
use crate::endpoint::Shared;
use crate::first_flight::FirstFlight;
use crate::guests::Guest;
use crate::newcomers::{Leave, Newcomer};
use crate::reading::from_socket;
use crate::records::{Records, not_sealed, seal_file};
use crate::settling::Settling;
use crate::stream::Stream;
use crate::wait_timer::WaitTimer;

/// The largest number of bytes of one `sendfile` call, so that one connection does not occupy a
/// worker.
const SENDFILE_BYTES: usize = 1 << 20;
/// The largest number of bytes that are sealed before they are written.
pub(crate) const SEAL_BYTES: usize = 128 << 10;
/// The time from a client's close_notify to its FIN, with the jitter of a round trip. Afterwards
/// the client may be waiting for our close_notify.
const GOODBYE: Duration = Duration::from_millis(200);
/// The longest silence of a client that a closing connection waits for, and the longest time for
/// which it reads and drops what the client still sends.
const LINGER_SILENCE: Duration = Duration::from_secs(2);
const LINGER: Duration = Duration::from_secs(10);

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

/// A value that an application keeps beside a connection while this is in the process.
pub type Companion = Option<Box<dyn Any>>;

/// All of a connection but its socket.
pub(crate) struct ConnectionState {
    pub(crate) input: Input,
    /// Bytes that an earlier owner has written and no kernel has taken.
    pub(crate) output: Vec<u8>,
    /// The TLS session, if there is one. `output` then holds records.
    pub(crate) tls: Option<Records>,
    pub(crate) flow: FlowKey,
    pub(crate) local: SocketAddr,
    /// The flow's epoch at the switch, after the first command for it.
    pub(crate) epoch: Option<u64>,
    /// The switch has confirmed a command for this connection. Before that, the switch's entry for
    /// its addresses may be a predecessor's.
    pub(crate) confirmed: bool,
    /// The claim to a connection that was accepted here, until it is handed off.
    pub(crate) claimed: Option<Rc<Claimed>>,
    /// The options of the socket, if they are known.
    pub(crate) behaviour: Option<Behaviour>,
    /// When dropped, it ends the task that asks the switch to let packets pass. From then on the
    /// connection's own commands decide.
    pub(crate) settling: Option<Settling>,
    pub(crate) origin: String,
    pub(crate) context: Vec<u8>,
    pub(crate) companion: Companion,
    pub(crate) io_timeout: Duration,
    /// The size of the next read; 0 before the first one.
    pub(crate) read_bytes: usize,
    /// When the first byte since the last read was written.
    pub(crate) wrote_at: Option<Instant>,
    /// The number of moves since input was last consumed.
    pub(crate) moves: u8,
    /// Whether another process of this host may take it. Default yes.
    pub(crate) may_pass: bool,
    /// `Some` until a request on it has been admitted.
    pub(crate) newcomer: Option<Newcomer>,
    /// `Some` if a request of an unknown caller has been admitted.
    pub(crate) guest: Option<Guest>,
    /// Whether a request on it was authenticated.
    pub(crate) is_known: bool,
    /// Whether it counts among the connections that are open here.
    pub(crate) is_counted: bool,
    pub(crate) shared: Rc<Shared>,
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

    /// The client's address.
    pub fn client(&self) -> SocketAddr {
        self.state.flow.client
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
            let address = counted_as(state.flow.client.ip());
            state.guest = Some(state.shared.process.guests.enter(address));
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

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// `TimedOut` if the client took nothing in time; else the socket's error.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes, false).await
    }

    /// [`Self::write_all`] with more bytes to follow at once (`MSG_MORE`), so that a head and its
    /// body leave in one segment.
    ///
    /// # Errors
    /// As for [`Self::write_all`].
    pub async fn write_more(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes, true).await
    }

    /// Sends `len` bytes of `file` from `offset`. Without TLS they are not copied here; with TLS
    /// they are sealed in place.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends first; else as for [`Self::write_all`].
    pub async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        self.flush(true).await?;
        let mut at = offset;
        let end = offset.saturating_add(len);
        if self.is_tls() && !self.enter_kernel(len).await? {
            return self.send_sealed(file, offset, end).await;
        }
        while at < end && (at == offset || self.key_lasts()?) {
            let count = usize::try_from(end - at)
                .unwrap_or(SENDFILE_BYTES)
                .min(SENDFILE_BYTES);
            let sent = self
                .written(|s| prism_sys::sendfile::sendfile(s, file.as_fd(), at, count))
                .await?;
            if sent == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at += sent as u64;
        }
        if self.is_tls() {
            self.state.shared.counters.tls_kernel_bodies.add_one();
        }
        if at < end {
            self.leave_kernel().await?;
            self.send_sealed(file, at, end).await?;
        }
        Ok(())
    }

    async fn send_sealed(&mut self, file: &File, mut at: u64, end: u64) -> io::Result<()> {
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(SEAL_BYTES);
            let count = count.min(SEAL_BYTES);
            let ConnectionState { tls, output, .. } = &mut *self.state;
            let records = tls.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            seal_file(&mut records.session, file, at, count, output)?;
            at += count as u64;
            self.flush(at < end).await?;
        }
        Ok(())
    }

    /// Ends the connection so that the client gets all of the answer. It closes our direction and
    /// waits a bounded time for the client's. The node releases the flow when no packet can leave
    /// the socket any more.
    pub async fn close(mut self) {
        if self.state.output.is_empty() && self.client_has_left().await {
            return;
        }
        let ended = self.end_session().await;
        let stream = ended.and_then(|()| present(&self.stream));
        let Ok(Ok(())) = stream.map(|s| SockRef::from(&s).shutdown(Shutdown::Write)) else {
            return;
        };
        self.state.io_timeout = LINGER_SILENCE;
        let dropping = async {
            loop {
                self.state.give_up_input();
                self.state.read_bytes = 0;
                if !matches!(self.fill().await, Ok(1..)) {
                    return;
                }
            }
        };
        // A reset would take the answer from a client that sends nevertheless.
        let _ = tokio::time::timeout(LINGER, dropping).await;
    }

    /// Ends the TLS session, and writes the rest of the output.
    async fn end_session(&mut self) -> io::Result<()> {
        if self.is_in_kernel() {
            return self.close_by_kernel().await;
        }
        let ConnectionState { tls, output, .. } = &mut *self.state;
        if let Some(records) = tls {
            let sealed = records.session.seal_close_notify(output);
            sealed.map_err(not_sealed)?;
        }
        self.flush(false).await
    }

    /// Whether the client has closed both TLS and TCP. It would answer a close_notify with a reset.
    async fn client_has_left(&mut self) -> bool {
        let Some(records) = &self.state.tls else {
            return false;
        };
        // A client that closes sends its FIN right behind its close_notify.
        self.state.io_timeout = if records.session.read_closed() {
            GOODBYE
        } else {
            Duration::ZERO
        };
        matches!(self.receive().await, Ok(0))
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

    async fn write(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        let sealed = (self.state.tls.as_mut()).map_or(0, Records::take_sealed_bytes);
        let bytes = bytes.get(sealed..).unwrap_or_default();
        self.flush(more || !bytes.is_empty()).await?;
        if !self.is_tls() {
            return self.write_parts(bytes, more).await;
        }
        let by_kernel = self.kernel_goes_on().await?;
        let mut pieces = bytes.chunks(SEAL_BYTES).peekable();
        while let Some(piece) = pieces.next() {
            let more = more || pieces.peek().is_some();
            if by_kernel {
                self.write_parts(piece, more).await?;
                continue;
            }
            let ConnectionState { tls, output, .. } = &mut *self.state;
            let records = tls.as_mut().ok_or(io::ErrorKind::NotConnected)?;
            records.session.seal(piece, output).map_err(not_sealed)?;
            self.flush(more).await?;
        }
        Ok(())
    }

    /// Writes bytes to the socket unchanged.
    async fn write_parts(&mut self, mut bytes: &[u8], more: bool) -> io::Result<()> {
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
                self.state.shared.deferred.run_some();
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
            self.state.shared.on_closed(&self.state);
        }
    }
}

impl ConnectionState {
    /// The time limit of the next read or write.
    pub(crate) fn wait_time(&self) -> Duration {
        let left = self.newcomer.as_ref().map(Newcomer::time_left);
        left.map_or(self.io_timeout, |left| left.min(self.io_timeout))
    }

    /// The flow's epoch at the switch, if a command for it was sent.
    pub(crate) fn steered_epoch(&self) -> Option<u64> {
        let claimed = self.claimed.as_ref().and_then(|claimed| claimed.epoch());
        let settling = self.settling.as_ref().map(Settling::epoch);
        let epoch = claimed.map_or(self.epoch, |(epoch, _)| Some(epoch));
        let epoch = epoch.max(settling)?;
        let control = self.shared.control.as_ref();
        Some(control.map_or(epoch, |control| control.raised(&self.flow, epoch)))
    }

    /// Notes the outcome of a command for this connection.
    pub(crate) fn note(&mut self, control: &Control, outcome: CommandOutcome, here: Owner) {
        if let Some(epoch) = control.note(outcome, here) {
            self.epoch = Some(epoch);
        }
    }

    /// The connection leaves this worker. Returns the last term in which the switch confirmed the
    /// flow.
    pub(crate) fn forget(&self) -> Option<Term> {
        let control = self.shared.control.as_ref()?;
        control.forget(&self.flow, self.steered_epoch()?)
    }

    /// Makes a restored socket live. The kernel's bytes go between those that were read or written
    /// and those that will be.
    pub(crate) fn go_live(&mut self, restored: Restored) -> Result<Stream, ResumeError> {
        let live = restored.go_live()?;
        from_socket(&mut self.tls, &mut self.input).append(&live.input);
        self.output.splice(..0, live.output);
        Ok(live.fd.into())
    }

    /// Ends the claim and the settling, and keeps the epoch that they have reached.
    pub(crate) fn end_claim(&mut self) {
        self.epoch = self.steered_epoch();
        self.settling = None;
        if let Some((_, is_held)) = self.claimed.take().and_then(|claimed| claimed.epoch()) {
            self.confirmed = is_held;
        }
    }

    /// Set when it has to give way.
    pub(crate) fn leave(&self) -> Option<&Arc<Leave>> {
        let newcomer = self.newcomer.as_ref().map(Newcomer::leave);
        newcomer.or_else(|| self.guest.as_ref().map(Guest::leave))
    }

    /// Counts it as open here, or as not open here.
    pub(crate) fn count(&mut self, is_here: bool) {
        let open = &self.shared.counters.connections_open;
        match (self.is_counted, is_here) {
            (false, true) => open.add_one(),
            (true, false) => open.sub_one(),
            _ => {}
        }
        self.is_counted = is_here;
    }
}

impl Drop for ConnectionState {
    fn drop(&mut self) {
        self.forget();
        self.count(false);
        self.give_up_input();
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
