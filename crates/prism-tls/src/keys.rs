//! The secrets of an established session: the handshake leaves them, the record layer takes
//! them. Nothing here encrypts.

use std::fmt;

use aws_lc_rs::hkdf::{KeyType, Prk};
use prism_proto::tls::{Suite, Version};
use zeroize::Zeroizing;

/// Longest secret of any suite: the traffic secret of a SHA-384 suite.
pub const MAX_SECRET_BYTES: usize = 48;

/// The keys of one direction.
pub enum DirectionKeys {
    /// RFC 8446.
    Tls13 {
        /// The current application traffic secret, 32 or 48 bytes.
        secret: Secret,
        /// Sequence number of the next record.
        sequence: u64,
    },
    /// RFC 5288 and RFC 7905.
    Tls12 {
        /// Write key of that direction.
        key: Secret,
        /// For GCM the salt (4 bytes) and the base of the explicit nonce (8 bytes); for
        /// ChaCha20-Poly1305 the write IV.
        iv: [u8; 12],
        /// Sequence number of the next record.
        sequence: u64,
    },
}

impl DirectionKeys {
    /// The version that these keys are for.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self {
            Self::Tls13 { .. } => Version::Tls13,
            Self::Tls12 { .. } => Version::Tls12,
        }
    }
}

impl fmt::Debug for DirectionKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Tls13 { sequence, .. } | Self::Tls12 { sequence, .. }) = self;
        f.debug_struct("DirectionKeys")
            .field("version", &self.version())
            .field("sequence", sequence)
            .finish_non_exhaustive()
    }
}

/// Both directions of an established session, of one version.
#[derive(Debug)]
pub struct SessionKeys {
    /// AEAD of both directions.
    pub suite: Suite,
    /// The direction in which the peer sends.
    pub read: DirectionKeys,
    /// The direction in which this side sends.
    pub write: DirectionKeys,
}

/// Key material of at most [`MAX_SECRET_BYTES`]. It lies in one place on the heap, so that a
/// move leaves no copy. It is wiped when dropped, and never printed.
pub struct Secret(Zeroizing<Box<[u8]>>);

impl Secret {
    /// A secret with a copy of `bytes`. The caller wipes the original.
    ///
    /// # Errors
    /// If `bytes` is empty, or longer than [`MAX_SECRET_BYTES`].
    pub fn new(bytes: &[u8]) -> Result<Self, KeysError> {
        if bytes.is_empty() || bytes.len() > MAX_SECRET_BYTES {
            return Err(KeysError::SecretLength);
        }
        Ok(Self(Zeroizing::new(bytes.into())))
    }

    /// The key material itself.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The keys make no session. The fault is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say all")]
pub enum KeysError {
    #[error("a secret's length does not fit the suite")]
    SecretLength,
    #[error("the two directions are of different TLS versions")]
    MixedVersions,
    #[error("a key could not be derived")]
    Derivation,
    #[error("a sequence number is at its end")]
    Exhausted,
}

/// HKDF-Expand into the whole of `out`.
pub(crate) fn expand(root: &Prk, info: &[&[u8]], out: &mut [u8]) -> Result<(), KeysError> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    root.expand(info, Length(out.len()))
        .and_then(|okm| okm.fill(out))
        .map_err(|_| KeysError::Derivation)
}
