//! Connections that carry relayed requests between nodes (docs/protocol.md, section 2.4), over the
//! same record layer as clients' sessions and channels. Records are opened and sealed in place.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use prism_proto::facts::Form;
use prism_sys::tcp::TcpInfo;
use prism_tls::{Event, MAX_PLAINTEXT_BYTES, OpenError, Session};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::Instant;

use crate::buffers::{MAX_BUFFERED_BYTES, MIN_READ_BYTES, Spare, read_once, receive};
use crate::health::DOUBT_AFTER;
use crate::node_tls::Secured;
use crate::peer_shares::Admitted;
use crate::poll::poll_once;
use crate::records::{not_sealed, seal_file};
use crate::silence::{LOOK_EVERY, PeerState, Silence};
use crate::wait_timer::WaitTimer;

/// Sealed bytes from which on they are sent without waiting for more.
const FLUSH_BYTES: usize = 64 << 10;
/// The number of bytes of plaintext between two sends.
const PIECE_BYTES: usize = 8 * MAX_PLAINTEXT_BYTES;
/// The time limit of reads and writes unless the application sets another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of a read while reads fill their buffer.
const LARGE_READ_BYTES: usize = 4 * MIN_READ_BYTES;

/// A connection between two nodes that carries requests one way and answers the other.
///
/// Its state is boxed, because it changes hands with every request. An idle one holds no buffers.
/// Dropping a future loses nothing: bytes that are sealed leave with the next write.
pub struct RelayStream(Box<Inner>);

struct Inner {
    wire: Wire,
    waits: Waits,
    form: Form,
}

/// The outcome of [`RelayStream::fill_or_flush`].
#[derive(Debug)]
pub enum RelayStep {
    /// As [`RelayStream::fill`] returns it.
    Read(io::Result<usize>),
    /// As [`RelayStream::flush`] returns it.
    Sent(io::Result<()>),
}

/// Called when an answer takes long. Returns whether the peer, which is to answer requests here, is
/// suspect.
type IsLost = Box<dyn Fn() -> bool>;

/// The bounds of waits for the peer.
struct Waits {
    tcp: Rc<TcpStream>,
    timeout: Duration,
    wait_timer: WaitTimer,
    /// Some bytes may not be acknowledged yet.
    may_be_waiting: bool,
    silence: Silence,
    is_lost: Option<IsLost>,
    /// A request was sent, and no byte of its answer has come.
    expects_answer: bool,
}

struct Wire {
    tcp: Rc<TcpStream>,
    session: Session,
    input: Vec<u8>,
    /// The place in `input` of opened bytes that were not consumed.
    plain: Range<usize>,
    /// The place in `input` of the first record that was not opened.
    sealed_start: usize,
    /// A lower bound on the bytes of that record.
    need_bytes: usize,
    /// The last read has filled its buffer.
    reads_much: bool,
    /// The peer will send no more.
    ended: bool,
    output: Vec<u8>,
    /// The number of its bytes that have left.
    sent_bytes: usize,
    spare: Rc<Spare>,
    _admitted: Option<Admitted>,
}

impl std::fmt::Debug for RelayStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RelayStream")
            .field("tcp", &self.0.wire.tcp)
            .field("ended", &self.0.wire.ended)
            .finish_non_exhaustive()
    }
}

impl RelayStream {
    /// The largest number of bytes that are sealed before they are sent.
    pub const PIECE_BYTES: usize = PIECE_BYTES;

    /// A stream over a new session, with `is_lost` if the peer is to answer requests.
    pub(crate) fn new(secured: Secured, spare: Rc<Spare>, is_lost: Option<IsLost>) -> Self {
        let Secured {
            tcp,
            session,
            sealed,
            form,
            admitted,
            ..
        } = secured;
        let tcp = Rc::new(tcp);
        let waits = Waits {
            tcp: tcp.clone(),
            timeout: DEFAULT_TIMEOUT,
            wait_timer: WaitTimer::default(),
            may_be_waiting: false,
            silence: Silence::default(),
            is_lost,
            expects_answer: false,
        };
        let wire = Wire {
            tcp,
            session,
            input: sealed,
            plain: 0..0,
            sealed_start: 0,
            need_bytes: 0,
            reads_much: false,
            ended: false,
            output: Vec::new(),
            sent_bytes: 0,
            spare,
            _admitted: admitted,
        };
        Self(Box::new(Inner { wire, waits, form }))
    }

