//! The example program.

use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn each_line_is_answered_by_the_other_process() {
    if !crate::app::is_root() {
        return;
    }
    // Cargo builds the examples with the tests.
    let own = std::env::current_exe().unwrap();
    let echo = own.ancestors().nth(2).map(|dir| dir.join("examples/echo"));
    let echo = echo.filter(|path| Path::exists(path)).expect("the example");
    let mut command = Command::new(echo);
    let ran = command.stdin(Stdio::null()).output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success(), "{said}{errors}");
    let expected = [
        "one -> right (",
        "two -> left (",
        "three -> right (",
        "four -> left (",
    ];
    let mut lines = said.lines();
    for answer in expected {
        assert!(lines.any(|line| line.starts_with(answer)), "{said}{errors}");
    }
}
