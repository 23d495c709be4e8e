//! Namespaces and devices of the running kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod netns;
mod tun;

use std::process::Command;

/// Whether the test can run. A test that cannot says so, and fails under CI.
fn privileged() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        let is_ci = std::env::var_os("CI").is_some();
        assert!(!is_ci, "CI must run this test as root");
        eprintln!("SKIPPED: needs root");
    }
    is_root
}

fn ip(args: &str) {
    let status = Command::new("ip").args(args.split(' ')).status().unwrap();
    assert!(status.success(), "ip {args}");
}