    /// The form of the facts of a request that the peer reads.
    #[must_use]
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// Sets the time limit of each read and write.
    pub fn set_io_timeout(&mut self, timeout: Duration) {
        self.0.waits.timeout = timeout;
    }

    /// The bytes that were read and not consumed.
    #[must_use]
    pub fn buffered(&self) -> &[u8] {
        let wire = &self.0.wire;
        wire.input.get(wire.plain.clone()).unwrap_or_default()
    }

    /// Consumes the first `bytes` of them.
    pub fn consume(&mut self, bytes: usize) {
        let wire = &mut self.0.wire;
        let start = wire.plain.start.saturating_add(bytes);
        wire.plain.start = start.min(wire.plain.end);
        wire.forget_if_empty();
    }

    /// Whether nothing is left of an earlier message, in either direction.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let wire = &self.0.wire;
        wire.input.is_empty() && wire.output.is_empty() && !wire.ended
    }

    /// Whether some written bytes have not left.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        !self.0.wire.output.is_empty()
    }

    /// Reads more; returns 0 at the end of the stream. Dropping the future loses nothing.
    ///
    /// # Errors
    /// `TimedOut` if nothing comes in time, `HostUnreachable` if the peer is dead, `InvalidData`
    /// for what is no record, `UnexpectedEof` if the connection ends before the session does,
    /// `OutOfMemory` when more than 256 KiB are unread; else the network's error.
    pub async fn fill(&mut self) -> io::Result<usize> {
        if self.buffered().len() >= MAX_BUFFERED_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let Inner { wire, waits, .. } = &mut *self.0;
        let filled = waits.wait(wire.fill(), Duration::MAX).await;
        waits.expects_answer &= filled.is_err();
        filled
    }

    /// Reads more, or sends the written bytes, whichever is done first. A peer that reads nothing
    /// before its own bytes are read does not block. Dropping the future loses nothing.
    pub async fn fill_or_flush(&mut self) -> RelayStep {
        if self.buffered().len() >= MAX_BUFFERED_BYTES {
            return RelayStep::Read(Err(io::ErrorKind::OutOfMemory.into()));
        }
        let Inner { wire, waits, .. } = &mut *self.0;
        let sends = !wire.output.is_empty();
        waits.may_be_waiting |= sends;
        waits.expects_answer |= sends;
        let next_look = if sends { LOOK_EVERY } else { Duration::MAX };
        let moving = async { Ok(wire.fill_or_flush().await) };
        let moved = waits.wait(moving, next_look).await;
        let moved = moved.unwrap_or_else(|error| RelayStep::Read(Err(error)));
        match &moved {
            RelayStep::Read(filled) => waits.expects_answer &= filled.is_err(),
            RelayStep::Sent(Ok(())) => {
                // The kernel may have taken more since the last look.
                waits.may_be_waiting = true;
                wire.spare.take_back(&mut wire.output);
            }
            RelayStep::Sent(Err(_)) => {}
        }
        moved
    }

    /// Seals `bytes`. They leave with later ones, or with [`Self::flush`].
    ///
    /// # Errors
    /// `TimedOut` if the network takes nothing in time, `HostUnreachable` if the peer is dead; the
    /// session is closed; else the network's error.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Inner { wire, waits, .. } = &mut *self.0;
        for piece in bytes.chunks(PIECE_BYTES) {
            let Wire { output, spare, .. } = wire;
            spare.lend(output);
            wire.session.seal(piece, output).map_err(not_sealed)?;
            if wire.output.len() - wire.sent_bytes >= FLUSH_BYTES {
                waits.wait_to_send(wire.flush()).await?;
            }
        }
        Ok(())
    }

    /// Sends the written bytes, and then `len` bytes of `file` from `offset`, sealed in place.
    ///
    /// # Errors
    /// As for [`Self::write`], and errors of the file system. After a timeout up to
    /// [`Self::PIECE_BYTES`] are sealed and not sent; [`Self::flush`] then sends them.
    pub async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        let Inner { wire, waits, .. } = &mut *self.0;
        let mut at = offset;
        let end = offset.saturating_add(len);
        while at < end {
            let bytes = usize::try_from(end - at).map_or(PIECE_BYTES, |n| n.min(PIECE_BYTES));
            let Wire { output, spare, .. } = wire;
            spare.lend(output);
            seal_file(&mut wire.session, file, at, bytes, output)?;
            waits.wait_to_send(wire.flush()).await?;
            at += bytes as u64;
        }
        self.flush().await
    }

    /// Ends a stream between two requests with a close_notify: the peer learns that a request which
    /// it has just sent was not read. Dropping a stream sends none.
    pub async fn close(mut self) {
        let wire = &mut self.0.wire;
        if wire.session.seal_close_notify(&mut wire.output).is_ok() {
            // It does not matter whether it arrives.
            let _ = self.flush().await;
        }
    }

    /// Sends the written bytes.
    ///
    /// # Errors
    /// `TimedOut` if the network takes nothing in time, `HostUnreachable` if the peer is dead; else
    /// the network's error.
    pub async fn flush(&mut self) -> io::Result<()> {
        let Inner { wire, waits, .. } = &mut *self.0;
        waits.wait_to_send(wire.flush()).await?;
        wire.spare.take_back(&mut wire.output);
        Ok(())
    }
}

