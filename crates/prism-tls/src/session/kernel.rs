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
use super::write::WriteState;
use crate::keys::KeysError;

/// The write side could not change hands. The session is as it was, unless keys could not be
/// derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Caller: the write side is closed, or already where it should go.
    #[error("the write side cannot change hands now")]
    State,
    /// Caller: a KeyUpdate has to be sent first.
    #[error("a KeyUpdate has to be sent first")]
    ControlFirst,
    /// Kernel: its sequence number is behind the one that it was given.
    #[error("the kernel's sequence number goes backwards")]
    Sequence,
    /// The library refused to derive a key.
    #[error("{0}")]
    Keys(#[from] KeysError),
}

fn kernel_keys(half: &Half) -> Result<KernelKeys, KeysError> {
    let (framing, sequence) = (half.framing, half.sequence());
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
    /// [`KernelError::ControlFirst`] while [`Session::wants_control`], else
    /// [`KernelError::State`].
    pub fn write_to_kernel(&mut self) -> Result<KernelKeys, KernelError> {
        if self.writer.state != WriteState::Open {
            return Err(KernelError::State);
        }
        if self.wants_control() {
            return Err(KernelError::ControlFirst);
        }
        let keys = kernel_keys(&self.writer.half)?;
        self.writer.state = WriteState::InKernel;
        Ok(keys)
    }

    /// Takes the write side back. `sequence` is the sequence number of the kernel's next
    /// record. The kernel must seal nothing any more.
    ///
    /// # Errors
    /// [`KernelError::State`], [`KernelError::Sequence`].
    pub fn write_from_kernel(&mut self, sequence: u64) -> Result<(), KernelError> {
        if self.writer.state != WriteState::InKernel {
            return Err(KernelError::State);
        }
        let half = &mut self.writer.half;
        if sequence < half.sequence() || sequence == u64::MAX {
            return Err(KernelError::Sequence);
        }
        half.set_sequence(sequence);
        self.writer.state = WriteState::Open;
        self.writer.rekey_in_time();
        Ok(())
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
    /// [`KernelError::State`]; [`KernelError::Sequence`] if the session has another sequence
    /// number, because one of the two was used meanwhile.
    pub fn write_still_in_kernel(&mut self, sequence: u64) -> Result<(), KernelError> {
        if self.writer.state != WriteState::Open {
            return Err(KernelError::State);
        }
        if sequence != self.writer.half.sequence() {
            return Err(KernelError::Sequence);
        }
        self.writer.state = WriteState::InKernel;
        Ok(())
    }

    /// Closes the write side, and gives the close_notify that the kernel has to send as a
    /// record of type 21.
    ///
    /// # Errors
    /// [`KernelError::State`] if the kernel does not write.
    pub fn close_notify_by_kernel(&mut self) -> Result<[u8; 2], KernelError> {
        self.last_by_kernel(WARNING, AlertDescription::CloseNotify)
    }

    /// As [`Session::close_notify_by_kernel`], with a fatal alert.
    ///
    /// # Errors
    /// [`KernelError::State`] if the kernel does not write.
    pub fn fatal_alert_by_kernel(
        &mut self,
        description: AlertDescription,
    ) -> Result<[u8; 2], KernelError> {
        self.last_by_kernel(FATAL, description)
    }

    fn last_by_kernel(
        &mut self,
        level: u8,
        description: AlertDescription,
    ) -> Result<[u8; 2], KernelError> {
        if self.writer.state != WriteState::InKernel {
            return Err(KernelError::State);
        }
        self.writer.state = WriteState::Closed;
        Ok([level, u8::from(description)])
    }
}
