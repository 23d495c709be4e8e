//! A session between two hosts: saved, encoded, decoded, restored.
//!
//! Saving consumes the session, so that only one host can go on with it. The encoded form
//! holds traffic secrets. It is wiped when dropped, and may leave the host under mutual TLS
//! only.
//!
//! The contents of the caller's buffers are not part of it and have to move beside it:
//!
//! - input that [`Session::open`] has not consumed, even a part of a record: it is ciphertext,
//!   and goes first into the new host's input buffer;
//! - plaintext that was opened and is not used yet;
//! - records that were sealed and are not sent yet. They must be sent before any record of the
//!   restored session, because their sequence numbers are used up.
//!
//! # Layout, version 1
//!
//! Integers are big-endian.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | magic `PTLS` |
//! | 4 | 1 | version of this layout: 1 |
//! | 5 | 1 | protocol: 2 TLS 1.2, 3 TLS 1.3 |
//! | 6 | 1 | suite: 1 AES-128-GCM, 2 AES-256-GCM, 3 ChaCha20-Poly1305 |
//! | 7 | 1 | read side: 0 open, 1 closed by the client's close_notify |
//! | 8 | 1 | write side: 0 open, 1 closed by an alert of ours |
//! | 9 | 1 | KeyUpdates to send before more data: 0 none, 1 one, 2 one that asks for one, 3 both in that order |
//! | 10 | 1 | records in a row without data so far, at most 32 |
//! | 11 | 1 | zero |
//! | 12 | 2 | most plaintext in a record made, 64 to 16384 |
//! | 14 | 2 | KeyUpdates received so far, at most 16384 |
//! | 16 | | read side, then write side, each: |
//! | | 8 | sequence number of the next record under the current key |
//! | | 32 or 48 | TLS 1.3: current traffic secret, 48 bytes for AES-256-GCM |
//! | | 16 or 32 | TLS 1.2: write key |
//! | | 12 | TLS 1.2: IV; for GCM salt and base of the explicit nonce |
//!
//! In TLS 1.2 the fields at 9 and 14 are zero. Nothing follows.

use zeroize::Zeroizing;

use super::half::Half;
use super::pending::PendingUpdate;
use super::read::{MAX_BARREN_RECORDS, MAX_KEY_UPDATES, ReadState, Reader};
use super::witness::{NonceWitness, Unwitnessed};
use super::write::{WriteState, Writer, checked_fragment};
use super::{Session, Suite, Version};
use crate::keys::{DirectionKeys, KeysError, MAX_SECRET_BYTES, Secret};

/// Longest encoded session: the fixed fields, and for each direction a sequence number and the
/// longest traffic secret. Key and IV of TLS 1.2 are shorter than that.
pub const MAX_SAVED_BYTES: usize = FIXED_BYTES + 2 * (8 + MAX_SECRET_BYTES);

const FIXED_BYTES: usize = 16;
const MAGIC: [u8; 4] = *b"PTLS";
const LAYOUT: u8 = 1;

/// The state of a session that no host uses. Only one host may restore it, or a decoded copy.
#[derive(Debug)]
pub struct SavedSession {
    suite: Suite,
    version: Version,
    read_closed: bool,
    write_closed: bool,
    pending: PendingUpdate,
    barren: u8,
    max_fragment: u16,
    updates: u16,
    read: DirectionKeys,
    write: DirectionKeys,
}

/// The session cannot move. It is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SaveError {
    /// Caller: the kernel still has the write side.
    #[error("the kernel still has the write side of the session")]
    InKernel,
    /// A record or an alert has ended the session, or a direction has no sequence number left.
    #[error("the session has failed")]
    Failed,
}

