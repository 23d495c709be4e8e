//! Signatures, operations and bodies in chunks, from outside.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    reason = "test code"
)]

mod access;
mod auth;
mod names;
mod operations;
mod streaming;
