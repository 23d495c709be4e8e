//! The operator's page without a cluster: its modules in node, and its use in headless Chromium.
//! The programs are in `tools/page`, and invent the cluster that the page shows.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;

/// The programs that look at the page.
pub fn tools() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tools/page")
}

/// Whether a program is on this machine. Under CI it has to be.
pub fn has(program: &str) -> bool {
    let probed = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap();
    let is_there = probed.status.success();
    assert!(
        is_there || std::env::var_os("CI").is_none(),
        "CI must have {program}"
    );
    if !is_there {
        let _ = writeln!(io::stderr(), "SKIPPED: {program} is not installed");
    }
    is_there
}

/// Runs a file of tests in node.
fn run(file: &str) {
    let output = Command::new("node")
        .args(["--test", "--test-reporter=tap"])
        .arg(tools().join(file))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("# fail 0"), "node ran no tests: {text}");
}

#[test]
fn rates_alerts_and_places_are_right() {
    if has("node") {
        run("modules.test.mjs");
    }
}

#[test]
fn requests_of_the_page_are_signed_as_amazon_signs_them() {
    if has("node") {
        run("sign.test.mjs");
    }
}

#[test]
fn the_page_works_in_a_browser_for_eyes_keys_and_screen_readers() {
    if has("node") && has("chromium") {
        run("browser.test.mjs");
    }
}
