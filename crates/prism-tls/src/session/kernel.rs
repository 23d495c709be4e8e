//! Directions that the kernel (kTLS) takes over and gives back. Here are the
//! values for `setsockopt(SOL_TLS, TLS_TX or TLS_RX)`; the call itself, and whether
//! the kernel has it, are the caller's.
//!
//! While a direction is in the kernel only the kernel knows its sequence number:
//! nothing is sealed or opened here, and the session cannot be saved. With the
//! number that the kernel reports it comes back.

use rustls::AlertDescription;
use zeroize::Zeroizing;

use super::half::Half;
use super::read::ReadState;
use super::record::{Framing, RECORD_VERSION};
use super::schedule;
use super::witness::NonceWitness;
use super::write::{FATAL, WARNING, WriteState};
use super::{Session, Suite, Version};
use crate::keys::{KeysError, Secret};

/// Salt bytes of GCM in `struct tls12_crypto_info_aes_gcm_*`.
const SALT_BYTES: usize = 4;

/// One direction as the kernel wants it. Wiped when dropped.
pub struct KernelKeys {
    version: Version,
    suite: Suite,
    key: Secret,
    /// Salt and IV; for TLS 1.2 with GCM the explicit nonce of the next record.
    nonce: Zeroizing<[u8; 12]>,
    sequence: u64,
}

/// A direction could not change hands. The session is as it was, unless keys could
/// not be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// Caller: the direction is closed, has failed, or is where it should go.
    #[error("the direction cannot change hands now")]
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

impl KernelKeys {
    /// Protocol version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// `tls_crypto_info.version`.
    #[must_use]
    pub fn version_code(&self) -> u16 {
        let base = u16::from_be_bytes(RECORD_VERSION);
        match self.version {
            Version::Tls12 => base,
            Version::Tls13 => base + 1,
        }
    }

    /// Which of the kernel's structures is the right one.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// `key`: 16 or 32 bytes.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.key.as_bytes()
    }

    /// `salt`: 4 bytes for GCM, none for ChaCha20-Poly1305.
    #[must_use]
    pub fn salt(&self) -> &[u8] {
        self.nonce.get(..self.salt_bytes()).unwrap_or_default()
    }

    /// `iv`: 8 bytes for GCM, 12 for ChaCha20-Poly1305.
    #[must_use]
    pub fn iv(&self) -> &[u8] {
        self.nonce.get(self.salt_bytes()..).unwrap_or_default()
    }

    /// `rec_seq`.
    #[must_use]
    pub fn record_sequence(&self) -> [u8; 8] {
        self.sequence.to_be_bytes()
    }

    fn salt_bytes(&self) -> usize {
        match self.suite {
            Suite::Aes128Gcm | Suite::Aes256Gcm => SALT_BYTES,
            Suite::ChaCha20Poly1305 => 0,
        }
    }

    fn of(half: &Half) -> Result<Self, KeysError> {
        let (framing, sequence) = (half.framing(), half.sequence());
        let (key, nonce) = match framing {
            Framing::Tls13 => {
                let traffic = schedule::traffic_key(half.suite(), half.secret())?;
                (Secret::new(traffic.key())?, traffic.iv)
            }
            Framing::Tls12Implicit => {
                let key = Secret::new(half.secret().as_bytes())?;
                (key, Zeroizing::new(*half.iv()))
            }
            // The kernel counts the explicit nonce up from what it is given.
            Framing::Tls12Explicit => {
                let key = Secret::new(half.secret().as_bytes())?;
                (key, Zeroizing::new(framing.nonce(half.iv(), sequence)))
            }
        };
        let (version, suite) = (framing.version(), half.suite());
        Ok(Self {
            version,
            suite,
            key,
            nonce,
            sequence,
        })
    }
}

impl std::fmt::Debug for KernelKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelKeys")
            .field("version", &self.version)
            .field("suite", &self.suite)
            .finish_non_exhaustive()
    }
}