/// The bytes are no saved session. The sender is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// The length does not fit the fields.
    #[error("a saved session has a wrong length")]
    Length,
    /// The magic is missing.
    #[error("not a saved session")]
    Magic,
    /// This program does not know the layout.
    #[error("a saved session has layout {0}, which is not known")]
    Layout(u8),
    /// A field has an impossible value.
    #[error("a saved session has an impossible {0}")]
    Field(&'static str),
    /// The keys make no session.
    #[error("a saved session has unusable keys: {0}")]
    Keys(#[from] KeysError),
}

impl<W: NonceWitness> Session<W> {
    /// Takes the session out of use, and wipes the keys that seal and open.
    ///
    /// # Errors
    /// [`SaveError`]. The session is gone then too.
    pub fn save(self) -> Result<SavedSession, SaveError> {
        let read_closed = match self.reader.state {
            ReadState::Open => false,
            ReadState::Closed => true,
            ReadState::Failed => return Err(SaveError::Failed),
        };
        let write_closed = match self.writer.state {
            WriteState::Open => false,
            WriteState::Closed => true,
            WriteState::InKernel => return Err(SaveError::InKernel),
        };
        let sequences = [self.reader.half.sequence(), self.writer.half.sequence()];
        if sequences.contains(&u64::MAX) {
            return Err(SaveError::Failed);
        }
        Ok(SavedSession {
            suite: self.suite,
            version: self.version,
            read_closed,
            write_closed,
            pending: self.writer.pending,
            barren: self.reader.barren,
            max_fragment: self.writer.max_fragment,
            updates: self.reader.updates,
            read: self.reader.half.into_keys(),
            write: self.writer.half.into_keys(),
        })
    }

    /// As [`Session::restore`], with a witness of the nonces.
    ///
    /// # Errors
    /// As [`Session::restore`].
    pub fn restore_witnessed(saved: SavedSession, witness: W) -> Result<Self, RestoreError> {
        let mut reader = Reader::new(Half::new(saved.suite, saved.read)?);
        let mut writer = Writer::new(Half::new(saved.suite, saved.write)?);
        reader.barren = saved.barren;
        reader.updates = saved.updates;
        if saved.read_closed {
            reader.state = ReadState::Closed;
        }
        writer.pending = saved.pending;
        writer.max_fragment = saved.max_fragment;
        if saved.write_closed {
            writer.state = WriteState::Closed;
        }
        writer.rekey_in_time();
        let (suite, version) = (saved.suite, saved.version);
        Ok(Self {
            suite,
            version,
            reader,
            writer,
            witness,
        })
    }
}

impl Session {
    /// The session that was saved, ready to go on.
    ///
    /// # Errors
    /// If its keys are used up.
    pub fn restore(saved: SavedSession) -> Result<Self, RestoreError> {
        Self::restore_witnessed(saved, Unwitnessed)
    }
}

impl SavedSession {
    /// The bytes to send: at most [`MAX_SAVED_BYTES`], wiped when dropped.
    #[must_use]
    pub fn encode(&self) -> Zeroizing<Vec<u8>> {
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_SAVED_BYTES));
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[
            LAYOUT,
            self.version as u8,
            self.suite as u8,
            u8::from(self.read_closed),
            u8::from(self.write_closed),
            self.pending as u8,
            self.barren,
            0,
        ]);
        out.extend_from_slice(&self.max_fragment.to_be_bytes());
        out.extend_from_slice(&self.updates.to_be_bytes());
        encode_direction(&self.read, &mut out);
        encode_direction(&self.write, &mut out);
        out
    }

    /// Reads the output of [`SavedSession::encode`]. The caller wipes `bytes`.
    ///
    /// # Errors
    /// [`RestoreError`] if they are no saved session.
    pub fn decode(bytes: &[u8]) -> Result<Self, RestoreError> {
        let (fixed, rest) = bytes
            .split_first_chunk::<FIXED_BYTES>()
            .ok_or(RestoreError::Length)?;
        let [
            m0,
            m1,
            m2,
            m3,
            layout,
            version,
            suite,
            read,
            write,
            tail @ ..,
        ] = *fixed;
        let [pending, barren, zero, f0, f1, u0, u1] = tail;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(RestoreError::Magic);
        }
        if layout != LAYOUT {
            return Err(RestoreError::Layout(layout));
        }
        let version = Version::ALL.into_iter().find(|v| *v as u8 == version);
        let version = version.ok_or(RestoreError::Field("protocol"))?;
        let suite = Suite::ALL.into_iter().find(|s| *s as u8 == suite);
        let suite = suite.ok_or(RestoreError::Field("suite"))?;
        let (read_keys, rest) = decode_direction(version, suite, rest)?;
        let (write_keys, rest) = decode_direction(version, suite, rest)?;
        if !rest.is_empty() {
            return Err(RestoreError::Length);
        }
        let saved = Self {
            suite,
            version,
            read_closed: flag(read).ok_or(RestoreError::Field("read state"))?,
            write_closed: flag(write).ok_or(RestoreError::Field("write state"))?,
            pending: PendingUpdate::from_code(pending).ok_or(RestoreError::Field("KeyUpdate"))?,
            barren,
            max_fragment: checked_fragment(usize::from(u16::from_be_bytes([f0, f1])))
                .ok_or(RestoreError::Field("fragment size"))?,
            updates: u16::from_be_bytes([u0, u1]),
            read: read_keys,
            write: write_keys,
        };
        saved.check(zero)
    }

    /// Checks the fields against one another.
    fn check(self, zero: u8) -> Result<Self, RestoreError> {
        let updated = self.pending != PendingUpdate::Nothing || self.updates != 0;
        if self.version == Version::Tls12 && updated {
            return Err(RestoreError::Field("KeyUpdate"));
        }
        if self.barren > MAX_BARREN_RECORDS || self.updates > MAX_KEY_UPDATES {
            return Err(RestoreError::Field("count of records"));
        }
        if zero != 0 {
            return Err(RestoreError::Field("reserved byte"));
        }
        Ok(self)
    }

    /// Protocol version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// AEAD of both directions.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.suite
    }
}

