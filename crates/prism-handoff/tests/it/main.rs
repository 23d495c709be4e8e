//! The library as its users see it: endpoints, connections, hand-offs and relay streams.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod app;
mod document;
mod documented;
mod duplex;
mod hand_off;
mod loopback;
