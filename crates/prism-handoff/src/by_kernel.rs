//! Connections whose TLS records the kernel makes: when it is given the key, how
//! it is spoken to, and how a socket is got rid of whose key has to change.
//!
//! The kernel is given the key of a socket when its first large body begins, and
//! has it until the connection leaves the socket. It cannot change the key, nor let
//! bytes pass that are records already. So a connection that owes the client a
//! KeyUpdate, or has used its key up, is saved and restored in place, by a hand-off
//! to nobody, and goes on in user space. That takes the switch: a node without one
//! makes its records itself.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use prism_sys::sendfile::sendfile;
use prism_sys::tcp::ktls::{ContentType, send_record};
use rustix::net::SendFlags;
use tokio::time::Instant;

use crate::connection::{Connection, SEAL_BYTES, SENDFILE_BYTES};
use crate::export::{Exported, renew};
use crate::kernel_tx::{RECORDS_FOR_MESSAGE, RECORDS_FOR_PIECE};

/// The first body of at least this length has the kernel make a socket's records.
/// To give it the key takes two calls and several allocations, some tens of
/// microseconds with what closing costs, and such a body takes some 100 µs to
/// encrypt: below, there is nothing to be won by sparing one copy of it.
const WORTHWHILE_BYTES: u64 = 256 << 10;
/// How often the kernel is asked whether it has passed its records on.
const SETTLE_STEP: Duration = Duration::from_millis(1);

/// Who makes the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealer {
    /// There are none: plain TCP.
    Nobody,
    /// The record layer of `prism-tls`.
    Session,
    Kernel,
}

impl Connection {
    /// Who makes the records of a message that begins now. Takes the connection
    /// out of the kernel's hands where it could not go on.
    pub(crate) async fn sealer(&mut self) -> io::Result<Sealer> {
        let Some(records) = &mut self.state.tls else {
            return Ok(Sealer::Nobody);
        };
        if !records.is_in_kernel() {
            return Ok(Sealer::Session);
        }
        let socket = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        if records.kernel_goes_on(socket.as_fd(), RECORDS_FOR_MESSAGE)? {
            return Ok(Sealer::Kernel);
        }
        self.leave_kernel().await?;
        Ok(Sealer::Session)
    }

