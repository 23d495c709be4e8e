//! A witness of every nonce, for tests that look for a nonce used twice.

/// Sees each nonce just before a record is sealed with it.
pub trait NonceWitness {
    /// `secret` is the traffic secret in TLS 1.3, the write key in TLS 1.2. Only tests may
    /// keep it.
    fn nonce_used(&mut self, secret: &[u8], nonce: &[u8; 12]);
}

/// The witness for production, which does nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwitnessed;

impl NonceWitness for Unwitnessed {
    #[inline]
    fn nonce_used(&mut self, _secret: &[u8], _nonce: &[u8; 12]) {}
}
