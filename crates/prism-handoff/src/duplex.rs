//! Both directions of a client's connection at the same time. Without that, a client that sends
//! much before it reads and a server that answers meanwhile wait for each other.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::net::SendFlags;
use tokio::io::Interest;

use crate::buffers::MAX_BUFFERED_BYTES;
use crate::connection::{Connection, present, watched};
use crate::records::{OpenedRecords, SEAL_BYTES, not_sealed};

/// What [`Connection::write_or_fill`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This many bytes were written. 0: only [`Connection::write_all`] can write them now.
    Written(usize),
    /// This many bytes were added to [`Connection::buffered`]; 0 when the client has closed its
    /// direction.
    Read(usize),
}

impl Connection {
    /// Writes some of `bytes`, or reads more if `reads` is set, whichever can be done first. With
    /// neither it waits until the connection breaks. Dropping the future loses nothing if the next
    /// write begins with the same bytes.
    ///
    /// # Errors
    /// As for [`Self::write_all`] and [`Self::fill`].
    pub async fn write_or_fill(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        if bytes.is_empty() {
            return if reads {
                self.fill().await.map(Moved::Read)
            } else {
                Err(self.broken().await)
            };
        }
        if !self.begin_write(bytes)? {
            return Ok(Moved::Written(0));
        }
        let reads = reads && self.buffered().len() < MAX_BUFFERED_BYTES;
        loop {
            if reads && self.is_tls() {
                let found = self.state.open_records();
                if found.is_err() {
                    self.send_alert_by_kernel().await?;
                    self.flush(false).await?;
                }
                match found? {
                    OpenedRecords::Data(0) => {}
                    OpenedRecords::Data(n) => return Ok(Moved::Read(n)),
                    OpenedRecords::End => return Ok(Moved::Read(0)),
                }
            }
            match self.send_or_receive(bytes, reads).await? {
                Moved::Written(sent) => {
                    if let Some(written) = self.note_sent(sent) {
                        return Ok(Moved::Written(written));
                    }
                }
                Moved::Read(n) if n == 0 || !self.is_tls() => return Ok(Moved::Read(n)),
                Moved::Read(_) => {}
            }
        }
    }

    /// Makes the first records of `bytes`, unless that was done before or the kernel does it.
    /// Returns whether a part of `bytes` can leave.
    fn begin_write(&mut self, bytes: &[u8]) -> io::Result<bool> {
        let socket = present(&self.stream)?;
        let state = &mut *self.state;
        let Some(records) = &mut state.tls else {
            return Ok(state.output.is_empty());
        };
        if records.is_in_kernel() {
            return records.kernel_goes_on(socket);
        }
        if records.sealed_bytes == 0 {
            if !state.output.is_empty() {
                return Ok(false);
            }
            let piece = bytes.get(..SEAL_BYTES).unwrap_or(bytes);
            let sealed = records.session.seal(piece, &mut state.output);
            sealed.map_err(not_sealed)?;
            records.sealed_bytes = piece.len();
        }
        Ok(true)
    }

    /// Sends some of the output, or of `bytes` if there is none, or receives once.
    async fn send_or_receive(&mut self, bytes: &[u8], reads: bool) -> io::Result<Moved> {
        let timeout = self.state.wait_time();
        self.state.wrote_at.get_or_insert_with(Instant::now);
        let stream = watched(&mut self.stream)?;
        let state = &mut *self.state;
        let interest = if reads {
            Interest::WRITABLE | Interest::READABLE
        } else {
            Interest::WRITABLE
        };
        let moving = async {
            loop {
                let rest: &[u8] = if state.output.is_empty() {
                    bytes
                } else {
                    &state.output
                };
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                let send = || Ok(rustix::net::send(stream, rest, flags)?);
                match stream.try_io(Interest::WRITABLE, send) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    sent => return sent.map(Moved::Written),
                }
                if reads {
                    match stream.try_io(Interest::READABLE, || state.receive(stream)) {
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                        received => return received.map(|(n, _)| Moved::Read(n)),
                    }
                }
                stream.ready(interest).await?;
            }
        };
        let flight = &mut self.first_flight;
        let timer = &mut self.wait_timer;
        flight.wait(timer, timeout, stream.as_fd(), moving).await
    }

    /// Notes that the socket has taken `sent` bytes. Returns how many of the caller's have left
    /// with them; `None` while a part of their records is left.
    fn note_sent(&mut self, sent: usize) -> Option<usize> {
        let state = &mut *self.state;
        let Some(records) = &mut state.tls else {
            return Some(sent);
        };
        if let Some(kernel) = records.kernel_mut() {
            kernel.took(sent);
            return Some(sent);
        }
        state.output.drain(..sent.min(state.output.len()));
        if !state.output.is_empty() {
            return None;
        }
        // An idle connection keeps no buffer.
        state.output = Vec::new();
        Some(records.take_sealed_bytes())
    }

    /// Waits until the connection is broken. The end of the client's direction is not that.
    async fn broken(&mut self) -> io::Error {
        let waiting = async {
            let stream = watched(&mut self.stream)?;
            stream.ready(Interest::ERROR).await?;
            stream.take_error()
        };
        match waiting.await {
            Ok(Some(error)) | Err(error) => error,
            Ok(None) => io::ErrorKind::ConnectionReset.into(),
        }
    }
}
