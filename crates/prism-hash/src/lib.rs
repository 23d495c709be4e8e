//! The rounds of MD5 and SHA-256, by instructions that not every processor has.
//!
//! A type such as [`avx512::Avx512`] or [`sha256::ShaNi`] proves that the processor has the
//! instructions, so every function here is safe to call. Unsafe code is in this crate and in
//! `prism-sys` only.
//!
//! Not responsible for padding and lengths, for the choice between the kernels, nor for
//! bringing messages together: that is `prism-s3`. This crate makes no system calls and keeps
//! no state.

pub mod avx512;
pub mod md5;
pub mod sha256;
