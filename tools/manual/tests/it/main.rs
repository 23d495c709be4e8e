//! Tests of the program `prism-manual`.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeSet;
use std::fs::{read_dir, read_to_string};
use std::path::Path;
use std::process::Command;

/// The names of the man pages of a command and of all commands below it.
fn pages(command: &clap::Command, prefix: &str) -> Vec<String> {
    let name = format!("{prefix}{}", command.get_name());
    let below = command
        .get_subcommands()
        .filter(|below| !below.is_hide_set());
    let below = below.flat_map(|below| pages(below, &format!("{name}-")));
    below.chain([format!("{name}.1")]).collect()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = read_dir(dir).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect()
}

#[test]
fn every_command_has_a_man_page_and_each_shell_its_completions() {
    let dir = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_prism-manual"))
        .arg(dir.path())
        .status();
    assert!(status.unwrap().success());
    let mut command = prism::command();
    command.build();
    let mut wanted: BTreeSet<_> = pages(&command, "").into_iter().collect();
    // `prism help` prints what the pages have.
    wanted.retain(|name| !name.contains("-help"));
    let man = dir.path().join("man");
    assert_eq!(names(&man), wanted);
    assert!(wanted.contains("prism-serve.1") && wanted.contains("prism-ctl-cluster.1"));
    let page = read_to_string(man.join("prism-serve.1")).unwrap();
    assert!(page.contains("allow\\-remote"), "{page}");

    let completions = dir.path().join("completions");
    let shells = ["_prism", "prism.bash", "prism.fish"].map(String::from);
    assert_eq!(names(&completions), shells.into());
    for shell in names(&completions) {
        let text = read_to_string(completions.join(shell)).unwrap();
        assert!(text.contains("allow-remote"), "{text}");
    }
}
