//! The form of records: header, explicit nonce, inner content type and tag around a plaintext;
//! the nonce and the associated data. RFC 8446 section 5, RFC 5246 section 6.2, RFC 5288,
//! RFC 7905. Nothing here has keys.

use prism_proto::tls::{Suite, Version};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 5;
/// Most plaintext in one record.
pub const MAX_PLAINTEXT_BYTES: usize = 1 << 14;
/// Longest record that a peer may send, in any version: an input buffer of this size always
/// makes progress. TLS 1.3 allows 256 bytes more than the plaintext.
pub const MAX_RECORD_BYTES: usize = HEADER_BYTES + MAX_PLAINTEXT_BYTES + 256;

pub(super) const TAG_BYTES: usize = 16;
pub(super) const EXPLICIT_BYTES: usize = 8;
/// The version in the header of every record after a handshake.
pub(super) const RECORD_VERSION: [u8; 2] = [3, 3];

/// The level of an alert that is a warning; TLS 1.3 ignores levels.
pub(super) const WARNING: u8 = 1;
/// The level of an alert that ends the session.
pub(super) const FATAL: u8 = 2;

/// Content types.
pub(super) mod kind {
    pub(crate) const ALERT: u8 = 21;
    pub(crate) const HANDSHAKE: u8 = 22;
    pub(crate) const APPLICATION_DATA: u8 = 23;
}

/// Bytes that a record has before and after its plaintext.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Header, and the explicit nonce if there is one.
    pub before: usize,
    /// The inner content type if there is one, and the tag.
    pub after: usize,
}

impl Surroundings {
    /// Bytes added to each plaintext.
    #[must_use]
    pub const fn total(self) -> usize {
        self.before + self.after
    }
}

/// How the records of one version and suite are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// The content type is inside, and the nonce is derived by XOR.
    Tls13,
    /// TLS 1.2 with GCM: eight bytes of the nonce are in the record.
    Tls12Explicit,
    /// TLS 1.2 with ChaCha20-Poly1305: the nonce is derived by XOR.
    Tls12Implicit,
}

impl Framing {
    pub(super) const fn of(version: Version, suite: Suite) -> Self {
        match (version, suite) {
            (Version::Tls13, _) => Self::Tls13,
            (Version::Tls12, Suite::ChaCha20Poly1305) => Self::Tls12Implicit,
            (Version::Tls12, Suite::Aes128Gcm | Suite::Aes256Gcm) => Self::Tls12Explicit,
        }
    }

    pub(super) const fn version(self) -> Version {
        match self {
            Self::Tls13 => Version::Tls13,
            Self::Tls12Explicit | Self::Tls12Implicit => Version::Tls12,
        }
    }

    pub(super) const fn surroundings(self) -> Surroundings {
        let (before, after) = match self {
            Self::Tls13 => (HEADER_BYTES, 1 + TAG_BYTES),
            Self::Tls12Explicit => (HEADER_BYTES + EXPLICIT_BYTES, TAG_BYTES),
            Self::Tls12Implicit => (HEADER_BYTES, TAG_BYTES),
        };
        Surroundings { before, after }
    }

    /// Most bytes after the header of a peer's record. The AEADs of TLS 1.2 add a fixed number
    /// of bytes; a record with the further ones that RFC 5246 allows never authenticates.
    pub(super) const fn max_body_bytes(self) -> usize {
        match self {
            Self::Tls13 => MAX_PLAINTEXT_BYTES + 256,
            Self::Tls12Explicit => MAX_PLAINTEXT_BYTES + EXPLICIT_BYTES + TAG_BYTES,
            Self::Tls12Implicit => MAX_PLAINTEXT_BYTES + TAG_BYTES,
        }
    }

    /// Most bytes that come out of the AEAD. In TLS 1.3 the content type is one of them.
    pub(super) const fn max_inner_bytes(self) -> usize {
        match self {
            Self::Tls13 => MAX_PLAINTEXT_BYTES + 1,
            Self::Tls12Explicit | Self::Tls12Implicit => MAX_PLAINTEXT_BYTES,
        }
    }

    /// The nonce of a record that this side seals. For GCM in TLS 1.2 the explicit part counts
    /// up from the IV. The kernel counts so too, hence either can go on after the other.
    pub(super) fn nonce(self, iv: &[u8; 12], sequence: u64) -> [u8; 12] {
        let [s0, s1, s2, s3, tail @ ..] = *iv;
        let tail = u64::from_be_bytes(tail);
        let tail = match self {
            Self::Tls13 | Self::Tls12Implicit => tail ^ sequence,
            Self::Tls12Explicit => tail.wrapping_add(sequence),
        };
        let [a, b, c, d, e, f, g, h] = tail.to_be_bytes();
        [s0, s1, s2, s3, a, b, c, d, e, f, g, h]
    }

    /// The associated data. In TLS 1.3 it is the header; in TLS 1.2 it is sequence number,
    /// content type, version and plaintext length.
    pub(super) fn associated(
        self,
        header: &[u8; HEADER_BYTES],
        sequence: u64,
        inner: u16,
    ) -> Associated {
        let [kind, major, minor, high, low] = *header;
        let [a, b, c, d, e, f, g, h] = sequence.to_be_bytes();
        let (start, [high, low]) = match self {
            Self::Tls13 => (8, [high, low]),
            Self::Tls12Explicit | Self::Tls12Implicit => (0, inner.to_be_bytes()),
        };
        let bytes = [a, b, c, d, e, f, g, h, kind, major, minor, high, low];
        Associated { bytes, start }
    }
}

/// Associated data of one record.
pub(super) struct Associated {
    bytes: [u8; 13],
    start: usize,
}

impl AsRef<[u8]> for Associated {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or(&self.bytes)
    }
}
