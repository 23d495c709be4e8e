//! Records every nonce of a server in one connection, on all hosts and by all layers, and counts
//! repeated ones.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use aws_lc_rs::hkdf;
use prism_tls::{DirectionKeys, NonceWitness, SessionKeys, Suite, Version};

/// Shared by all hosts of a connection.
#[derive(Clone)]
pub(crate) struct Nonces(Rc<RefCell<Seen>>);

struct Seen {
    version: Version,
    suite: Suite,
    used: HashSet<(Vec<u8>, [u8; 12])>,
    repeated: usize,
    /// The last secret and its key, so that it is not derived for every record.
    last: (Vec<u8>, Vec<u8>),
}

impl Nonces {
    /// Starts with the records that rustls sealed before the session was taken out of it. rustls
    /// derives all nonces by XOR, also in TLS 1.2.
    pub(crate) fn of_session(keys: &SessionKeys) -> Self {
        let (version, suite) = (keys.write.version(), keys.suite);
        let (used, last) = (HashSet::new(), (Vec::new(), Vec::new()));
        let nonces = Self(Rc::new(RefCell::new(Seen {
            version,
            suite,
            used,
            repeated: 0,
            last,
        })));
        let (secret, iv, records) = match &keys.write {
            DirectionKeys::Tls13 { secret, sequence } => (
                secret.as_bytes(),
                expand(suite, secret.as_bytes(), "iv", 12),
                *sequence,
            ),
            DirectionKeys::Tls12 { key, iv, sequence } => (key.as_bytes(), iv.to_vec(), *sequence),
        };
        let key = nonces.0.borrow_mut().key_of(secret);
        for sequence in 0..records {
            let mut nonce: [u8; 12] = iv.clone().try_into().unwrap();
            let sequence = sequence.to_be_bytes();
            nonce[4..]
                .iter_mut()
                .zip(sequence)
                .for_each(|(n, s)| *n ^= s);
            nonces.used(&key, nonce);
        }
        nonces
    }

    /// Records a nonce under the AEAD key `key`.
    pub(crate) fn used(&self, key: &[u8], nonce: [u8; 12]) {
        let seen = &mut *self.0.borrow_mut();
        if !seen.used.insert((key.to_vec(), nonce)) {
            seen.repeated += 1;
        }
    }

    pub(crate) fn repeated(&self) -> usize {
        self.0.borrow().repeated
    }

    pub(crate) fn total(&self) -> usize {
        self.0.borrow().used.len()
    }
}

impl Seen {
    fn key_of(&mut self, secret: &[u8]) -> Vec<u8> {
        if self.version == Version::Tls12 {
            return secret.to_vec();
        }
        if self.last.0 != secret {
            let key = expand(self.suite, secret, "key", self.suite.key_bytes());
            self.last = (secret.to_vec(), key);
        }
        self.last.1.clone()
    }
}

impl NonceWitness for Nonces {
    fn nonce_used(&mut self, secret: &[u8], nonce: &[u8; 12]) {
        let key = self.0.borrow_mut().key_of(secret);
        self.used(&key, *nonce);
    }
}

struct Bytes(usize);

impl hkdf::KeyType for Bytes {
    fn len(&self) -> usize {
        self.0
    }
}

fn expand(suite: Suite, secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let hash = match suite {
        Suite::Aes256Gcm => hkdf::HKDF_SHA384,
        Suite::Aes128Gcm | Suite::ChaCha20Poly1305 => hkdf::HKDF_SHA256,
    };
    let label = format!("tls13 {label}");
    let info = [&[0, len as u8, label.len() as u8], label.as_bytes(), &[0]].concat();
    let mut out = vec![0; len];
    let prk = hkdf::Prk::new_less_safe(hash, secret);
    prk.expand(&[&info], Bytes(len))
        .unwrap()
        .fill(&mut out)
        .unwrap();
    out
}
