//! The part of TLS 1.3's key schedule that an established session needs: the keys of a traffic
//! secret, and the next traffic secret (RFC 8446 sections 7.1 to 7.3). aws-lc has the functions.

use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384, Prk};
use prism_proto::tls::Suite;
use zeroize::Zeroizing;

use crate::keys::{KeysError, MAX_SECRET_BYTES, Secret, expand};

/// Key and IV of a traffic secret.
pub(super) struct TrafficKey {
    pub(super) key: Secret,
    pub(super) iv: Zeroizing<[u8; 12]>,
}

pub(super) fn traffic_key(suite: Suite, secret: &Secret) -> Result<TrafficKey, KeysError> {
    let prk = prk(suite, secret)?;
    let key = expand_secret(&prk, b"key", suite.key_bytes())?;
    let mut iv = Zeroizing::new([0; 12]);
    expand_label(&prk, b"iv", iv.as_mut_slice())?;
    Ok(TrafficKey { key, iv })
}

/// The traffic secret of the next generation.
pub(super) fn next_secret(suite: Suite, secret: &Secret) -> Result<Secret, KeysError> {
    let prk = prk(suite, secret)?;
    expand_secret(&prk, b"traffic upd", suite.traffic_secret_bytes())
}

fn prk(suite: Suite, secret: &Secret) -> Result<Prk, KeysError> {
    if secret.as_bytes().len() != suite.traffic_secret_bytes() {
        return Err(KeysError::SecretLength);
    }
    let hash = match suite {
        Suite::Aes256Gcm => HKDF_SHA384,
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => HKDF_SHA256,
    };
    Ok(Prk::new_less_safe(hash, secret.as_bytes()))
}

fn expand_secret(prk: &Prk, label: &[u8], bytes: usize) -> Result<Secret, KeysError> {
    let mut room = Zeroizing::new([0; MAX_SECRET_BYTES]);
    let secret = room.get_mut(..bytes).ok_or(KeysError::SecretLength)?;
    expand_label(prk, label, secret)?;
    Secret::new(secret)
}

/// HKDF-Expand-Label with an empty context. Lengths are below 256.
fn expand_label(prk: &Prk, label: &[u8], out: &mut [u8]) -> Result<(), KeysError> {
    const PREFIX: &[u8] = b"tls13 ";
    let length = |bytes: usize| u8::try_from(bytes).map_err(|_| KeysError::Derivation);
    let head = [0, length(out.len())?, length(PREFIX.len() + label.len())?];
    expand(prk, &[&head, PREFIX, label, &[0]], out)
}
