//! The server's handshake with several clients: every suite, input cut anywhere, tickets across
//! servers, certificates by name, and clients that break the rules.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "test code"
)]

mod certificates;
mod clients;
mod foreign;
mod handshakes;
mod hostile;
mod loopback;
mod resumption;
mod support;