impl Waits {
    async fn wait_to_send(&mut self, work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        (self.may_be_waiting, self.expects_answer) = (true, true);
        let sent = self.wait(work, LOOK_EVERY).await;
        // The kernel may have taken more since the last look.
        self.may_be_waiting = true;
        sent
    }

    /// Waits for `work` as long as the peer answers. While all is acknowledged the next look is
    /// after `next_look`.
    async fn wait<T>(
        &mut self,
        work: impl Future<Output = io::Result<T>>,
        next_look: Duration,
    ) -> io::Result<T> {
        let is_lost = self.is_lost.as_ref().filter(|_| self.expects_answer);
        let (first_look, next_look) = match (is_lost, self.may_be_waiting) {
            (Some(_), _) => (DOUBT_AFTER, DOUBT_AFTER),
            (None, true) => (LOOK_EVERY, next_look),
            (None, false) => (Duration::MAX, next_look),
        };
        let look = |begun| {
            if is_lost.is_some_and(|is_lost| is_lost()) {
                return Err(io::ErrorKind::HostUnreachable.into());
            }
            let info = TcpInfo::read(self.tcp.as_fd())?;
            match self.silence.look(begun, Instant::now(), &info) {
                PeerState::Nothing => {
                    self.may_be_waiting = false;
                    Ok(next_look)
                }
                PeerState::Waiting => Ok(next_look.min(LOOK_EVERY)),
                PeerState::Dead => Err(io::ErrorKind::HostUnreachable.into()),
            }
        };
        let timer = &mut self.wait_timer;
        let waiting = timer.wait_looking(self.timeout, first_look, look, work);
        waiting.await
    }
}

