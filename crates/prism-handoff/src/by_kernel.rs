//! Connections whose TLS records the kernel makes: when the kernel gets the key, how the connection
//! writes, and how it leaves a socket whose key has to change.
//!
//! The kernel gets the key when the first large body begins, and keeps it until the connection
//! leaves the socket. It can neither change the key nor pass on bytes that are records already. A
//! connection that owes the client a KeyUpdate, or has used its key up, is therefore saved and
//! restored in place, by a hand-off to no peer. It goes on in user space. That takes the switch: a
//! node without one makes its records itself.

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

/// The kernel makes a socket's records from the first body of this length on. Giving it the key
/// takes two calls and several allocations, some tens of microseconds. Encrypting a shorter body
/// takes about as long, so sparing one copy of it would win nothing.
const WORTHWHILE_BYTES: u64 = 256 << 10;
/// The time between two checks whether the kernel has passed its records on.
const SETTLE_STEP: Duration = Duration::from_millis(1);

/// The maker of the next record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealer {
    /// Plain TCP has no records.
    Nobody,
    /// The record layer of `prism-tls`.
    Session,
    Kernel,
}

impl Connection {
    /// The maker of the records of a message that begins now. The connection leaves the kernel's
    /// socket if the kernel's key does not last for the message.
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

    /// Sends a part of a file as far as the kernel makes the records, and returns the offset that
    /// it reached. That is `offset` without the kernel, usually `end`, and less if the key is used
    /// up.
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

    /// Gives the kernel the write key if a body of `len` bytes is worth it. Returns whether the
    /// kernel has the key now.
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
        // Records that are sealed must leave first, because the kernel would seal them again.
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

    /// Moves the connection to a new socket, to which the kernel has no key.
    async fn leave_kernel(&mut self) -> io::Result<()> {
        let shared = self.state.shared.clone();
        let place = shared.connection_without_socket(&self.state);
        // If this future is dropped, the connection is closed, and `self` has no socket.
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

    /// Ends our direction of the session, and waits until TCP has all records. The kernel forgets
    /// the records that it still has when the socket is shut down.
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

    /// Whether TCP has every record: see [`crate::kernel_tx`].
    pub(crate) fn is_settled(&self) -> io::Result<bool> {
        match (&self.state.tls, &self.stream) {
            (Some(records), Some(socket)) => records.is_settled(socket.as_fd()),
            _ => Ok(true),
        }
    }

    /// [`Self::written`] by the kernel's record layer.
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
