//! The eBPF programs, loaded into the kernel: packet in, verdict and packet out.
#![allow(
    missing_docs,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod common;

mod aging;
mod checksums;
mod closing;
mod control;
mod differential;
mod frontends;
mod icmp;
mod network;
mod steering;
mod syn;
mod tables;
