//! The write side in the kernel (kTLS), which takes it over and gives it back. This module
//! has the values for `setsockopt(SOL_TLS, TLS_TX)`; the caller makes the call.
//!
//! While the kernel has the write side, only the kernel knows its sequence number. Nothing is
//! sealed here, and the session cannot be saved. The side comes back with the number that the
//! kernel reports.

use prism_proto::tls::KernelKeys;
use rustls::AlertDescription;
use zeroize::Zeroizing;

use super::Session;
use super::half::Half;
use super::record::{FATAL, Framing, WARNING};
use super::schedule;
use super::witness::NonceWitness;
use super::write::{SealError, WriteState};
use crate::keys::KeysError;

fn kernel_keys(half: &Half) -> Result<KernelKeys, KeysError> {
    let framing = half.framing;
    let sequence = half.sequence;
    let (key, nonce) = match framing {
        Framing::Tls13 => {
            let traffic = schedule::traffic_key(half.suite, &half.secret)?;
            (traffic.key.as_bytes().into(), traffic.iv)
        }
        Framing::Tls12Implicit => (half.secret.as_bytes().into(), half.iv.clone()),
        // The kernel counts the explicit nonce up from the IV.
        Framing::Tls12Explicit => {
            let nonce = framing.nonce(&half.iv, sequence);
            (half.secret.as_bytes().into(), Zeroizing::new(nonce))
        }
    };
    Ok(KernelKeys {
        version: framing.version(),
        suite: half.suite,
        key: Zeroizing::new(key),
        nonce,
        sequence,
    })
}

impl<W: NonceWitness> Session<W> {
    /// Gives the write side to the kernel, for `TLS_TX`. All records that were sealed here
    /// must be in the socket before the kernel's first record.
    ///
    /// # Errors
    /// [`SealError::ControlFirst`] while [`Session::wants_control`]; [`SealError::Closed`],
    /// [`SealError::InKernel`].
    pub fn write_to_kernel(&mut self) -> Result<KernelKeys, SealError> {
        self.writer.check_open()?;
        if self.wants_control() {
            return Err(SealError::ControlFirst);
        }
        let keys = kernel_keys(&self.writer.half)?;
        self.writer.state = WriteState::InKernel;
        Ok(keys)
    }

    /// Takes the write side back. `sequence` is the sequence number of the kernel's next
    /// record. The kernel must seal nothing any more.
    ///
    /// # Errors
    /// [`SealError::NotInKernel`], [`SealError::Sequence`].
    pub fn write_from_kernel(&mut self, sequence: u64) -> Result<(), SealError> {
        self.check_in_kernel()?;
        let half = &mut self.writer.half;
        if sequence < half.sequence || sequence == u64::MAX {
            return Err(SealError::Sequence);
        }
        half.sequence = sequence;
        self.writer.state = WriteState::Open;
        self.writer.rekey_in_time();
        Ok(())
    }

    fn check_in_kernel(&self) -> Result<(), SealError> {
        let is_in_kernel = self.write_in_kernel();
        is_in_kernel.then_some(()).ok_or(SealError::NotInKernel)
    }

    /// Whether the kernel has the write side.
    #[must_use]
    pub fn write_in_kernel(&self) -> bool {
        self.writer.state == WriteState::InKernel
    }

    /// Lets the kernel go on after a move that failed: the session was saved beside a socket
    /// whose kernel still has the write key, and is restored beside it. `sequence` is that of
    /// the kernel's next record. A KeyUpdate that is due stays due.
    ///
    /// # Errors
    /// As [`Session::write_to_kernel`]; [`SealError::Sequence`] if the session has another sequence
    /// number, because one of the two was used meanwhile.
    pub fn write_still_in_kernel(&mut self, sequence: u64) -> Result<(), SealError> {
        self.writer.check_open()?;
        if sequence != self.writer.half.sequence {
            return Err(SealError::Sequence);
        }
        self.writer.state = WriteState::InKernel;
        Ok(())
    }

    /// Closes the write side, and gives the close_notify that the kernel has to send as a
    /// record of type 21.
    ///
    /// # Errors
    /// [`SealError::NotInKernel`] if the kernel does not write.
    pub fn close_notify_by_kernel(&mut self) -> Result<[u8; 2], SealError> {
        self.last_by_kernel(WARNING, AlertDescription::CloseNotify)
    }

    /// As [`Session::close_notify_by_kernel`], with a fatal alert.
    ///
    /// # Errors
    /// [`SealError::NotInKernel`] if the kernel does not write.
    pub fn fatal_alert_by_kernel(
        &mut self,
        description: AlertDescription,
    ) -> Result<[u8; 2], SealError> {
        self.last_by_kernel(FATAL, description)
    }

    fn last_by_kernel(
        &mut self,
        level: u8,
        description: AlertDescription,
    ) -> Result<[u8; 2], SealError> {
        self.check_in_kernel()?;
        self.writer.state = WriteState::Closed;
        Ok([level, u8::from(description)])
    }
}
