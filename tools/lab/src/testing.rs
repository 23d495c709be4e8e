//! Helpers of tests: labs one at a time, and commands that exist.

mod commands;

pub use commands::{check_documents, unknown_word};

use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a condition is looked at.
const POLL: Duration = Duration::from_millis(20);

/// The right to build labs: one test at a time within a process. None without root, where
/// the test is to be skipped, which is said.
///
/// # Panics
/// Without root where the variable `CI` is set: nothing may be skipped there.
pub fn turn() -> Option<MutexGuard<'static, ()>> {
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

/// Prints a line, also where the test passes.
pub fn say(text: &str) {
    let _ = writeln!(io::stderr(), "    {text}");
}

/// Waits until `done`.
///
/// # Panics
/// After `timeout`, with `what` was waited for.
pub fn eventually(what: &str, timeout: Duration, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    while !done() {
        assert!(Instant::now() < deadline, "not within {timeout:?}: {what}");
        std::thread::sleep(POLL);
    }
}
