//! The rounds of MD5 (RFC 1321), for one message or for as many as a vector has words: sixteen
//! with vectors of 512 bits ([`crate::avx512`]). Each step waits for the one before, so sixteen
//! messages together take less time than two one after the other.
//!
//! Not here: padding, lengths and the grouping of messages. A caller can bring vectors of its
//! own that every processor has, by [`Words`].

pub(crate) mod rounds;
#[cfg(target_arch = "x86_64")]
pub(crate) mod sixteen;

pub use rounds::{Words, compress};

/// The state between two blocks: the words `A` to `D`.
pub type State = [u32; 4];

/// The state before the first block.
pub const BEGIN: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];
