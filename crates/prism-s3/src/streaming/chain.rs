//! The signatures of a body in chunks. Each covers its chunk and the signature before it; the
//! first covers the signature of the request.

use aws_lc_rs::{constant_time, digest, hmac};
use data_encoding::HEXLOWER;
use prism_proto::facts::Seed;

use crate::canonical::Scope;
use crate::fields::EMPTY_SHA256;
use crate::{Code, S3Error};

/// Verifies the chunks of one body, one after the other.
#[derive(Clone)]
pub struct Chain {
    key: hmac::Key,
    seed: Seed,
    time: String,
    scope: String,
    previous: [u8; 32],
    /// The signature that the present chunk must have.
    claimed: [u8; 32],
    hash: digest::Context,
}

impl Chain {
    /// `time` is that of the seed, in the signed form.
    pub(crate) fn new(key: hmac::Key, time: String, scope: Scope<'_>, seed: Seed) -> Self {
        Self {
            key,
            seed,
            time,
            scope: scope.to_string(),
            previous: seed.signature,
            claimed: seed.signature,
            hash: digest::Context::new(&digest::SHA256),
        }
    }

    /// The chain's start. Another node that knows the caller's secret makes the same chain from
    /// it ([`crate::Authenticator::chain`]).
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Begins a chunk that should have this signature.
    pub(super) fn begin(&mut self, claimed: [u8; 32]) {
        self.claimed = claimed;
        self.hash = digest::Context::new(&digest::SHA256);
    }

    pub(super) fn update(&mut self, data: &[u8]) {
        self.hash.update(data);
    }

    /// Ends the chunk, and verifies it.
    pub(super) fn end(&mut self) -> Result<(), S3Error> {
        let hash = HEXLOWER.encode(self.hash.clone().finish().as_ref());
        let previous = HEXLOWER.encode(&self.previous);
        let time = &self.time;
        let scope = &self.scope;
        let text = format!(
            "AWS4-HMAC-SHA256-PAYLOAD\n{time}\n{scope}\n{previous}\n{EMPTY_SHA256}\n{hash}"
        );
        self.check(&text, self.claimed)
    }

    /// Verifies the trailers, each as `name:value` and LF.
    pub(super) fn check_trailers(
        &mut self,
        trailers: &str,
        claimed: [u8; 32],
    ) -> Result<(), S3Error> {
        let hash = digest::digest(&digest::SHA256, trailers.as_bytes());
        let hash = HEXLOWER.encode(hash.as_ref());
        let previous = HEXLOWER.encode(&self.previous);
        let time = &self.time;
        let scope = &self.scope;
        let text = format!("AWS4-HMAC-SHA256-TRAILER\n{time}\n{scope}\n{previous}\n{hash}");
        self.check(&text, claimed)
    }

    fn check(&mut self, text: &str, claimed: [u8; 32]) -> Result<(), S3Error> {
        let expected = hmac::sign(&self.key, text.as_bytes());
        constant_time::verify_slices_are_equal(expected.as_ref(), &claimed)
            .map_err(|_| Code::SignatureDoesNotMatch)?;
        self.previous = claimed;
        Ok(())
    }
}

/// Compares chains at their beginning. The key follows from the scope and the caller.
impl PartialEq for Chain {
    fn eq(&self, other: &Self) -> bool {
        (&self.time, &self.scope, self.previous) == (&other.time, &other.scope, other.previous)
    }
}

impl Eq for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("time", &self.time)
            .field("scope", &self.scope)
            .finish_non_exhaustive()
    }
}
