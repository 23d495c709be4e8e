//! The rounds of MD5 (RFC 1321), for one message or for as many as a vector has words:
//! sixteen where the processor has vectors of 512 bits ([`crate::avx512`]). Each step waits
//! for the one before, so sixteen messages take less than two do alone.
//!
//! Not responsible for padding and lengths, nor for bringing messages together. Vectors
//! that need no proof of the processor's are the caller's, by [`Words`].

mod rounds;
#[cfg(target_arch = "x86_64")]
mod sixteen;

pub use rounds::{Words, compress};
#[cfg(target_arch = "x86_64")]
pub(crate) use {
    rounds::{first, fourth, second, third},
    sixteen::{Sixteen, take},
};

/// What stands between two blocks: the words `A` to `D`.
pub type State = [u32; 4];

/// The state before the first block.
pub const BEGIN: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
