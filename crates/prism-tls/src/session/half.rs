//! One direction: its secret, key and sequence number. It seals or opens one record, and does
//! not know what records mean.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::error::Unspecified;
use prism_proto::tls::Suite;
use zeroize::Zeroizing;

use super::record::{EXPLICIT_BYTES, Framing, HEADER_BYTES, RECORD_VERSION, TAG_BYTES, kind};
use super::schedule;
use super::witness::NonceWitness;
use crate::keys::{DirectionKeys, KeysError, Secret};

pub(super) struct Half {
    pub(super) suite: Suite,
    pub(super) framing: Framing,
    /// Traffic secret in TLS 1.3, write key in TLS 1.2.
    pub(super) secret: Secret,
    key: LessSafeKey,
    pub(super) iv: Zeroizing<[u8; 12]>,
    /// That of the next record. It advances before the record is sealed or opened.
    pub(super) sequence: u64,
}

impl Half {
    pub(super) fn new(suite: Suite, keys: DirectionKeys) -> Result<Self, KeysError> {
        let framing = Framing::of(keys.version(), suite);
        let (secret, key, iv, sequence) = match keys {
            DirectionKeys::Tls13 { secret, sequence } => {
                let traffic = schedule::traffic_key(suite, &secret)?;
                (
                    secret,
                    cipher(suite, traffic.key.as_bytes())?,
                    traffic.iv,
                    sequence,
                )
            }
            DirectionKeys::Tls12 { key, iv, sequence } => {
                let cipher = cipher(suite, key.as_bytes())?;
                (key, cipher, Zeroizing::new(iv), sequence)
            }
        };
        if sequence == u64::MAX {
            return Err(KeysError::Exhausted);
        }
        Ok(Self {
            suite,
            framing,
            secret,
            key,
            iv,
            sequence,
        })
    }

    /// Takes the next traffic secret. Only TLS 1.3 has one.
    pub(super) fn next_generation(&mut self) -> Result<(), KeysError> {
        let secret = schedule::next_secret(self.suite, &self.secret)?;
        let sequence = 0;
        *self = Self::new(self.suite, DirectionKeys::Tls13 { secret, sequence })?;
        Ok(())
    }

    /// Seals a record at the start of `record`, where its plaintext of `len` bytes is in
    /// place already. Returns the record's length. It fails if there is no room, or the sequence
    /// is at its end.
    pub(super) fn seal<W: NonceWitness>(
        &mut self,
        record: &mut [u8],
        len: usize,
        kind: u8,
        witness: &mut W,
    ) -> Result<usize, Unspecified> {
        let room = self.framing.surroundings();
        let total = room.total() + len;
        let record = record.get_mut(..total).ok_or(Unspecified)?;
        let (before, rest) = record
            .split_at_mut_checked(room.before)
            .ok_or(Unspecified)?;
        let (inner, tag) = rest
            .split_last_chunk_mut::<TAG_BYTES>()
            .ok_or(Unspecified)?;
        let (nonce, sequence) = self.advance().ok_or(Unspecified)?;
        let outer = self.finish_plaintext(inner, kind);
        let body = u16::try_from(total - HEADER_BYTES).map_err(|_| Unspecified)?;
        let ([major, minor], [high, low]) = (RECORD_VERSION, body.to_be_bytes());
        let header = [outer, major, minor, high, low];
        write_before(before, &header, &nonce);
        let inner_len = u16::try_from(inner.len()).map_err(|_| Unspecified)?;
        let associated = self.framing.associated(&header, sequence, inner_len);
        witness.nonce_used(self.secret.as_bytes(), &nonce);
        let nonce = Nonce::assume_unique_for_key(nonce);
        let associated = Aad::from(associated);
        let made = (self.key).seal_in_place_separate_tag(nonce, associated, inner)?;
        tag.copy_from_slice(made.as_ref());
        Ok(total)
    }

    /// The nonce and sequence number of the next record. The sequence number advances before
    /// the nonce is used, even if sealing fails.
    fn advance(&mut self) -> Option<([u8; 12], u64)> {
        let sequence = self.sequence;
        self.sequence = sequence.checked_add(1)?;
        Some((self.framing.nonce(&self.iv, sequence), sequence))
    }

    /// Writes the inner content type if there is one. Returns the content type of the header.
    fn finish_plaintext(&self, inner: &mut [u8], kind: u8) -> u8 {
        match self.framing {
            Framing::Tls13 => {
                if let Some(last) = inner.last_mut() {
                    *last = kind;
                }
                kind::APPLICATION_DATA
            }
            Framing::Tls12Explicit | Framing::Tls12Implicit => kind,
        }
    }

    /// Opens `record`, header included, in place. Returns the offset and length of the AEAD's
    /// output in it. It fails if the record is forged or too short, or the sequence is at its end.
    pub(super) fn open(&mut self, record: &mut [u8]) -> Result<(usize, usize), Unspecified> {
        let (header, body) = record
            .split_first_chunk_mut::<HEADER_BYTES>()
            .ok_or(Unspecified)?;
        let (rest, tag) = body
            .split_last_chunk_mut::<TAG_BYTES>()
            .ok_or(Unspecified)?;
        let (mut nonce, sequence) = self.advance().ok_or(Unspecified)?;
        let (inner, offset) = match self.framing {
            Framing::Tls13 | Framing::Tls12Implicit => (rest, HEADER_BYTES),
            Framing::Tls12Explicit => {
                let (explicit, inner) = rest
                    .split_first_chunk_mut::<EXPLICIT_BYTES>()
                    .ok_or(Unspecified)?;
                for (to, from) in nonce.iter_mut().skip(4).zip(explicit) {
                    *to = *from;
                }
                (inner, HEADER_BYTES + EXPLICIT_BYTES)
            }
        };
        let len = u16::try_from(inner.len()).map_err(|_| Unspecified)?;
        let associated = self.framing.associated(header, sequence, len);
        let nonce = Nonce::assume_unique_for_key(nonce);
        self.key
            .open_in_place_separate_tag(nonce, Aad::from(associated), tag, inner)?;
        Ok((offset, usize::from(len)))
    }
}

fn cipher(suite: Suite, bytes: &[u8]) -> Result<LessSafeKey, KeysError> {
    let algorithm = match suite {
        Suite::Aes128Gcm => &aead::AES_128_GCM,
        Suite::Aes256Gcm => &aead::AES_256_GCM,
        Suite::ChaCha20Poly1305 => &aead::CHACHA20_POLY1305,
    };
    let key = UnboundKey::new(algorithm, bytes).map_err(|_| KeysError::SecretLength)?;
    Ok(LessSafeKey::new(key))
}

/// Writes the header, and the explicit nonce if there is room for one.
fn write_before(before: &mut [u8], header: &[u8; HEADER_BYTES], nonce: &[u8; 12]) {
    let [_, _, _, _, explicit @ ..] = nonce;
    for (to, from) in before.iter_mut().zip(header.iter().chain(explicit)) {
        *to = *from;
    }
}
