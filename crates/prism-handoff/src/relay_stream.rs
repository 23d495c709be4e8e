//! Connections that carry relayed requests between nodes (docs/protocol.md, section
//! 2.4), over the record layer that clients' sessions and channels have: what comes
//! in is opened where it was read, and what goes out is sealed where it leaves from.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::time::Duration;

use prism_sys::tcp::TcpInfo;
use prism_tls::{Event, MAX_PLAINTEXT_BYTES, OpenError, Session};
use rustix::net::{RecvFlags, SendFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::node_tls::Secured;
use crate::probe::{Asked, DOUBT_AFTER};
use crate::reading::{MAX_BUFFERED_BYTES, MIN_READ_BYTES, Spare, receive};
use crate::records::{not_sealed, seal_file};
use crate::silence::{Found, LOOK_EVERY, Silence};
use crate::wait_timer::WaitTimer;

/// Sealed bytes that are sent at once, and do not wait for more.
const FLUSH_BYTES: usize = 64 << 10;
/// Plaintext that is sealed between two writes.
const PIECE_BYTES: usize = 8 * MAX_PLAINTEXT_BYTES;
/// Until somebody sets another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Read at once where much comes.
const LARGE_READ_BYTES: usize = 4 * MIN_READ_BYTES;

/// A connection between two nodes that carries requests one way and answers the other.
///
/// It changes hands with every request, so what is large of it stays in its place; and
/// many wait, so one that does has no buffers. A future that was dropped has lost nothing:
/// what it had sealed leaves with the next write.
pub struct RelayStream(Box<Inner>);

struct Inner {
    wire: Wire,
    waits: Waits,
}

/// How long is waited for the peer.
struct Waits {
    tcp: Rc<TcpStream>,
    timeout: Duration,
    wait_timer: WaitTimer,
    /// Something may not be acknowledged yet.
    may_be_waiting: bool,
    silence: Silence,
    asked: Option<Asked>,
    /// It was asked, and no byte of an answer has come.
    expects_answer: bool,
}

struct Wire {
    tcp: Rc<TcpStream>,
    session: Session,
    input: Vec<u8>,
    /// Where opened bytes lie in it that nobody has consumed.
    plain: Range<usize>,
    /// Where the first record begins that was not opened.
    sealed_start: usize,
    /// Bytes that this record has at least.
    need_bytes: usize,
    /// The last read filled its room.
    reads_much: bool,
    /// The peer will send no more.
    ended: bool,
    output: Vec<u8>,
    /// Bytes of it that have left.
    sent_bytes: usize,
    spare: Rc<Spare>,
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
    /// Most bytes that are sealed before they are sent.
    pub const PIECE_BYTES: usize = PIECE_BYTES;

    /// `asked` is the peer that is to answer here, if one is.
    pub(crate) fn new(secured: Secured, spare: Rc<Spare>, asked: Option<Asked>) -> Self {
        let Secured { tcp, session } = secured;
        let tcp = Rc::new(tcp);
        let waits = Waits {
            tcp: tcp.clone(),
            timeout: DEFAULT_TIMEOUT,
            wait_timer: WaitTimer::default(),
            may_be_waiting: false,
            silence: Silence::default(),
            asked,
            expects_answer: false,
        };
        let wire = Wire {
            tcp,
            session,
            input: Vec::new(),
            plain: 0..0,
            sealed_start: 0,
            need_bytes: 0,
            reads_much: false,
            ended: false,
            output: Vec::new(),
            sent_bytes: 0,
            spare,
        };
        Self(Box::new(Inner { wire, waits }))
    }

    /// Waits at most this long for each read or write to go on.
    pub fn set_io_timeout(&mut self, timeout: Duration) {
        self.0.waits.timeout = timeout;
    }

    /// Bytes that were read and not consumed.
    #[must_use]
    pub fn buffered(&self) -> &[u8] {
        let wire = &self.0.wire;
        wire.input.get(wire.plain.clone()).unwrap_or_default()
    }

    /// Drops the first `bytes` of them.
    pub fn consume(&mut self, bytes: usize) {
        let wire = &mut self.0.wire;
        let start = wire.plain.start.saturating_add(bytes);
        wire.plain.start = start.min(wire.plain.end);
        wire.forget_if_empty();
    }

    /// Nothing is left of an earlier message, in either direction.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        let wire = &self.0.wire;
        wire.input.is_empty() && wire.output.is_empty() && !wire.ended
    }

    /// Reads more; 0 at the end of the stream. May be cancelled without loss.
    ///
    /// # Errors
    /// What the network says, `TimedOut` where nothing comes in time, `InvalidData` for
    /// records that are none, `UnexpectedEof` where the connection ends before the session
    /// does, and `OutOfMemory` when the caller lets more than 256 KiB pile up.
    pub async fn fill(&mut self) -> io::Result<usize> {
        if self.buffered().len() >= MAX_BUFFERED_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let Inner { wire, waits } = &mut *self.0;
        let filled = waits.wait(wire.fill(), Duration::MAX).await;
        waits.expects_answer &= filled.is_err();
        filled
    }

    /// Seals `bytes`. They leave with more, or with [`Self::flush`].
    ///
    /// # Errors
    /// What the network says, `TimedOut` where it takes nothing in time; that the session
    /// is closed.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Inner { wire, waits } = &mut *self.0;
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

    /// Sends what was written, and then `len` bytes of `file` from `offset`, sealed where
    /// they are read to.
    ///
    /// # Errors
    /// As [`Self::write`], and errors of the file system. Up to [`Self::PIECE_BYTES`] are
    /// sealed as a whole before a timeout of the network; [`Self::flush`] then sends the
    /// rest.
    pub async fn send_file(&mut self, file: &File, offset: u64, len: u64) -> io::Result<()> {
        let Inner { wire, waits } = &mut *self.0;
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let bytes = usize::try_from(end - at).map_or(PIECE_BYTES, |n| n.min(PIECE_BYTES));
            let Wire { output, spare, .. } = wire;
            spare.lend(output);
            seal_file(&mut wire.session, file, (at, bytes), output)?;
            waits.wait_to_send(wire.flush()).await?;
            at += bytes as u64;
        }
        self.flush().await
    }

    /// Ends a stream between two requests, and says so: the peer learns that a request which
    /// it has just sent was not read. (A stream that is dropped says nothing.)
    pub async fn close(mut self) {
        let wire = &mut self.0.wire;
        if wire.session.seal_close_notify(&mut wire.output).is_ok() {
            // A courtesy.
            let _ = self.flush().await;
        }
    }

    /// Sends what was written.
    ///
    /// # Errors
    /// What the network says, `TimedOut` where it takes nothing in time.
    pub async fn flush(&mut self) -> io::Result<()> {
        let Inner { wire, waits } = &mut *self.0;
        waits.wait_to_send(wire.flush()).await?;
        wire.spare.take_back(&mut wire.output);
        Ok(())
    }
}

