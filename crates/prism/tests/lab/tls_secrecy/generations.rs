//! The secrets of TLS 1.3 after KeyUpdates, which no key log has. They follow from those of the
//! handshake (RFC 8446, sections 7.2 and 7.3).

use aws_lc_rs::hkdf::{HKDF_SHA256, HKDF_SHA384, KeyType, Prk};

/// The prefix of every label of TLS 1.3.
const LABEL_PREFIX: &[u8] = b"tls13 ";

/// One direction's secret between two KeyUpdates.
#[derive(Clone, PartialEq, Eq)]
pub struct TrafficSecret(pub Vec<u8>);

struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl TrafficSecret {
    /// The secret after the next KeyUpdate.
    pub fn next(&self) -> Self {
        Self(self.expand(b"traffic upd", self.0.len()))
    }

    /// The key of records under this secret.
    pub fn key(&self, bytes: usize) -> Vec<u8> {
        self.expand(b"key", bytes)
    }

    /// HKDF-Expand-Label without a context. The length of the secret tells its hash.
    fn expand(&self, label: &[u8], bytes: usize) -> Vec<u8> {
        let algorithm = match self.0.len() {
            32 => HKDF_SHA256,
            48 => HKDF_SHA384,
            other => panic!("a secret of {other} bytes"),
        };
        let bytes_on_wire = u16::try_from(bytes).unwrap().to_be_bytes();
        let label_bytes = u8::try_from(LABEL_PREFIX.len() + label.len()).unwrap();
        let info = [
            &bytes_on_wire[..],
            &[label_bytes],
            LABEL_PREFIX,
            label,
            &[0],
        ];
        let secret = Prk::new_less_safe(algorithm, &self.0);
        let mut out = vec![0; bytes];
        let expanded = secret.expand(&info, Length(bytes)).unwrap();
        expanded.fill(&mut out).unwrap();
        out
    }
}
