//! The parameters of one direction, as the kernel lays them out.

use std::mem::{offset_of, size_of};

use prism_proto::tls::{KernelKeys, Suite, Version};
use zeroize::Zeroizing;

/// `include/uapi/linux/tls.h`: version and cipher come first, 2 bytes each.
const HEADER_BYTES: usize = size_of::<libc::tls_crypto_info>();
/// The parameters of AES-128-GCM.
pub(super) const SHORT_BYTES: usize = size_of::<libc::tls12_crypto_info_aes_gcm_128>();
/// The parameters of AES-256-GCM, and of ChaCha20-Poly1305.
pub(super) const LONG_BYTES: usize = size_of::<libc::tls12_crypto_info_aes_gcm_256>();
/// The last field of each.
pub(super) const SEQUENCE_BYTES: usize = size_of::<u64>();

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

/// The parameters as the kernel takes them; wiped when dropped.
pub(super) fn encode(keys: &KernelKeys) -> Zeroizing<Vec<u8>> {
    let cipher = match keys.suite {
        Suite::Aes128Gcm => libc::TLS_CIPHER_AES_GCM_128,
        Suite::Aes256Gcm => libc::TLS_CIPHER_AES_GCM_256,
        Suite::ChaCha20Poly1305 => libc::TLS_CIPHER_CHACHA20_POLY1305,
    };
    let version = match keys.version {
        Version::Tls12 => libc::TLS_1_2_VERSION,
        Version::Tls13 => libc::TLS_1_3_VERSION,
    };
    let [a, b, c, d, rest @ ..] = *keys.nonce;
    // GCM's fixed part of the nonce, the salt, comes behind the key.
    let (iv, salt): (&[u8], &[u8]) = match keys.suite {
        Suite::Aes128Gcm | Suite::Aes256Gcm => (&rest, &[a, b, c, d]),
        Suite::ChaCha20Poly1305 => (keys.nonce.as_slice(), &[]),
    };
    // With its final capacity, so that no copy of the key is left behind.
    let mut raw = Zeroizing::new(Vec::with_capacity(LONG_BYTES));
    raw.extend_from_slice(&version.to_ne_bytes());
    raw.extend_from_slice(&cipher.to_ne_bytes());
    for field in [iv, &*keys.key, salt, &keys.sequence.to_be_bytes()] {
        raw.extend_from_slice(field);
    }
    raw
}

#[cfg(test)]
mod tests {
    #![allow(clippy::indexing_slicing)]
    use super::*;

    fn encoded(version: Version, suite: Suite) -> Zeroizing<Vec<u8>> {
        encode(&KernelKeys {
            version,
            suite,
            key: Zeroizing::new(vec![9; suite.key_bytes()].into()),
            nonce: Zeroizing::new([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 250]),
            sequence: 7,
        })
    }

    #[test]
    fn parameters_are_laid_out_as_the_kernel_reads_them() {
        let raw = encoded(Version::Tls13, Suite::Aes128Gcm);
        assert_eq!(raw.len(), SHORT_BYTES);
        assert_eq!(raw[..4], [0x04, 0x03, 51, 0]);
        assert_eq!(raw[4..12], [0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[12..28], [9; 16]);
        assert_eq!(raw[28..32], [1, 2, 3, 4]);
        assert_eq!(raw[32..], 7_u64.to_be_bytes());
        let raw = encoded(Version::Tls12, Suite::ChaCha20Poly1305);
        assert_eq!(raw.len(), LONG_BYTES);
        assert_eq!(raw[..4], [0x03, 0x03, 54, 0]);
        assert_eq!(raw[4..16], [1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[48..], 7_u64.to_be_bytes());
    }

    #[test]
    fn salt_and_explicit_nonce_of_tls_1_2_go_as_they_are() {
        let raw = encoded(Version::Tls12, Suite::Aes256Gcm);
        assert_eq!(raw.len(), LONG_BYTES);
        assert_eq!(raw[4..12], [0, 0, 0, 0, 0, 0, 0, 250]);
        assert_eq!(raw[44..48], [1, 2, 3, 4]);
    }
}
