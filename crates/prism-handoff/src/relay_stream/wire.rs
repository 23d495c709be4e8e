//! The records of a relay stream on their way between the socket and two buffers, in which they are
//! opened and sealed in place.
//!
//! Not here: time limits, and peers that do not answer (`relay_stream`).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use prism_tls::{Event, OpenError, Session};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

use crate::buffers::{MIN_READ_BYTES, Spare, read_once, receive};
use crate::peer_shares::Admitted;
use crate::poll::poll_once;
use crate::records::{not_sealed, seal_file};

/// The size of a read while reads fill their buffer.
const LARGE_READ_BYTES: usize = 4 * MIN_READ_BYTES;

/// The outcome of [`Wire::fill_or_flush`].
pub(super) enum WireStep {
    /// As [`Wire::fill`] returns it.
    Read(io::Result<usize>),
    /// As [`Wire::flush`] returns it.
    Sent(io::Result<()>),
}

/// A connection to a node, its session, and what is on the way.
pub(super) struct Wire {
    pub(super) tcp: Rc<TcpStream>,
    session: Session,
    pub(super) input: Vec<u8>,
    /// The place in `input` of opened bytes that were not consumed.
    plain: Range<usize>,
    /// The place in `input` of the first record that was not opened.
    sealed_start: usize,
    /// A lower bound on the bytes of that record.
    need_bytes: usize,
    /// The last read has filled its buffer.
    reads_much: bool,
    /// The peer will send no more.
    pub(super) ended: bool,
    pub(super) output: Vec<u8>,
    /// The number of its bytes that have left.
    sent_bytes: usize,
    spare: Rc<Spare>,
    _admitted: Option<Admitted>,
}

impl Wire {
    /// A new session, of which the `sealed` bytes were read and not opened.
    pub(super) fn new(
        tcp: Rc<TcpStream>,
        session: Session,
        sealed: Vec<u8>,
        spare: Rc<Spare>,
        admitted: Option<Admitted>,
    ) -> Self {
        Self {
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
        }
    }

    /// The bytes that were read and not consumed.
    pub(super) fn buffered(&self) -> &[u8] {
        self.input.get(self.plain.clone()).unwrap_or_default()
    }

    /// Consumes the first `bytes` of them.
    pub(super) fn consume(&mut self, bytes: usize) {
        let start = self.plain.start.saturating_add(bytes);
        self.plain.start = start.min(self.plain.end);
        self.forget_if_empty();
    }

    /// Whether nothing is left of an earlier message, in either direction.
    pub(super) fn is_clean(&self) -> bool {
        self.input.is_empty() && self.output.is_empty() && !self.ended
    }

    /// The number of sealed bytes that have not left.
    pub(super) fn unsent_bytes(&self) -> usize {
        self.output.len() - self.sent_bytes
    }

    /// Seals `bytes` behind the output.
    pub(super) fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.spare.lend(&mut self.output);
        let sealed = self.session.seal(bytes, &mut self.output);
        sealed.map_err(not_sealed)
    }

    /// Seals `bytes` bytes of `file` from `at` behind the output.
    pub(super) fn seal_file(&mut self, file: &File, at: u64, bytes: usize) -> io::Result<()> {
        self.spare.lend(&mut self.output);
        seal_file(&mut self.session, file, at, bytes, &mut self.output)
    }

    /// Seals the end of the session behind the output. Returns whether it has an end now.
    pub(super) fn seal_end(&mut self) -> bool {
        self.session.seal_close_notify(&mut self.output).is_ok()
    }

    /// Gives back the buffer of an output that has left.
    pub(super) fn give_back_output(&mut self) {
        self.spare.take_back(&mut self.output);
    }

    /// Reads and opens at least one record. Returns the number of bytes of plaintext; 0 at the end
    /// of the session.
    pub(super) async fn fill(&mut self) -> io::Result<usize> {
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

    /// Reads more, or sends the output, whichever is done first.
    pub(super) async fn fill_or_flush(&mut self) -> WireStep {
        loop {
            if let Poll::Ready(filled) = poll_once(pin!(self.fill())).await {
                return WireStep::Read(filled);
            }
            let interest = if self.output.is_empty() {
                Interest::READABLE
            } else {
                Interest::READABLE | Interest::WRITABLE
            };
            if interest.is_writable()
                && let Poll::Ready(sent) = poll_once(pin!(self.flush())).await
            {
                return WireStep::Sent(sent);
            }
            // When the budget of the task is spent, both are pending although the socket is ready.
            consume_budget().await;
            if let Err(error) = self.tcp.ready(interest).await {
                return WireStep::Read(Err(error));
            }
        }
    }

    /// Sends the output.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
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
