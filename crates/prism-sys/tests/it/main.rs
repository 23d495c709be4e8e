//! System calls against the running kernel: connections that are frozen, saved and restored, kTLS,
//! and the socket table.
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod common;
mod peer;

mod diag;
mod freeze;
mod handoff;
mod initial_window;
mod ktls;
mod lifecycle;
mod netem;
mod queues;
mod renew;
