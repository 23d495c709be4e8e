//! The key of one period, and the form of the tickets under it.
//!
//! A ticket is `name[16] salt[32] sealed`. The name identifies the secret and the period, and
//! reveals neither. The salt is random. HKDF of the salt and the period's key gives each ticket
//! an AES-256-GCM key and nonce of its own, so that no number of tickets uses a key up.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Prk};
use zeroize::Zeroizing;

use crate::keys::expand;

const NAME_BYTES: usize = 16;
const SALT_BYTES: usize = 32;
const KEY_BYTES: usize = 32;
const TAG_BYTES: usize = 16;
/// Longest ticket that is made or opened. It holds the session's secret (48 bytes), its host
/// name (255 bytes) and some numbers.
const MAX_TICKET_BYTES: usize = 1_024;

/// The key of the tickets of one period.
pub(super) struct PeriodKey {
    name: [u8; NAME_BYTES],
    root: Prk,
}

impl PeriodKey {
    /// The key of period number `period` under a fleet secret.
    pub(super) fn new(root: &Prk, period: u64, rotation_s: u32) -> Option<Self> {
        // The rotation is part of it, because it decides which time a number names.
        let period = period.to_be_bytes();
        let rotation = rotation_s.to_be_bytes();
        let mut name = [0; NAME_BYTES];
        expand(root, &[b"name", &period, &rotation], &mut name).ok()?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        expand(root, &[b"key", &period, &rotation], &mut *key).ok()?;
        let root = Prk::new_less_safe(HKDF_SHA256, &*key);
        Some(Self { name, root })
    }

    /// A ticket that holds `plain`, or `None` if it would be too long to open.
    pub(super) fn seal(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let mut salt = [0; SALT_BYTES];
        aws_lc_rs::rand::fill(&mut salt).ok()?;
        let (key, nonce) = self.ticket_key(&salt)?;
        let mut ticket = Vec::with_capacity(NAME_BYTES + SALT_BYTES + plain.len() + TAG_BYTES);
        ticket.extend_from_slice(&self.name);
        ticket.extend_from_slice(&salt);
        let aad = Aad::from(ticket.clone());
        ticket.extend_from_slice(plain);
        let (_, body) = ticket.split_at_mut_checked(NAME_BYTES + SALT_BYTES)?;
        let tag = key.seal_in_place_separate_tag(nonce, aad, body).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        (ticket.len() <= MAX_TICKET_BYTES).then_some(ticket)
    }

    /// Whether `ticket` has this key's name. The name is public, so the time of the comparison
    /// tells nothing.
    pub(super) fn made(&self, ticket: &[u8]) -> bool {
        ticket.starts_with(&self.name)
    }

    /// The content of `ticket`, or `None` if it is not of this key, or was changed.
    pub(super) fn open(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > MAX_TICKET_BYTES {
            return None;
        }
        let (head, sealed) = ticket.split_at_checked(NAME_BYTES + SALT_BYTES)?;
        let (key, nonce) = self.ticket_key(head.get(NAME_BYTES..)?)?;
        let mut body = sealed.to_vec();
        let plain_bytes = key
            .open_in_place(nonce, Aad::from(head), &mut body)
            .ok()?
            .len();
        body.truncate(plain_bytes);
        Some(body)
    }

    fn ticket_key(&self, salt: &[u8]) -> Option<(LessSafeKey, Nonce)> {
        let mut okm = Zeroizing::new([0; KEY_BYTES + NONCE_LEN]);
        expand(&self.root, &[b"ticket", salt], &mut *okm).ok()?;
        let (key, nonce) = okm.split_at_checked(KEY_BYTES)?;
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?);
        Some((key, Nonce::try_assume_unique_for_key(nonce).ok()?))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]

    use super::*;

    fn key() -> PeriodKey {
        PeriodKey::new(&Prk::new_less_safe(HKDF_SHA256, &[1; 32]), 7, 3_600).unwrap()
    }

    #[test]
    fn a_changed_or_shortened_ticket_never_opens() {
        let key = key();
        let ticket = key.seal(b"session").unwrap();
        assert_eq!(key.open(&ticket).unwrap(), b"session");
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert_eq!(key.open(&changed), None, "byte {at}");
            assert_eq!(key.open(&ticket[..at]), None, "{at} bytes");
            assert_eq!(key.made(&changed), at >= NAME_BYTES, "byte {at}");
        }
        assert_eq!(key.open(&[0; 65_536]), None);
    }

    #[test]
    fn a_ticket_that_could_not_be_opened_is_not_made() {
        let overhead = NAME_BYTES + SALT_BYTES + TAG_BYTES;
        let most = vec![0; MAX_TICKET_BYTES - overhead];
        let ticket = key().seal(&most).unwrap();
        assert_eq!(key().open(&ticket).unwrap(), most);
        assert_eq!(key().seal(&[most, vec![0]].concat()), None);
    }

    #[test]
    fn equal_sessions_have_unequal_tickets() {
        let (one, other) = (key().seal(b"same").unwrap(), key().seal(b"same").unwrap());
        assert_eq!(one[..NAME_BYTES], other[..NAME_BYTES]);
        assert_ne!(
            one[NAME_BYTES..][..SALT_BYTES],
            other[NAME_BYTES..][..SALT_BYTES]
        );
        assert_ne!(
            one[NAME_BYTES + SALT_BYTES..],
            other[NAME_BYTES + SALT_BYTES..]
        );
    }
}
