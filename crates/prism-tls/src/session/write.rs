//! The write side: data, KeyUpdates, alerts, and the limits of a write key.

use aws_lc_rs::error::Unspecified;
use prism_proto::tls::Suite;
use rustls::AlertDescription;

use super::Session;
use super::half::Half;
use super::pending::PendingUpdates;
use super::record::{FATAL, Framing, MAX_PLAINTEXT_BYTES, WARNING, kind};
use super::witness::NonceWitness;
use crate::keys::KeysError;

/// Records of data under one AES-GCM key. RFC 8446 section 5.5 allows 2^24.5 of full size;
/// those above 2^24 are for alerts.
const GCM_RECORDS: u64 = 1 << 24;
/// Records of data under one ChaCha20-Poly1305 key. No connection reaches a limit of the
/// cipher; this one keeps the sequence number far from its end.
const CHACHA_RECORDS: u64 = 1 << 48;

/// Most records of data under one key.
pub(super) const fn records_per_key(suite: Suite) -> u64 {
    match suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => GCM_RECORDS,
        Suite::ChaCha20Poly1305 => CHACHA_RECORDS,
    }
}

/// Whether records can be sealed, and by whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteState {
    Open,
    /// The kernel seals, and only it knows the sequence number.
    InKernel,
    /// close_notify or a fatal alert has been sealed, or the peer's has come.
    Closed,
}

pub(super) struct Writer {
    pub(super) half: Half,
    pub(super) state: WriteState,
    pub(super) pending: PendingUpdates,
}

/// No record was made, or the write side did not change hands. Output and session are as they
/// were, except after [`SealError::Library`], which makes the session unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// Caller: this side has closed the session, or the peer has aborted it.
    #[error("the write side is closed")]
    Closed,
    /// Caller: the kernel writes this session's records.
    #[error("the kernel writes this session")]
    InKernel,
    /// Caller: the kernel does not write this session's records.
    #[error("the kernel does not write this session")]
    NotInKernel,
    /// Kernel: its sequence number is not that of the session, or is behind it.
    #[error("the kernel's sequence number does not fit the session's")]
    Sequence,
    /// Caller: the output of [`Session::seal_control`] must be sent first.
    #[error("a KeyUpdate has to be sent first")]
    ControlFirst,
    /// Caller: the plaintext is too long, or the buffer too short.
    #[error("the plaintext or the buffer has a wrong size")]
    Size,
    /// The key is used up, and TLS 1.2 has no other. Close the session.
    #[error("the write key is used up")]
    Exhausted,
    /// The cryptographic library refused.
    #[error("the cryptographic library refused")]
    Library,
}

impl From<Unspecified> for SealError {
    fn from(_: Unspecified) -> Self {
        Self::Library
    }
}

impl From<KeysError> for SealError {
    fn from(_: KeysError) -> Self {
        Self::Library
    }
}

impl Writer {
    pub(super) fn new(half: Half) -> Self {
        let mut writer = Self {
            half,
            state: WriteState::Open,
            pending: PendingUpdates::NONE,
        };
        writer.rekey_in_time();
        writer
    }

    pub(super) fn check_open(&self) -> Result<(), SealError> {
        match self.state {
            WriteState::Open => Ok(()),
            WriteState::InKernel => Err(SealError::InKernel),
            WriteState::Closed => Err(SealError::Closed),
        }
    }

    /// Records of data that the current key is still good for.
    pub(super) fn records_left(&self) -> u64 {
        records_per_key(self.half.suite).saturating_sub(self.half.sequence)
    }

    /// Plans a KeyUpdate if the key is used up.
    pub(super) fn rekey_in_time(&mut self) {
        if self.records_left() == 0 && self.half.framing == Framing::Tls13 {
            self.pending = self.pending.with_update();
        }
    }

    /// Whether the session is good for `records` more records of data.
    fn check_lasts(&self, records: usize) -> Result<(), SealError> {
        let endless = self.half.framing == Framing::Tls13;
        let enough = u64::try_from(records).is_ok_and(|n| n <= self.records_left());
        (endless || enough)
            .then_some(())
            .ok_or(SealError::Exhausted)
    }

    fn append<W: NonceWitness>(
        &mut self,
        plaintext: &[u8],
        kind: u8,
        out: &mut Vec<u8>,
        witness: &mut W,
    ) -> Result<(), SealError> {
        let start = out.len();
        let room = self.half.framing.surroundings();
        out.resize(start + room.before, 0);
        out.extend_from_slice(plaintext);
        out.resize(out.len() + room.after, 0);
        let record = out.get_mut(start..).unwrap_or_default();
        self.half.seal(record, plaintext.len(), kind, witness)?;
        Ok(())
    }

