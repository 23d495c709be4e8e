//! The parameters of one direction, as the kernel lays them out.

use std::fmt;
use std::mem::{offset_of, size_of};

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// `include/uapi/linux/tls.h`: version and cipher come first, 2 bytes each.
const HEADER_BYTES: usize = size_of::<libc::tls_crypto_info>();
/// The parameters of AES-128-GCM.
pub(super) const SHORT_BYTES: usize = size_of::<libc::tls12_crypto_info_aes_gcm_128>();
/// The parameters of AES-256-GCM, and of ChaCha20-Poly1305.
pub(super) const LONG_BYTES: usize = size_of::<libc::tls12_crypto_info_aes_gcm_256>();
/// The last field of each.
pub(super) const SEQUENCE_BYTES: usize = size_of::<u64>();
/// GCM's fixed part of a nonce, which the kernel calls the salt.
const SALT_BYTES: usize = 4;
/// Every suite's nonce.
pub(super) const NONCE_BYTES: usize = 12;

// `encode` writes the fields in the kernel's order.
const _: () = {
    use libc::tls12_crypto_info_aes_gcm_128 as Aes128;
    use libc::tls12_crypto_info_aes_gcm_256 as Aes256;
    use libc::tls12_crypto_info_chacha20_poly1305 as ChaCha;
    assert!(HEADER_BYTES == 4 && SHORT_BYTES == 40 && LONG_BYTES == 56);
    assert!(offset_of!(Aes128, iv) == 4 && offset_of!(Aes128, key) == 12);
    assert!(offset_of!(Aes128, salt) == 28 && offset_of!(Aes128, rec_seq) == 32);
    assert!(offset_of!(Aes256, iv) == 4 && offset_of!(Aes256, key) == 12);
    assert!(offset_of!(Aes256, salt) == 44 && offset_of!(Aes256, rec_seq) == 48);
    assert!(size_of::<ChaCha>() == LONG_BYTES && offset_of!(ChaCha, iv) == 4);
    assert!(offset_of!(ChaCha, key) == 16 && offset_of!(ChaCha, rec_seq) == 48);
};

/// Protocol version of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// An AEAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305,
}

/// The AEAD with its key; wiped when dropped.
#[derive(Zeroize, ZeroizeOnDrop)]
pub enum Key {
    /// AES-128-GCM.
    Aes128Gcm([u8; 16]),
    /// AES-256-GCM.
    Aes256Gcm([u8; 32]),
    /// ChaCha20-Poly1305.
    ChaCha20Poly1305([u8; 32]),
}

/// The parameters of one direction of a session.
pub struct CryptoInfo {
    /// The session's version.
    pub version: Version,
    /// The write key of the direction.
    pub key: Key,
    /// The write IV, which the kernel combines with the sequence number. But for
    /// TLS 1.2 with GCM: 4 bytes of salt, then the explicit nonce of the next
    /// record, from which the kernel counts on.
    pub iv: [u8; NONCE_BYTES],
    /// Sequence number of the next record.
    pub sequence: u64,
}

impl CryptoInfo {
    /// Bytes of a record beyond its plaintext, as the kernel makes it.
    #[must_use]
    pub fn record_overhead_bytes(&self) -> usize {
        const HEADER: usize = 5;
        const TAG: usize = 16;
        match (self.version, &self.key) {
            // The content type is inside.
            (Version::Tls13, _) => HEADER + TAG + 1,
            (Version::Tls12, Key::ChaCha20Poly1305(_)) => HEADER + TAG,
            (Version::Tls12, _) => HEADER + TAG + 8,
        }
    }

    /// The parameters as the kernel takes them; wiped when dropped.
    pub(super) fn encode(&self) -> Zeroizing<Vec<u8>> {
        let (cipher, key): (u16, &[u8]) = match &self.key {
            Key::Aes128Gcm(key) => (libc::TLS_CIPHER_AES_GCM_128, key),
            Key::Aes256Gcm(key) => (libc::TLS_CIPHER_AES_GCM_256, key),
            Key::ChaCha20Poly1305(key) => (libc::TLS_CIPHER_CHACHA20_POLY1305, key),
        };
        let version = match self.version {
            Version::Tls12 => libc::TLS_1_2_VERSION,
            Version::Tls13 => libc::TLS_1_3_VERSION,
        };
        // With its final capacity, so that no copy of the key is left behind.
        let mut raw = Zeroizing::new(Vec::with_capacity(LONG_BYTES));
        raw.extend_from_slice(&version.to_ne_bytes());
        raw.extend_from_slice(&cipher.to_ne_bytes());
        if cipher == libc::TLS_CIPHER_CHACHA20_POLY1305 {
            raw.extend_from_slice(&self.iv);
            raw.extend_from_slice(key);
        } else {
            let [a, b, c, d, rest @ ..] = self.iv;
            let salt: [u8; SALT_BYTES] = [a, b, c, d];
            raw.extend_from_slice(&rest);
            raw.extend_from_slice(key);
            raw.extend_from_slice(&salt);
        }
        raw.extend_from_slice(&self.sequence.to_be_bytes());
        raw
    }
}

impl fmt::Debug for CryptoInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CryptoInfo")
            .field("version", &self.version)
            .field("sequence", &self.sequence)
            .finish_non_exhaustive()
    }
}

impl Drop for CryptoInfo {
    fn drop(&mut self) {
        self.iv.zeroize();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn info(version: Version, key: Key) -> CryptoInfo {
        CryptoInfo {
            version,
            key,
            iv: [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 250],
            sequence: 7,
        }
    }

    #[test]
    fn parameters_are_laid_out_as_the_kernel_reads_them() {
        let raw = info(Version::Tls13, Key::Aes128Gcm([9; 16])).encode();
        assert_eq!(raw.len(), SHORT_BYTES);
        assert_eq!(raw[..4], [0x04, 0x03, 51, 0]);
        assert_eq!(raw[4..12], [0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[12..28], [9; 16]);
        assert_eq!(raw[28..32], [1, 2, 3, 4]);
        assert_eq!(raw[32..], 7_u64.to_be_bytes());
        let raw = info(Version::Tls12, Key::ChaCha20Poly1305([9; 32])).encode();
        assert_eq!(raw.len(), LONG_BYTES);
        assert_eq!(raw[..4], [0x03, 0x03, 54, 0]);
        assert_eq!(raw[4..16], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[48..], 7_u64.to_be_bytes());
    }

    #[test]
    fn salt_and_explicit_nonce_of_tls_1_2_go_as_they_are() {
        let raw = info(Version::Tls12, Key::Aes256Gcm([9; 32])).encode();
        assert_eq!(raw.len(), LONG_BYTES);
        assert_eq!(raw[4..12], [0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[44..48], [1, 2, 3, 4]);
    }

    #[test]
    fn keys_stay_out_of_debug() {
        let text = format!("{:?}", info(Version::Tls13, Key::Aes128Gcm([9; 16])));
        assert_eq!(text, "CryptoInfo { version: Tls13, sequence: 7, .. }");
    }
}
