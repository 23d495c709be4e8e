//! Tests of the program `prism-lab`. It runs the program `prism` of the same directory,
//! which `scripts/test.py` builds; by hand, `cargo build --release -p prism` comes first.
//!
//! Needs root; without it each test says so and passes, except under CI, where it fails.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod benches;
mod commands;
mod demo;
mod demo_upstream;
mod mistakes;
mod pair;
mod switch;

use std::process::Command;

/// The program under test.
fn prism_lab() -> Command {
    Command::new(env!("CARGO_BIN_EXE_prism-lab"))
}
