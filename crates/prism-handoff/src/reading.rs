//! Reading from a client's connection.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::RecvFlags;

use crate::buffers::{self, Input, MAX_BUFFERED_BYTES, MIN_READ_BYTES, SPARE_BYTES, read_once};
use crate::connection::{Connection, ConnectionState, watched};
use crate::newcomers::told_to_leave;
use crate::records::{OpenedRecords, Records};
use crate::stream::Stream;

/// The largest size of a read. The size doubles while reads fill it.
const MAX_READ_BYTES: usize = 256 << 10;

impl ConnectionState {
    /// Reads once. Also returns whether the socket is empty now.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<(usize, bool)> {
        let room = self.read_bytes.max(MIN_READ_BYTES);
        let bytes = from_socket(&mut self.tls, &mut self.input).bytes_mut();
        self.shared.spare.lend(bytes);
        bytes.reserve(room);
        let (n, is_empty) = read_once(socket, bytes)?;
        let filled = n >= room;
        self.read_bytes = if filled { room * 2 } else { room }.min(MAX_READ_BYTES);
        Ok((n, is_empty))
    }

    /// Gives back an empty buffer of at most `most` bytes.
    fn give_back(&mut self, most: usize) {
        let bytes = from_socket(&mut self.tls, &mut self.input).bytes_mut();
        if bytes.is_empty() && bytes.capacity() <= most {
            self.shared.spare.take_back(bytes);
        }
    }

    /// Gives back the buffer at the connection's end.
    pub(crate) fn give_up_input(&mut self) {
        let unread = self.input.unread().len();
        self.input.consume(unread);
        self.give_back(usize::MAX);
    }

    /// Opens the records that were received.
    pub(crate) fn open_records(&mut self) -> io::Result<OpenedRecords> {
        let Some(records) = &mut self.tls else {
            return Ok(OpenedRecords::Data(0));
        };
        let input = self.input.bytes_mut();
        let enough = input.len() + MAX_READ_BYTES;
        let found = records.open(input, enough, &mut self.output)?;
        records.seal_control(&mut self.output)?;
        Ok(found)
    }
}

/// The buffer for the socket's bytes.
pub(crate) fn from_socket<'s>(tls: &'s mut Option<Records>, input: &'s mut Input) -> &'s mut Input {
    match tls {
        Some(records) => &mut records.sealed,
        None => input,
    }
}

impl Connection {
    /// Reads more. Returns the number of bytes that were added to [`Self::buffered`]; 0 when the
    /// client has closed its direction.
    ///
    /// # Errors
    /// `TimedOut` when nothing came in time; `OutOfMemory` when more than 256 KiB are unread;
    /// `ConnectionAborted` when the connection has to give way to another one; else the socket's
    /// error.
    pub async fn fill(&mut self) -> io::Result<usize> {
        if self.buffered().len() >= MAX_BUFFERED_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if self.state.tls.is_none() {
            return self.receive().await;
        }
        loop {
            let found = self.state.open_records();
            // Sends an answer of the record layer, or an alert.
            self.send_alert_by_kernel().await?;
            self.flush(false).await?;
            match found? {
                OpenedRecords::End => return Ok(0),
                OpenedRecords::Data(0) => {}
                OpenedRecords::Data(n) => return Ok(n),
            }
            // The stream ends without close_notify; HTTP knows where a message ends.
            if self.receive().await? == 0 {
                return Ok(0);
            }
        }
    }

    /// Gives back the read buffer of a connection that expects nothing for now.
    pub fn release_buffer(&mut self) {
        if self.buffered().is_empty() {
            self.state.give_back(usize::MAX);
            self.state.read_bytes = 0;
        }
    }

    /// Moves buffered bytes to `room`, which is not empty, or reads into it directly. Returns the
    /// number of bytes; 0 when the client has closed its direction. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// As for [`Self::fill`].
    pub async fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.buffered().is_empty() {
            if self.state.tls.is_none() {
                let receive = |_: &mut ConnectionState, socket: BorrowedFd<'_>| {
                    let (n, _) = rustix::net::recv(socket, &mut *room, RecvFlags::DONTWAIT)?;
                    Ok((n, n < room.len()))
                };
                return self.receive_by(receive).await;
            }
            if self.fill().await? == 0 {
                return Ok(0);
            }
        }
        let read = self.buffered().read(room)?;
        self.consume(read);
        Ok(read)
    }

    /// Reads from the socket, and waits for it.
    pub(crate) async fn receive(&mut self) -> io::Result<usize> {
        self.receive_by(|state, socket| state.receive(socket)).await
    }

    /// Reads from the socket by `receive`, which also returns whether the socket is empty now.
    async fn receive_by(
        &mut self,
        mut receive: impl FnMut(&mut ConnectionState, BorrowedFd<'_>) -> io::Result<(usize, bool)>,
    ) -> io::Result<usize> {
        let timeout = self.state.wait_time();
        if self.state.wrote_at.take().is_some() {
            // The client has its answer, and its next request is a round trip away.
            self.state.shared.deferred.run_some();
        }
        // The reactor knows whether a socket that it watches has bytes.
        let is_watched = matches!(self.stream, Some(Stream::Watched(_)));
        if let Some(socket) = &self.stream
            && (!is_watched || timeout.is_zero())
        {
            match receive(&mut self.state, socket.as_fd()) {
                // A timer of the runtime would take a millisecond.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && timeout.is_zero() => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done.map(|(n, _)| n),
            }
        }
        let has_to_leave = told_to_leave(self.state.leave());
        let stream = watched(&mut self.stream)?;
        let state = &mut self.state;
        // A connection keeps a buffer that bodies have made larger.
        state.give_back(SPARE_BYTES);
        let waiting = buffers::receive(stream, || receive(state, stream.as_fd()));
        let flight = &mut self.first_flight;
        let timer = &mut self.wait_timer;
        let waiting = flight.wait(timer, timeout, stream.as_fd(), waiting);
        tokio::select! {
            biased;
            () = has_to_leave => Err(io::ErrorKind::ConnectionAborted.into()),
            received = waiting => received,
        }
    }
}