impl Wire {
    async fn fill(&mut self) -> io::Result<usize> {
        loop {
            match self.open() {
                Ok(0) if self.ended => return Ok(0),
                Ok(0) => {}
                Ok(bytes) => return Ok(bytes),
                Err(error) => {
                    let alert = self
                        .session
                        .seal_fatal_alert(error.alert(), &mut self.output);
                    if alert.is_ok() {
                        // It does not matter whether it arrives.
                        let _ = self.flush().await;
                    }
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
            if self.receive().await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Opens the complete records, and returns the number of bytes of plaintext.
    fn open(&mut self) -> Result<usize, OpenError> {
        let before = self.plain.len();
        while !self.ended {
            let input = &mut self.input;
            let records = input.get_mut(self.sealed_start..).unwrap_or_default();
            let opened = self.session.open(records)?;
            match opened.event {
                Event::Incomplete { need } => {
                    self.need_bytes = need;
                    break;
                }
                Event::Data(place) => {
                    let place = self.sealed_start + place.start..self.sealed_start + place.end;
                    if self.plain.is_empty() {
                        self.plain = place;
                    } else {
                        // It moves behind the earlier plaintext, over the headers between them.
                        let end = self.plain.end + place.len();
                        input.copy_within(place, self.plain.end);
                        self.plain.end = end;
                    }
                }
                Event::Empty | Event::KeyUpdate => {}
                Event::CloseNotify | Event::Aborted(_) | Event::Discarded => self.ended = true,
            }
            self.sealed_start += opened.consumed;
        }
        self.forget_if_empty();
        Ok(self.plain.len() - before)
    }

    fn forget_if_empty(&mut self) {
        if self.plain.is_empty() && self.sealed_start == self.input.len() {
            self.input.clear();
            self.spare.take_back(&mut self.input);
            (self.plain, self.sealed_start) = (0..0, 0);
        }
    }

    async fn receive(&mut self) -> io::Result<usize> {
        self.move_to_front();
        let Self {
            tcp, input, spare, ..
        } = self;
        let sealed_bytes = input.len() - self.sealed_start;
        let missing_bytes = self.need_bytes.saturating_sub(sealed_bytes).max(1);
        let reads_much = self.reads_much;
        let mut filled = false;
        let read = receive(tcp, || {
            spare.lend(input);
            input.reserve(match (reads_much, input.capacity()) {
                (true, _) => LARGE_READ_BYTES,
                (false, 0) => missing_bytes.max(MIN_READ_BYTES),
                (false, _) => missing_bytes,
            });
            let read = read_once(&*tcp, input);
            if read.is_err() && input.is_empty() {
                spare.take_back(input);
            }
            filled = matches!(read, Ok((_, false)));
            read
        });
        let read = read.await?;
        self.reads_much = filled;
        Ok(read)
    }

    fn move_to_front(&mut self) {
        let input = &mut self.input;
        let plain_bytes = self.plain.len();
        let sealed_bytes = input.len() - self.sealed_start;
        if self.plain.start > 0 || self.sealed_start > plain_bytes {
            input.copy_within(self.plain.clone(), 0);
            input.copy_within(self.sealed_start.., plain_bytes);
            input.truncate(plain_bytes + sealed_bytes);
            (self.plain, self.sealed_start) = (0..plain_bytes, plain_bytes);
        }
    }

    async fn fill_or_flush(&mut self) -> RelayStep {
        loop {
            if let Poll::Ready(filled) = poll_once(pin!(self.fill())).await {
                return RelayStep::Read(filled);
            }
            let interest = if self.output.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            if interest.is_writable()
                && let Poll::Ready(sent) = poll_once(pin!(self.flush())).await
            {
                return RelayStep::Sent(sent);
            }
            // When the budget of the task is spent, both are pending although the socket is ready.
            consume_budget().await;
            if let Err(error) = self.tcp.ready(interest).await {
                return RelayStep::Read(Err(error));
            }
        }
    }

    async fn flush(&mut self) -> io::Result<()> {
        let output = &mut self.output;
        while let Some(rest @ [_, ..]) = output.get(self.sent_bytes..) {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let send = || Ok(rustix::net::send(&*self.tcp, rest, flags)?);
            self.sent_bytes += self.tcp.async_io(Interest::WRITABLE, send).await?;
        }
        output.clear();
        self.sent_bytes = 0;
        Ok(())
    }
}

#[cfg(test)]
#[path = "relay_stream_tests.rs"]
mod tests;