    fn append_control<W: NonceWitness>(
        &mut self,
        out: &mut Vec<u8>,
        witness: &mut W,
    ) -> Result<(), SealError> {
        while let Some((request_update, rest)) = self.pending.next() {
            let message = super::content::key_update(request_update);
            self.append(&message, kind::HANDSHAKE, out, witness)?;
            self.half.next_generation()?;
            self.pending = rest;
        }
        Ok(())
    }
}

impl<W: NonceWitness> Session<W> {
    /// Seals `plaintext` into records, and appends them to `out` behind any KeyUpdate that is due.
    /// It seals all of the plaintext or nothing.
    ///
    /// # Errors
    /// [`SealError::Closed`], [`SealError::InKernel`], or [`SealError::Exhausted`] in TLS 1.2.
    pub fn seal(&mut self, plaintext: &[u8], out: &mut Vec<u8>) -> Result<(), SealError> {
        self.writer.check_open()?;
        let records = plaintext.len().div_ceil(MAX_PLAINTEXT_BYTES);
        self.writer.check_lasts(records)?;
        out.reserve(plaintext.len() + records * self.surroundings().total());
        for piece in plaintext.chunks(MAX_PLAINTEXT_BYTES) {
            self.writer.append_control(out, &mut self.witness)?;
            self.writer
                .append(piece, kind::APPLICATION_DATA, out, &mut self.witness)?;
            self.writer.rekey_in_time();
        }
        Ok(())
    }

    /// Seals one record of data in place, such as file contents that were read straight into
    /// the buffer. The plaintext of `len` bytes is in `record` already, at
    /// [`Surroundings::before`](super::Surroundings). Returns the record's length.
    ///
    /// # Errors
    /// [`SealError::ControlFirst`] while [`Session::wants_control`]; [`SealError::Size`] if
    /// `len` is above [`MAX_PLAINTEXT_BYTES`], or the record does not fit; otherwise as
    /// [`Session::seal`].
    pub fn seal_in_place(&mut self, record: &mut [u8], len: usize) -> Result<usize, SealError> {
        self.writer.check_open()?;
        if self.wants_control() {
            return Err(SealError::ControlFirst);
        }
        let fits = record.len() >= self.surroundings().total().saturating_add(len);
        if len > MAX_PLAINTEXT_BYTES || !fits {
            return Err(SealError::Size);
        }
        self.writer.check_lasts(1)?;
        let half = &mut self.writer.half;
        let made = half.seal(record, len, kind::APPLICATION_DATA, &mut self.witness)?;
        self.writer.rekey_in_time();
        Ok(made)
    }

    /// Whether a KeyUpdate must be sent before more data.
    #[must_use]
    pub fn wants_control(&self) -> bool {
        self.writer.state != WriteState::Closed && self.writer.pending != PendingUpdates::NONE
    }

    /// Appends the KeyUpdates that are due, each under the key that it ends. There are at most
    /// two.
    ///
    /// # Errors
    /// [`SealError::InKernel`]; [`SealError::Library`].
    pub fn seal_control(&mut self, out: &mut Vec<u8>) -> Result<(), SealError> {
        if !self.wants_control() {
            return Ok(());
        }
        self.writer.check_open()?;
        self.writer.append_control(out, &mut self.witness)
    }

    /// Appends close_notify and closes the write side. Appends nothing if it is closed.
    ///
    /// # Errors
    /// [`SealError::InKernel`]; [`SealError::Library`].
    pub fn seal_close_notify(&mut self, out: &mut Vec<u8>) -> Result<(), SealError> {
        self.seal_last(WARNING, AlertDescription::CloseNotify, out)
    }

    /// Appends a fatal alert, usually [`OpenError::alert`](super::OpenError::alert), and
    /// closes the write side. Appends nothing if it is closed.
    ///
    /// # Errors
    /// [`SealError::InKernel`]; [`SealError::Library`].
    pub fn seal_fatal_alert(
        &mut self,
        description: AlertDescription,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        self.seal_last(FATAL, description, out)
    }

    fn seal_last(
        &mut self,
        level: u8,
        description: AlertDescription,
        out: &mut Vec<u8>,
    ) -> Result<(), SealError> {
        if self.write_closed() {
            return Ok(());
        }
        self.writer.check_open()?;
        self.writer.state = WriteState::Closed;
        let alert = [level, u8::from(description)];
        self.writer
            .append(&alert, kind::ALERT, out, &mut self.witness)
    }

    /// Whether close_notify or a fatal alert has ended the write side.
    #[must_use]
    pub fn write_closed(&self) -> bool {
        self.writer.state == WriteState::Closed
    }

    /// Records of data that the current write key is still good for. While the kernel writes,
    /// the caller must stop it before they are used up.
    #[must_use]
    pub fn write_records_left(&self) -> u64 {
        self.writer.records_left()
    }
}
