//! Labs that are built, used and taken down, with programs other than Prism.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "test code"
)]

mod cluster;
mod lab;

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The right to build labs: one test at a time, so that timings and sweeps do
/// not disturb each other.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let is_root = rustix::process::geteuid().is_root();
    assert!(
        is_root || std::env::var_os("CI").is_none(),
        "CI must run these tests as root"
    );
    if !is_root {
        // Not println!, which the test harness hides for a test that passes.
        let _ = writeln!(io::stderr(), "SKIPPED: needs root");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}