fn encode_direction(keys: &DirectionKeys, out: &mut Vec<u8>) {
    match keys {
        DirectionKeys::Tls13 { secret, sequence } => {
            out.extend_from_slice(&sequence.to_be_bytes());
            out.extend_from_slice(secret.as_bytes());
        }
        DirectionKeys::Tls12 { key, iv, sequence } => {
            out.extend_from_slice(&sequence.to_be_bytes());
            out.extend_from_slice(key.as_bytes());
            out.extend_from_slice(iv);
        }
    }
}

fn decode_direction(
    version: Version,
    suite: Suite,
    bytes: &[u8],
) -> Result<(DirectionKeys, &[u8]), RestoreError> {
    let (sequence, rest) = bytes.split_first_chunk().ok_or(RestoreError::Length)?;
    let sequence = u64::from_be_bytes(*sequence);
    if sequence == u64::MAX {
        return Err(RestoreError::Keys(KeysError::Exhausted));
    }
    match version {
        Version::Tls13 => {
            let (secret, rest) = decode_secret(suite.traffic_secret_bytes(), rest)?;
            Ok((DirectionKeys::Tls13 { secret, sequence }, rest))
        }
        Version::Tls12 => {
            let (key, rest) = decode_secret(suite.key_bytes(), rest)?;
            let (iv, rest) = rest.split_first_chunk().ok_or(RestoreError::Length)?;
            let iv = *iv;
            Ok((DirectionKeys::Tls12 { key, iv, sequence }, rest))
        }
    }
}

fn decode_secret(len: usize, bytes: &[u8]) -> Result<(Secret, &[u8]), RestoreError> {
    let (secret, rest) = bytes.split_at_checked(len).ok_or(RestoreError::Length)?;
    Ok((Secret::new(secret)?, rest))
}

const fn flag(code: u8) -> Option<bool> {
    match code {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
