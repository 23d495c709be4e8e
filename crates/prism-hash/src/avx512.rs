//! Vectors of sixteen words (AVX-512), one of each of sixteen messages that are hashed together
//! (`md5`, `sha256`).

#[cfg(target_arch = "x86_64")]
mod both;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sixteen;

use crate::{Blocks, SIXTEEN, md5, sha256};

/// Proof that the processor has such vectors. Other architectures have none.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(
    #[cfg(not(target_arch = "x86_64"))] std::convert::Infallible,
    (),
);

impl Avx512 {
    /// The proof, if the processor has the vectors.
    #[must_use]
    pub fn detect() -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return Some(Self(()));
        }
        None
    }

    /// Hashes the next blocks of sixteen messages: of each as many as the shortest has.
    pub fn md5(self, states: &mut [md5::State; SIXTEEN], blocks: &Blocks<'_>) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `self` proves that the processor has the instructions of the function.
        unsafe {
            md5::sixteen::hash(states, blocks);
        }
        #[cfg(not(target_arch = "x86_64"))]
        match (self.0, states, blocks) {}
    }

    /// Computes both hashes of each message, in less time than one after the other.
    pub fn md5_and_sha256(
        self,
        md5s: &mut [md5::State; SIXTEEN],
        sha256s: &mut [sha256::State; SIXTEEN],
        blocks: &Blocks<'_>,
    ) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `md5`.
        unsafe {
            both::hash(md5s, sha256s, blocks);
        }
        #[cfg(not(target_arch = "x86_64"))]
        match (self.0, md5s, sha256s, blocks) {}
    }
}
