//! The version and suite of a TLS session, and the keys with which the kernel goes on sending
//! (kTLS). `prism-tls` has the sessions, and `prism-sys` talks to the kernel.

use std::fmt;

use zeroize::Zeroizing;

/// Protocol version of a session. The numbers are the codes of saved sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// RFC 5246, with ECDHE and an AEAD.
    Tls12 = 2,
    /// RFC 8446.
    Tls13 = 3,
}

impl Version {
    /// The newest first.
    pub const ALL: [Self; 2] = [Self::Tls13, Self::Tls12];
}

/// AEAD of a session. It decides the hash of TLS 1.3: SHA-384 for [`Suite::Aes256Gcm`], else
/// SHA-256. The numbers are the codes of saved sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Suite {
    /// AES-128-GCM.
    Aes128Gcm = 1,
    /// AES-256-GCM.
    Aes256Gcm = 2,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305 = 3,
}

impl Suite {
    /// Every suite.
    pub const ALL: [Self; 3] = [Self::Aes128Gcm, Self::Aes256Gcm, Self::ChaCha20Poly1305];

    /// Bytes of the AEAD's key.
    #[must_use]
    pub const fn key_bytes(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }

    /// Bytes of a TLS 1.3 traffic secret.
    #[must_use]
    pub const fn traffic_secret_bytes(self) -> usize {
        match self {
            Self::Aes256Gcm => 48,
            Self::Aes128Gcm | Self::ChaCha20Poly1305 => 32,
        }
    }
}

/// The keys of a session's write side. They are wiped when dropped.
pub struct KernelKeys {
    /// Protocol version.
    pub version: Version,
    /// AEAD, which decides between the kernel's structures.
    pub suite: Suite,
    /// The write key: [`Suite::key_bytes`].
    pub key: Zeroizing<Box<[u8]>>,
    /// The write IV, which the kernel combines with the sequence number. But for TLS 1.2 with GCM:
    /// 4 bytes of salt, then the explicit nonce of the next record, from which the kernel counts
    /// on.
    pub nonce: Zeroizing<[u8; 12]>,
    /// Sequence number of the next record.
    pub sequence: u64,
}

impl fmt::Debug for KernelKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelKeys")
            .field("version", &self.version)
            .field("suite", &self.suite)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_out_of_debug() {
        let keys = KernelKeys {
            version: Version::Tls13,
            suite: Suite::Aes128Gcm,
            key: Zeroizing::new(vec![9; 16].into()),
            nonce: Zeroizing::default(),
            sequence: 7,
        };
        let text = "KernelKeys { version: Tls13, suite: Aes128Gcm, sequence: 7, .. }";
        assert_eq!(format!("{keys:?}"), text);
    }
}
