//! The key-value server behind a switch, and unmodified clients of it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    missing_docs,
    unreachable_pub,
    reason = "test code"
)]

mod client;
mod clients;
mod cluster;
mod consistency;
mod limits;
