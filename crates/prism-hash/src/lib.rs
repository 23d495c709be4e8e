//! The rounds of MD5 and SHA-256, with instructions that not every processor has.
//!
//! A value of [`avx512::Avx512`] or [`sha256::ShaNi`] proves that the processor has the
//! instructions, so every function here is safe to call. The product has unsafe code in this crate
//! and in `prism-sys` only.
//!
//! Not here: padding and lengths, the choice between the kernels, and the grouping of messages,
//! which are in `prism-s3`. This crate makes no system calls and has no state.

pub mod avx512;
pub mod md5;
pub mod sha256;

/// Bytes of a block, of MD5 and of SHA-256.
pub const BLOCK: usize = 64;

/// Messages that are hashed together by [`avx512`].
pub const SIXTEEN: usize = 16;

/// The next blocks of sixteen messages.
pub type Blocks<'b> = [&'b [[u8; BLOCK]]; SIXTEEN];
