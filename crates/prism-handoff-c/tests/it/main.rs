//! The C interface as C programs use it.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod connections;
mod echo;
mod header;
mod misuse;
mod node;
mod pointers;
mod program;
