//! Connections that carry relayed requests between nodes (docs/protocol.md, section 2.4), over the
//! same record layer as clients' sessions and channels. Here are the waits for the peer, and their
//! bounds; `wire` has the records.

mod wire;

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use prism_proto::facts::Form;
use prism_proto::health::DOUBT_AFTER;
use prism_sys::tcp::TcpInfo;
use prism_tls::MAX_PLAINTEXT_BYTES;
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::buffers::{MAX_BUFFERED_BYTES, Spare};
use crate::node_tls::Secured;
use crate::poll::poll_once;
use crate::silence::{LOOK_EVERY, PeerState, Silence};
use crate::wait_timer::WaitTimer;

use wire::{Wire, WireStep};

/// Sealed bytes from which on they are sent without waiting for more.
const FLUSH_BYTES: usize = 64 << 10;
/// The number of bytes of plaintext between two sends.
const PIECE_BYTES: usize = 8 * MAX_PLAINTEXT_BYTES;
/// The number of bytes of plaintext that are sealed for one [`RelayStream::write_or_fill`].
const STEP_BYTES: usize = 4 * MAX_PLAINTEXT_BYTES;
/// The time limit of reads and writes unless the application sets another.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection between two nodes that carries requests one way and answers the other.
///
/// Its state is boxed, because it changes hands with every request. An idle one holds no buffers.
/// Dropping a future loses nothing: bytes that are sealed leave with the next write.
pub struct RelayStream(Box<Inner>);

struct Inner {
    wire: Wire,
    waits: Waits,
    form: Form,
    /// The bytes that [`RelayStream::write_or_fill`] has sealed and not returned as written.
    sealed_bytes: usize,
    was_used: bool,
}

/// The outcome of [`RelayStream::write_or_fill`].
#[derive(Debug)]
pub enum RelayStep {
    /// As [`RelayStream::fill`] returns it.
    Read(io::Result<usize>),
    /// So many bytes have left, or none will leave any more.
    Written(io::Result<usize>),
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
        let wire = Wire::new(tcp, session, sealed, spare, admitted);
        Self(Box::new(Inner {
            wire,
            waits,
            form,
            sealed_bytes: 0,
            was_used: false,
        }))
    }

    /// The form of the facts of a request that the peer reads.
    #[must_use]
    pub fn form(&self) -> Form {
        self.0.form
    }

    /// Whether it was kept after an earlier use, so that the peer may have closed it meanwhile.
    pub fn was_used(&self) -> bool {
        self.0.was_used
    }

    pub(crate) fn set_used(&mut self) {
        self.0.was_used = true;
    }

    /// Sets the time limit of each read and write.
    pub fn set_io_timeout(&mut self, timeout: Duration) {
        self.0.waits.timeout = timeout;
    }

    /// The bytes that were read and not consumed.
    #[must_use]
    pub fn buffered(&self) -> &[u8] {
        self.0.wire.buffered()
    }

    /// Consumes the first `bytes` of them.
    pub fn consume(&mut self, bytes: usize) {
        self.0.wire.consume(bytes);
    }

    /// Whether nothing is left of an earlier message, in either direction.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.0.wire.is_clean() && self.0.sealed_bytes == 0
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

    /// Writes some of `bytes`, or reads more if `reads` is set, whichever can be done first. A peer
    /// that reads nothing before its own bytes are read does not block. With neither it waits
    /// without end. Dropping the future loses nothing if the next write begins with the same bytes.
    pub async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> RelayStep {
        if bytes.is_empty() {
            return match reads {
                true => RelayStep::Read(self.fill().await),
                false => std::future::pending().await,
            };
        }
        let inner = &mut *self.0;
        if inner.sealed_bytes == 0 {
            let piece = bytes.get(..STEP_BYTES).unwrap_or(bytes);
            if let Err(error) = inner.wire.seal(piece) {
                return RelayStep::Written(Err(error));
            }
            inner.sealed_bytes = piece.len();
            // Mostly the network takes all of it.
            let sent = poll_once(pin!(self.flush())).await;
            if let Poll::Ready(sent) = sent {
                return self.written(sent);
            }
        }
        if !reads || self.buffered().len() >= MAX_BUFFERED_BYTES {
            let sent = self.flush().await;
            return self.written(sent);
        }
        let Inner { wire, waits, .. } = &mut *self.0;
        (waits.may_be_waiting, waits.expects_answer) = (true, true);
        let moving = async { Ok(wire.fill_or_flush().await) };
        match waits.wait(moving, LOOK_EVERY).await {
            Ok(WireStep::Read(filled)) => {
                waits.expects_answer &= filled.is_err();
                RelayStep::Read(filled)
            }
            Ok(WireStep::Sent(sent)) => {
                // The kernel may have taken more since the last look.
                waits.may_be_waiting = true;
                wire.give_back_output();
                self.written(sent)
            }
            Err(error) => RelayStep::Read(Err(error)),
        }
    }

    /// Waits until the peer, which waits for an answer, ends the stream. Behind bytes that are not
    /// consumed no end is seen. Dropping the future loses nothing.
    pub async fn broken(&mut self) -> io::Error {
        while self.buffered().is_empty() {
            match self.fill().await {
                Ok(0) => return io::ErrorKind::ConnectionReset.into(),
                Err(error) if error.kind() != io::ErrorKind::TimedOut => return error,
                _ => {}
            }
        }
        std::future::pending().await
    }

    /// The end of a step whose records have left.
    fn written(&mut self, sent: io::Result<()>) -> RelayStep {
        RelayStep::Written(sent.map(|()| std::mem::take(&mut self.0.sealed_bytes)))
    }

    /// Seals `bytes`, but for those that [`Self::write_or_fill`] has sealed. They leave with later
    /// ones, or with [`Self::flush`].
    ///
    /// # Errors
    /// `TimedOut` if the network takes nothing in time, `HostUnreachable` if the peer is dead; the
    /// session is closed; else the network's error.
    pub async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let sealed_bytes = std::mem::take(&mut self.0.sealed_bytes);
        let bytes = bytes.get(sealed_bytes..).unwrap_or_default();
        let Inner { wire, waits, .. } = &mut *self.0;
        for piece in bytes.chunks(PIECE_BYTES) {
            wire.seal(piece)?;
            if wire.unsent_bytes() >= FLUSH_BYTES {
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
            wire.seal_file(file, at, bytes)?;
            waits.wait_to_send(wire.flush()).await?;
            at += bytes as u64;
        }
        self.flush().await
    }

    /// Ends a stream between two requests with a close_notify: the peer learns that a request which
    /// it has just sent was not read. Dropping a stream sends none.
    pub async fn close(mut self) {
        if self.0.wire.seal_end() {
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
        wire.give_back_output();
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

#[cfg(test)]
#[path = "relay_stream_tests.rs"]
mod tests;
