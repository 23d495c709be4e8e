//! A kernel that seals records as `net/tls/tls_sw.c` does. The explicit nonce of TLS 1.2 with GCM
//! counts up from the given IV; other nonces are derived by XOR.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use prism_tls::{KernelKeys, Suite, Version};

use crate::nonces::Nonces;

const DATA: u8 = 23;

pub(crate) struct KernelTls {
    keys: KernelKeys,
    iv: Vec<u8>,
    pub(crate) sequence: u64,
}

impl KernelTls {
    pub(crate) fn new(keys: KernelKeys) -> Self {
        let sequence = keys.sequence;
        Self {
            iv: keys.nonce[4..].to_vec(),
            keys,
            sequence,
        }
    }

    /// A record of data.
    pub(crate) fn seal(&mut self, content: &[u8], nonces: &Nonces) -> Vec<u8> {
        let tls13 = self.keys.version == Version::Tls13;
        let explicit = !tls13 && self.keys.suite != Suite::ChaCha20Poly1305;
        let nonce = self.nonce(explicit);
        let mut inner = content.to_vec();
        inner.extend(tls13.then_some(DATA));
        let body = inner.len() + 16 + if explicit { 8 } else { 0 };
        let mut record = vec![DATA, 3, 3, (body >> 8) as u8, body as u8];
        let [high, low] = (inner.len() as u16).to_be_bytes();
        let aad = match tls13 {
            true => record.clone(),
            false => [&self.sequence.to_be_bytes()[..], &[DATA, 3, 3, high, low]].concat(),
        };
        if explicit {
            record.extend_from_slice(&self.iv);
            let next = u64::from_be_bytes(self.iv[..].try_into().unwrap()).wrapping_add(1);
            self.iv = next.to_be_bytes().to_vec();
        }
        self.sequence += 1;
        nonces.used(&self.keys.key, nonce);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let key = self.key();
        key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut inner)
            .unwrap();
        record.extend_from_slice(&inner);
        record
    }

    fn nonce(&self, explicit: bool) -> [u8; 12] {
        let mut nonce: [u8; 12] = [&self.keys.nonce[..4], &self.iv]
            .concat()
            .try_into()
            .unwrap();
        if !explicit {
            let sequence = self.sequence.to_be_bytes();
            nonce[4..]
                .iter_mut()
                .zip(sequence)
                .for_each(|(n, s)| *n ^= s);
        }
        nonce
    }

    fn key(&self) -> LessSafeKey {
        let algorithm = match self.keys.suite {
            Suite::Aes128Gcm => &AES_128_GCM,
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        LessSafeKey::new(UnboundKey::new(algorithm, &self.keys.key).unwrap())
    }
}
