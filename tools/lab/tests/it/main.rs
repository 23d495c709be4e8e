//! Tests of labs that are built, used and taken down, with programs other than Prism.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "test code"
)]

mod cluster;
mod families;
mod lab;
mod pair;

use prism_lab::testing::turn;