impl Waits {
    async fn wait_to_send(&mut self, work: impl Future<Output = io::Result<()>>) -> io::Result<()> {
        (self.may_be_waiting, self.expects_answer) = (true, true);
        let sent = self.wait(work, LOOK_EVERY).await;
        // The kernel has taken more since the last look.
        self.may_be_waiting = true;
        sent
    }

    /// Waits for `work`, as long as the peer answers. It is looked at again after `next_look`
    /// where all is acknowledged.
    async fn wait<T>(
        &mut self,
        work: impl Future<Output = io::Result<T>>,
        next_look: Duration,
    ) -> io::Result<T> {
        let Self {
            tcp,
            timeout,
            wait_timer,
            may_be_waiting,
            silence,
            asked,
            expects_answer,
        } = self;
        let asked = asked.as_ref().filter(|_| *expects_answer);
        let (first_look, next_look) = match (asked, &may_be_waiting) {
            (Some(_), _) => (DOUBT_AFTER, DOUBT_AFTER),
            (None, true) => (LOOK_EVERY, next_look),
            (None, false) => (Duration::MAX, next_look),
        };
        let look = |begun| {
            if asked.is_some_and(Asked::is_lost) {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let info = TcpInfo::read(tcp.as_fd())?;
            match silence.look(begun, Instant::now(), &info) {
                Found::Nothing => {
                    *may_be_waiting = false;
                    Ok(next_look)
                }
                Found::Waiting => Ok(next_look.min(LOOK_EVERY)),
                Found::Dead => Err(io::ErrorKind::TimedOut.into()),
            }
        };
        wait_timer
            .wait_looking(*timeout, first_look, look, work)
            .await
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
                        // A courtesy.
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

    /// Opens what is there, and returns how many bytes of plaintext that was.
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
                        // Behind what is there already, over the surroundings of records.
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

    /// Reads what is there, or waits for it.
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
            let room_bytes = input.capacity() - input.len();
            let room = rustix::buffer::spare_capacity(input);
            match rustix::net::recv(&*tcp, room, RecvFlags::DONTWAIT) {
                Ok((read, _)) => {
                    filled = read == room_bytes;
                    Ok((read, !filled))
                }
                Err(error) => {
                    if input.is_empty() {
                        spare.take_back(input);
                    }
                    Err(error.into())
                }
            }
        });
        let read = read.await?;
        self.reads_much = filled;
        Ok(read)
    }

    fn move_to_front(&mut self) {
        let input = &mut self.input;
        let (plain_bytes, sealed_bytes) = (self.plain.len(), input.len() - self.sealed_start);
        if self.plain.start > 0 || self.sealed_start > plain_bytes {
            input.copy_within(self.plain.clone(), 0);
            input.copy_within(self.sealed_start.., plain_bytes);
            input.truncate(plain_bytes + sealed_bytes);
            (self.plain, self.sealed_start) = (0..plain_bytes, plain_bytes);
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
