//! Reading from a client's connection.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::RecvFlags;

use crate::buffers::{self, MAX_BUFFERED_BYTES, SPARE_BYTES};
use crate::connection::{Connection, watched};
use crate::connection_state::ConnectionState;
use crate::newcomers::told_to_leave;
use crate::records::OpenedRecords;
use crate::stream::Stream;

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
    pub(crate) async fn receive_by(
        &mut self,
        mut receive: impl FnMut(&mut ConnectionState, BorrowedFd<'_>) -> io::Result<(usize, bool)>,
    ) -> io::Result<usize> {
        let timeout = self.state.wait_time();
        if self.state.wrote_at.take().is_some() {
            // The client has its answer, and its next request is a round trip away.
            self.state.worker.deferred.run_some();
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
