//! A place to look at every nonce that is used, for the tests that look for one
//! used twice.

/// Sees each nonce just before a record is sealed with it.
pub trait NonceWitness {
    /// `secret` is what the key comes from: the traffic secret in TLS 1.3, the write
    /// key itself in TLS 1.2. It must not be kept outside of tests.
    fn nonce_used(&mut self, secret: &[u8], nonce: &[u8; 12]);
}

/// Nobody looks: what production uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwitnessed;

impl NonceWitness for Unwitnessed {
    #[inline]
    fn nonce_used(&mut self, _secret: &[u8], _nonce: &[u8; 12]) {}
}
