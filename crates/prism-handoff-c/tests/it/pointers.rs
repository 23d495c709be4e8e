//! Pointers that the library returns are valid for as long as the header says.

use std::process::Command;

use prism_handoff::pki;

use crate::node::free_port;
use crate::program::compile;

#[test]
fn memory_of_a_connection_stays_until_the_next_poll() {
    let dir = tempfile::tempdir().unwrap();
    pki::init(dir.path(), &["node".into()]).unwrap();
    let program = compile(&dir, "tests/it/pointers.c").unwrap();
    let port = free_port().to_string();
    let mut command = Command::new(program);
    command.arg(dir.path()).arg(format!("127.0.0.1:{port}"));
    let output = command.args([&port, &free_port().to_string()]).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
}
