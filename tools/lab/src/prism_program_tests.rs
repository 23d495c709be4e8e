#![allow(clippy::unwrap_used, reason = "test code")]

use std::os::unix::fs::PermissionsExt;

use super::*;

#[test]
fn a_named_program_is_taken_by_its_absolute_path() {
    let named = Path::new("/bin/../bin/sh");
    assert_eq!(prism_program(Some(named)).unwrap(), named);
}

#[test]
fn a_missing_program_is_named_with_the_two_ways_to_have_one() {
    let said = prism_program(None).unwrap_err().to_string();
    let own = std::env::current_exe().unwrap();
    let beside = own.with_file_name("prism").display().to_string();
    for part in [
        beside.as_str(),
        "cargo build --release -p prism",
        "--prism PATH",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_directory_or_a_file_that_cannot_be_executed_is_no_program() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("prism");
    std::fs::write(&file, "").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    for path in [directory.path(), &file] {
        let refused = prism_program(Some(path));
        assert!(
            matches!(refused, Err(LabError::NoPrism { .. })),
            "{refused:?}"
        );
    }
}
