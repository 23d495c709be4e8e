//! The part of TLS 1.3's key schedule that an established session needs: the keys of a traffic
//! secret, and the next traffic secret (RFC 8446 sections 7.1 to 7.3). aws-lc has the functions.

use aws_lc_rs::hkdf;
use zeroize::Zeroizing;

use crate::keys::{KeysError, Secret, Suite};

/// Longest label here, with `tls13 ` before it.
const MAX_LABEL_BYTES: usize = 17;

/// Key and IV of a traffic secret.
pub(super) struct TrafficKey {
    key: Zeroizing<[u8; 32]>,
    key_bytes: usize,
    pub(super) iv: Zeroizing<[u8; 12]>,
}

impl TrafficKey {
    pub(super) fn key(&self) -> &[u8] {
        self.key.get(..self.key_bytes).unwrap_or_default()
    }
}

pub(super) fn traffic_key(suite: Suite, secret: &Secret) -> Result<TrafficKey, KeysError> {
    let prk = prk(suite, secret)?;
    let mut traffic = TrafficKey {
        key: Zeroizing::new([0; 32]),
        key_bytes: suite.key_bytes(),
        iv: Zeroizing::new([0; 12]),
    };
    let key = traffic.key.get_mut(..suite.key_bytes()).unwrap_or_default();
    expand_label(&prk, b"key", key)?;
    expand_label(&prk, b"iv", traffic.iv.as_mut_slice())?;
    Ok(traffic)
}

/// The traffic secret of the next generation.
pub(super) fn next_secret(suite: Suite, secret: &Secret) -> Result<Secret, KeysError> {
    let mut next = Zeroizing::new([0; 48]);
    let next = next
        .get_mut(..suite.traffic_secret_bytes())
        .unwrap_or_default();
    expand_label(&prk(suite, secret)?, b"traffic upd", next)?;
    Secret::new(next)
}

fn prk(suite: Suite, secret: &Secret) -> Result<hkdf::Prk, KeysError> {
    if secret.as_bytes().len() != suite.traffic_secret_bytes() {
        return Err(KeysError::SecretLength);
    }
    let hash = match suite {
        Suite::Aes256Gcm => hkdf::HKDF_SHA384,
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
    };
    Ok(hkdf::Prk::new_less_safe(hash, secret.as_bytes()))
}

/// HKDF-Expand-Label with an empty context.
fn expand_label(prk: &hkdf::Prk, label: &[u8], out: &mut [u8]) -> Result<(), KeysError> {
    const PREFIX: &[u8] = b"tls13 ";
    let len = Length(out.len());
    let [high, low] = u16::try_from(out.len()).unwrap_or(u16::MAX).to_be_bytes();
    let label_bytes = u8::try_from(PREFIX.len() + label.len()).unwrap_or(u8::MAX);
    debug_assert!(usize::from(label_bytes) <= MAX_LABEL_BYTES);
    let info: [&[u8]; 4] = [&[high, low, label_bytes], PREFIX, label, &[0]];
    prk.expand(&info, len)
        .and_then(|okm| okm.fill(out))
        .map_err(|_| KeysError::Derivation)
}

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}