    /// Writes bytes of a message that [`Self::sealer`] gave to the kernel.
    pub(crate) async fn write_by_kernel(&mut self, bytes: &[u8], more: bool) -> io::Result<()> {
        let mut pieces = bytes.chunks(SEAL_BYTES).peekable();
        while let Some(mut piece) = pieces.next() {
            let mut flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            flags.set(SendFlags::MORE, more || pieces.peek().is_some());
            while !piece.is_empty() {
                let sent = self
                    .taken(|s| Ok(rustix::net::send(s, piece, flags)?))
                    .await?;
                piece = piece.get(sent..).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Sends a part of a file, as far as the kernel makes the records, and tells how
    /// far that is: not at all, usually all of it, less where the key is used up.
    pub(crate) async fn send_by_kernel(
        &mut self,
        file: &File,
        offset: u64,
        end: u64,
    ) -> io::Result<u64> {
        if !self.is_in_kernel() && !self.enter_kernel(end.saturating_sub(offset)).await? {
            return Ok(offset);
        }
        let mut at = offset;
        while at < end {
            if at > offset && !self.key_lasts()? {
                self.leave_kernel().await?;
                break;
            }
            let piece_end = end.min(at.saturating_add(SENDFILE_BYTES as u64));
            while at < piece_end {
                let count = usize::try_from(piece_end - at).unwrap_or(SENDFILE_BYTES);
                let sent = self.taken(|s| sendfile(s, file.as_fd(), at, count)).await?;
                if sent == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                at += sent as u64;
            }
        }
        self.state.shared.counters.tls_kernel_bodies.add_one();
        Ok(at)
    }

    pub(crate) fn is_in_kernel(&self) -> bool {
        self.state
            .tls
            .as_ref()
            .is_some_and(|tls| tls.is_in_kernel())
    }

    fn key_lasts(&mut self) -> io::Result<bool> {
        let socket = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        match &mut self.state.tls {
            Some(records) => records.key_lasts(socket.as_fd(), RECORDS_FOR_PIECE),
            None => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Gives the kernel the write key, where it is offered and a body of `len`
    /// bytes makes it worth while. Whether it has it now.
    async fn enter_kernel(&mut self, len: u64) -> io::Result<bool> {
        let shared = self.state.shared.clone();
        let Some(offered) = shared.kernel_tls().filter(|_| len >= WORTHWHILE_BYTES) else {
            return Ok(false);
        };
        let Some(records) = &mut self.state.tls else {
            return Ok(false);
        };
        if !records.may_enter_kernel(offered) {
            return Ok(false);
        }
        // What is sealed already must be in the socket: the kernel would seal it
        // again.
        records.seal_control(&mut self.state.output)?;
        self.flush(true).await?;
        let socket = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let Some(records) = &mut self.state.tls else {
            return Ok(false);
        };
        match records.enter_kernel(socket.as_fd()) {
            Ok(()) => {
                shared.counters.tls_kernel_begun.add_one();
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(client = %self.client(), %error, "records are made in user space");
                Ok(false)
            }
        }
    }

    /// Has the connection in a new socket, to which the kernel has no key.
    async fn leave_kernel(&mut self) -> io::Result<()> {
        let shared = self.state.shared.clone();
        let place = shared.connection_without_socket(&self.state);
        // Dropped half-way, it is closed, and `self` is what has no socket.
        let connection = std::mem::replace(self, place);
        match Box::pin(renew(&shared, connection)).await {
            Exported::Kept { connection, reason } => {
                *self = connection;
                if self.is_in_kernel() {
                    let error = format!("the kernel keeps a key that has to change: {reason:?}");
                    return Err(io::Error::other(error));
                }
                shared.counters.tls_kernel_left.add_one();
                Ok(())
            }
            Exported::Moved | Exported::Lost | Exported::Unknown => {
                Err(io::ErrorKind::NotConnected.into())
            }
        }
    }

    /// Sends the alert that ends the session, if one is due.
    pub(crate) async fn send_alert_by_kernel(&mut self) -> io::Result<()> {
        let alert = self.state.tls.as_mut().and_then(|tls| tls.take_alert());
        if let Some(alert) = alert {
            self.taken(|s| send_record(s, ContentType::Alert, &alert))
                .await?;
        }
        Ok(())
    }

    /// Ends our direction of the session, and waits until TCP has all of it: the
    /// kernel forgets what it still keeps when the socket is shut down.
    pub(crate) async fn close_by_kernel(&mut self) -> io::Result<()> {
        if let Some(records) = &mut self.state.tls {
            records.close_in_kernel();
        }
        self.send_alert_by_kernel().await?;
        self.settle(self.state.io_timeout).await
    }

    /// Waits, for a bounded time, until TCP has been given every record.
    ///
    /// # Errors
    /// `TimedOut`; what the socket says.
    pub(crate) async fn settle(&mut self, timeout: Duration) -> io::Result<()> {
        let end = Instant::now() + timeout;
        while !self.is_settled()? {
            if Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(SETTLE_STEP).await;
        }
        Ok(())
    }

    /// Whether the kernel keeps nothing back: see [`crate::kernel_tx`].
    pub(crate) fn is_settled(&self) -> io::Result<bool> {
        match (&self.state.tls, &self.stream) {
            (Some(records), Some(socket)) => records.is_settled(socket.as_fd()),
            _ => Ok(true),
        }
    }

    /// As `written`, by the kernel's record layer.
    async fn taken(
        &mut self,
        write: impl FnMut(BorrowedFd<'_>) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let taken = self.written(write).await?;
        if let Some(records) = &mut self.state.tls {
            records.kernel_took(taken);
        }
        Ok(taken)
    }
}
