//! Connections whose TLS records the kernel makes, from the first large body on: when the kernel
//! gets the key, and how a connection leaves a socket whose key has to change. The rules and their
//! reasons are in docs/design/tls.md.

use std::io;
use std::time::Duration;

use prism_sys::tcp::ktls::send_alert;
use tokio::time::Instant;

use crate::connection::{Connection, present};
use crate::export::renew;
use crate::first_flight::FirstFlight;
use crate::kernel_tx::RECORDS_FOR_PIECE;

/// The kernel makes a socket's records from the first body of this length on. Giving it the key
/// takes two calls and several allocations, some tens of microseconds. Encrypting a shorter body
/// takes about as long, so sparing one copy of it would win nothing.
const WORTHWHILE_BYTES: u64 = 256 << 10;
/// The time between two checks whether the kernel has passed its records on.
const SETTLE_STEP: Duration = Duration::from_millis(1);

impl Connection {
    /// Whether the kernel makes the records of a message that begins now. The connection leaves the
    /// kernel's socket if the kernel's key does not last for the message.
    pub(crate) async fn kernel_goes_on(&mut self) -> io::Result<bool> {
        let Some(records) = (self.state.tls.as_mut()).filter(|tls| tls.is_in_kernel()) else {
            return Ok(false);
        };
        let goes_on = records.kernel_goes_on(present(&self.stream)?)?;
        if !goes_on {
            self.leave_kernel().await?;
        }
        Ok(goes_on)
    }

    /// Whether the kernel's key lasts for the next piece of a body.
    pub(crate) fn key_lasts(&mut self) -> io::Result<bool> {
        let socket = present(&self.stream)?;
        match &mut self.state.tls {
            Some(records) => records.key_lasts(socket, RECORDS_FOR_PIECE),
            None => Ok(true),
        }
    }

    /// Gives the kernel the write key if a body of `len` bytes is worth it. Returns whether the
    /// kernel has the key now.
    pub(crate) async fn enter_kernel(&mut self, len: u64) -> io::Result<bool> {
        if self.is_in_kernel() {
            return Ok(true);
        }
        let worker = self.state.worker.clone();
        let Some(offered) = worker.kernel_tls().filter(|_| len >= WORTHWHILE_BYTES) else {
            return Ok(false);
        };
        let records = self.state.tls.as_mut();
        let Some(records) = records.filter(|tls| tls.may_enter_kernel(offered)) else {
            return Ok(false);
        };
        // Records that are sealed must leave first, because the kernel would seal them again.
        records.seal_control(&mut self.state.output)?;
        self.flush(true).await?;
        let socket = present(&self.stream)?;
        let entered = self.state.tls.as_mut().map(|tls| tls.enter_kernel(socket));
        match entered {
            Some(Ok(())) => worker.counters.tls_kernel_begun.add_one(),
            Some(Err(error)) => {
                tracing::debug!(client = %self.client(), %error, "records are made in user space");
            }
            None => {}
        }
        if self.is_in_kernel() {
            // A socket that is built anew does not have the key.
            self.first_flight = FirstFlight::default();
        }
        Ok(self.is_in_kernel())
    }

    /// Moves the connection to a new socket, to which the kernel has no key.
    pub(crate) async fn leave_kernel(&mut self) -> io::Result<()> {
        // If this future is dropped, the connection is closed, and `self` has no socket.
        match Box::pin(renew(self)).await {
            Err(reason) if self.is_in_kernel() => {
                let error = format!("the kernel keeps a key that has to change: {reason:?}");
                Err(io::Error::other(error))
            }
            Err(_) => {
                self.state.worker.counters.tls_kernel_left.add_one();
                Ok(())
            }
            Ok(_) => Err(io::ErrorKind::NotConnected.into()),
        }
    }

    /// Sends the alert that ends the session, if one is due.
    pub(crate) async fn send_alert_by_kernel(&mut self) -> io::Result<()> {
        let alert = self.state.tls.as_mut().and_then(|tls| tls.alert.take());
        if let Some(alert) = alert {
            self.written(|socket| send_alert(socket, &alert)).await?;
        }
        Ok(())
    }

    /// Ends our direction of the session, and waits until TCP has all records. The kernel forgets
    /// the records that it still has when the socket is shut down.
    pub(crate) async fn close_by_kernel(&mut self) -> io::Result<()> {
        // It fails if our direction is closed already.
        if let Some(records) = &mut self.state.tls
            && let Ok(alert) = records.session.close_notify_by_kernel()
        {
            records.alert = Some(alert);
        }
        self.send_alert_by_kernel().await?;
        let end = Instant::now() + self.state.io_timeout;
        while !self.is_settled()? {
            if Instant::now() >= end {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(SETTLE_STEP).await;
        }
        Ok(())
    }
}
