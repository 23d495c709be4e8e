//! The record layer of an established session: sealing, opening, alerts,
//! KeyUpdate, and the state that moves with the connection.
//!
//! It does no I/O and no handshakes: it begins with [`SessionKeys`]. Buffers belong to the
//! caller, who also carries their contents when a session moves ([`Session::save`]).
//!
//! No nonce is used twice under a key. The sequence number advances before a record is
//! sealed. [`Session::save`] consumes the session. While the kernel seals
//! ([`Session::write_to_kernel`]), nothing is sealed here.

mod content;
mod half;
mod kernel;
mod open_error;
mod pending;
mod read;
mod record;
mod saved;
mod schedule;
mod witness;
mod write;

pub use open_error::OpenError;
pub use read::{Event, Opened};
pub use record::{HEADER_BYTES, MAX_PLAINTEXT_BYTES, MAX_RECORD_BYTES, Surroundings};
pub use saved::{MAX_SAVED_BYTES, RestoreError, SaveError};
pub use witness::{NonceWitness, Unwitnessed};
pub use write::SealError;

use crate::keys::{KeysError, SessionKeys};
use prism_proto::tls::{Suite, Version};

use half::Half;
use read::Reader;
use write::Writer;

/// An established TLS session of the server's or the client's side.
///
/// [`Session::open`] opens input in place, one record at a time. [`Session::seal`] makes
/// output. [`Session::seal_in_place`] does so too if the plaintext is already between the
/// [`Surroundings`] of a record. After each `open` the caller sends the output of
/// [`Session::seal_control`], at the latest with the next data.
///
/// `W` sees every nonce. Outside of tests it is [`Unwitnessed`] and costs nothing.
pub struct Session<W: NonceWitness = Unwitnessed> {
    reader: Reader,
    writer: Writer,
    witness: W,
}

impl Session {
    /// The session that `keys` describe.
    ///
    /// # Errors
    /// If the keys do not fit together, or are used up.
    pub fn new(keys: SessionKeys) -> Result<Self, KeysError> {
        Self::witnessed(keys, Unwitnessed)
    }
}

impl<W: NonceWitness> Session<W> {
    /// As [`Session::new`], with a witness of the nonces.
    pub fn witnessed(keys: SessionKeys, witness: W) -> Result<Self, KeysError> {
        if keys.write.version() != keys.read.version() {
            return Err(KeysError::MixedVersions);
        }
        let read = Half::new(keys.suite, keys.read)?;
        let write = Half::new(keys.suite, keys.write)?;
        Ok(Self {
            reader: Reader::new(read),
            writer: Writer::new(write),
            witness,
        })
    }

    /// Protocol version.
    #[must_use]
    pub fn version(&self) -> Version {
        self.writer.half.framing.version()
    }

    /// AEAD of both directions.
    #[must_use]
    pub fn suite(&self) -> Suite {
        self.writer.half.suite
    }

    /// The room that a record needs around its plaintext.
    #[must_use]
    pub fn surroundings(&self) -> Surroundings {
        self.writer.half.framing.surroundings()
    }
}

impl<W: NonceWitness> std::fmt::Debug for Session<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("version", &self.version())
            .field("suite", &self.suite())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "session/session_tests.rs"]
mod tests;