impl<W: NonceWitness> Session<W> {
    /// Gives the write side to the kernel, for `TLS_TX`. Everything that was sealed
    /// here must be in the socket before the kernel's first record.
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
        let keys = KernelKeys::of(self.writer.half())?;
        self.writer.state = WriteState::InKernel;
        Ok(keys)
    }

    /// Takes the write side back. `sequence` is the kernel's next record sequence
    /// number, and the kernel seals nothing any more.
    ///
    /// # Errors
    /// [`KernelError::State`], [`KernelError::Sequence`].
    pub fn write_from_kernel(&mut self, sequence: u64) -> Result<(), KernelError> {
        if self.writer.state != WriteState::InKernel {
            return Err(KernelError::State);
        }
        go_on(self.writer.half_mut(), sequence)?;
        self.writer.state = WriteState::Open;
        self.writer.rekey_in_time();
        Ok(())
    }

    /// Whether the kernel has the write side.
    #[must_use]
    pub fn write_in_kernel(&self) -> bool {
        self.writer.state == WriteState::InKernel
    }

    /// The way back for a session that was saved beside a socket whose kernel has
    /// its write key, and is restored because nobody else went on with it. The
    /// kernel goes on at `sequence`, its next, as if nothing had been. A KeyUpdate
    /// may be due, and stays so.
    ///
    /// # Errors
    /// [`KernelError::State`]; [`KernelError::Sequence`] where the kernel is not
    /// where the session is: then one of them has been used meanwhile.
    pub fn write_still_in_kernel(&mut self, sequence: u64) -> Result<(), KernelError> {
        if self.writer.state != WriteState::Open {
            return Err(KernelError::State);
        }
        if sequence != self.writer.half().sequence() {
            return Err(KernelError::Sequence);
        }
        self.writer.state = WriteState::InKernel;
        Ok(())
    }

    /// The close_notify to be sent by the kernel, as a record of type 21; it closes
    /// the write side.
    ///
    /// # Errors
    /// [`KernelError::State`] when the kernel does not write.
    pub fn close_notify_by_kernel(&mut self) -> Result<[u8; 2], KernelError> {
        self.last_by_kernel(WARNING, AlertDescription::CloseNotify)
    }

    /// The same for a fatal alert.
    ///
    /// # Errors
    /// [`KernelError::State`] when the kernel does not write.
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

    /// The KeyUpdate that is due, for a kernel that writes and can change its key:
    /// the message to send as a record of type 22, and the key to install after it.
    /// None when none is due. Call it again until then.
    ///
    /// # Errors
    /// [`KernelError::State`] when the kernel does not write.
    pub fn key_update_by_kernel(&mut self) -> Result<Option<([u8; 5], KernelKeys)>, KernelError> {
        if self.writer.state != WriteState::InKernel {
            return Err(KernelError::State);
        }
        let Some((message, rest)) = self.writer.next_update() else {
            return Ok(None);
        };
        self.writer.half_mut().next_generation()?;
        self.writer.pending = rest;
        Ok(Some((message, KernelKeys::of(self.writer.half())?)))
    }

    /// Gives the read side to the kernel, for `TLS_RX`. Every byte that was read
    /// from the socket must have been opened: the kernel begins with a whole record.
    ///
    /// # Errors
    /// [`KernelError::State`].
    pub fn read_to_kernel(&mut self) -> Result<KernelKeys, KernelError> {
        if self.reader.state != ReadState::Open {
            return Err(KernelError::State);
        }
        let keys = KernelKeys::of(self.reader.half())?;
        self.reader.state = ReadState::InKernel;
        Ok(keys)
    }

    /// Takes the read side back, as [`Session::write_from_kernel`].
    ///
    /// # Errors
    /// [`KernelError::State`], [`KernelError::Sequence`].
    pub fn read_from_kernel(&mut self, sequence: u64) -> Result<(), KernelError> {
        if self.reader.state != ReadState::InKernel {
            return Err(KernelError::State);
        }
        go_on(self.reader.half_mut(), sequence)?;
        self.reader.state = ReadState::Open;
        Ok(())
    }

    /// The key to install after [`Event::KeyUpdate`](super::Event::KeyUpdate) came
    /// out of [`Session::take_from_kernel`].
    ///
    /// # Errors
    /// [`KernelError::State`] when the kernel does not read.
    pub fn next_read_keys(&self) -> Result<KernelKeys, KernelError> {
        if self.reader.state != ReadState::InKernel {
            return Err(KernelError::State);
        }
        Ok(KernelKeys::of(self.reader.half())?)
    }
}

fn go_on(half: &mut Half, sequence: u64) -> Result<(), KernelError> {
    if sequence < half.sequence() || sequence == u64::MAX {
        return Err(KernelError::Sequence);
    }
    half.set_sequence(sequence);
    Ok(())
}
