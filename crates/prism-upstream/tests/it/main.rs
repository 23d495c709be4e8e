//! The whole service at one node, between a client in memory and a server of the test.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    missing_docs,
    unreachable_pub,
    reason = "test code"
)]

mod answers;
mod bed;
mod duplex;
mod failures;
mod private;
mod reload;
mod routes;
