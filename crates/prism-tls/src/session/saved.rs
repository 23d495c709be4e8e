//! A session between two hosts: saved and restored.
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
//! docs/protocol.md, section 2.5, has the layout.

use prism_proto::node;
use prism_proto::succession;
use prism_proto::tls::{Suite, Version};
use prism_proto::wire::{DecodeError, Put, Reader};
use zeroize::Zeroizing;

use super::Session;
use super::half::Half;
use super::pending::PendingUpdates;
use super::read::{MAX_BARREN_RECORDS, MAX_KEY_UPDATES, ReadState};
use super::record::MAX_PLAINTEXT_BYTES;
use super::witness::{NonceWitness, Unwitnessed};
use super::write::WriteState;
use crate::keys::{DirectionKeys, KeysError, MAX_SECRET_BYTES, Secret, SessionKeys};

/// Longest saved session: the fixed fields, and for each direction a sequence number and the
/// longest traffic secret. Key and IV of TLS 1.2 are shorter than that.
pub const MAX_SAVED_BYTES: usize = FIXED_BYTES + 2 * (8 + MAX_SECRET_BYTES);

const FIXED_BYTES: usize = 16;
const MAGIC: u32 = u32::from_be_bytes(*b"PTLS");
const LAYOUT: u8 = 1;
/// Two processes compare these versions before a session leaves one of them. A change of the layout
/// needs new ones.
const _: () = {
    let hand_off = node::HAND_OFF_VERSIONS;
    let take_over = succession::VERSIONS;
    assert!(matches!(
        hand_off,
        [b"prism-handoff/5", b"prism-handoff/4", b"prism-handoff/3"]
    ));
    assert!(matches!(take_over, [2, 1]) && LAYOUT == 1);
};
/// Most plaintext of a record that this side makes, which is the same for all sessions.
const FRAGMENT_BYTES: u16 = MAX_PLAINTEXT_BYTES as u16;

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
    /// A field is missing, or has an impossible value.
    #[error("not a saved session: {0}")]
    Malformed(#[from] DecodeError),
    /// The keys make no session.
    #[error("a saved session has unusable keys: {0}")]
    Keys(#[from] KeysError),
}

impl<W: NonceWitness> Session<W> {
    /// Takes the session out of use, and wipes the keys that seal and open. Only one host may
    /// restore the bytes. They are at most [`MAX_SAVED_BYTES`], and wiped when dropped.
    ///
    /// # Errors
    /// [`SaveError`]. The session is gone then too.
    pub fn save(self) -> Result<Zeroizing<Vec<u8>>, SaveError> {
        let Self { reader, writer, .. } = self;
        let read_closed = match reader.state {
            ReadState::Open => false,
            ReadState::Closed => true,
            ReadState::Failed => return Err(SaveError::Failed),
        };
        let write_closed = match writer.state {
            WriteState::Open => false,
            WriteState::Closed => true,
            WriteState::InKernel => return Err(SaveError::InKernel),
        };
        if [reader.half.sequence, writer.half.sequence].contains(&u64::MAX) {
            return Err(SaveError::Failed);
        }
        let mut out = Zeroizing::new(Vec::with_capacity(MAX_SAVED_BYTES));
        out.put(&MAGIC.to_be_bytes());
        out.put(&[
            LAYOUT,
            writer.half.framing.version() as u8,
            writer.half.suite as u8,
            u8::from(read_closed),
            u8::from(write_closed),
            writer.pending.code(),
            reader.barren,
            0,
        ]);
        out.put(&FRAGMENT_BYTES.to_be_bytes());
        out.put(&reader.updates.to_be_bytes());
        put_direction(&reader.half, &mut out);
        put_direction(&writer.half, &mut out);
        Ok(out)
    }

    /// As [`Session::restore`], with a witness of the nonces.
    pub fn restore_witnessed(saved: &[u8], witness: W) -> Result<Self, RestoreError> {
        let mut r = Reader::new(saved);
        r.magic(MAGIC, "magic")?;
        r.version(LAYOUT, "layout")?;
        let version = r.one_of(Version::ALL, |version| version as u8, "protocol")?;
        let suite = r.one_of(Suite::ALL, |suite| suite as u8, "suite")?;
        let read_closed = r.bool("read state")?;
        let write_closed = r.bool("write state")?;
        let pending = r.one_of(PendingUpdates::ALL, PendingUpdates::code, "KeyUpdate")?;
        let barren = r.u8("records without data")?;
        let reserved = r.u8("reserved byte")?;
        let fragment_bytes = r.u16("fragment size")?;
        let updates = r.u16("KeyUpdates received")?;
        let read = read_direction(version, suite, &mut r)?;
        let write = read_direction(version, suite, &mut r)?;
        r.finish()?;
        let has_updates = pending != PendingUpdates::NONE || updates != 0;
        for (is_possible, field) in [
            (version == Version::Tls13 || !has_updates, "KeyUpdate"),
            (barren <= MAX_BARREN_RECORDS, "records without data"),
            (updates <= MAX_KEY_UPDATES, "KeyUpdates received"),
            (reserved == 0, "reserved byte"),
            (fragment_bytes == FRAGMENT_BYTES, "fragment size"),
        ] {
            if !is_possible {
                return Err(DecodeError::Invalid(field).into());
            }
        }
        let mut session = Self::witnessed(SessionKeys { suite, read, write }, witness)?;
        let reader = &mut session.reader;
        let writer = &mut session.writer;
        (reader.barren, reader.updates) = (barren, updates);
        if read_closed {
            reader.state = ReadState::Closed;
        }
        writer.pending = pending;
        if write_closed {
            writer.state = WriteState::Closed;
        }
        writer.rekey_in_time();
        Ok(session)
    }
}

impl Session {
    /// The session that was saved, ready to go on. The caller wipes `saved`.
    ///
    /// # Errors
    /// If these are not the bytes of [`Session::save`], or the keys are used up.
    pub fn restore(saved: &[u8]) -> Result<Self, RestoreError> {
        Self::restore_witnessed(saved, Unwitnessed)
    }
}

fn put_direction(half: &Half, out: &mut Vec<u8>) {
    out.put(&half.sequence.to_be_bytes());
    out.put(half.secret.as_bytes());
    if half.framing.version() == Version::Tls12 {
        out.put(&*half.iv);
    }
}

fn read_direction(
    version: Version,
    suite: Suite,
    r: &mut Reader<'_>,
) -> Result<DirectionKeys, RestoreError> {
    let sequence = r.u64("sequence number")?;
    match version {
        Version::Tls13 => {
            let secret = Secret::new(r.bytes(suite.traffic_secret_bytes(), "secret")?)?;
            Ok(DirectionKeys::Tls13 { secret, sequence })
        }
        Version::Tls12 => {
            let key = Secret::new(r.bytes(suite.key_bytes(), "key")?)?;
            let iv = r.array("IV")?;
            Ok(DirectionKeys::Tls12 { key, iv, sequence })
        }
    }
}
