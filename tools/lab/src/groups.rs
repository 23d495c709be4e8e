//! Control groups of a lab: each host has one of version 2, as a service has under systemd. A
//! program that a node attaches to its group sees no other node's packets.

use std::io;
use std::path::{Path, PathBuf};

use crate::name::LabName;

/// Moves itself to the group whose file is the first argument, and executes the rest.
const MOVE_AND_BECOME: &str = r#"echo 0 >"$0" && exec "$@""#;

/// The command line that runs `line` in the control group of `host`. Without groups of version
/// 2 it is `line`.
pub(crate) fn command_line(name: &LabName, host: &str, line: &[String]) -> io::Result<Vec<String>> {
    let Some((mount, _)) = mounts().into_iter().find(|(_, kind)| kind == "cgroup2") else {
        return Ok(line.to_vec());
    };
    let group = mount.join(name.directory_name()).join(host);
    std::fs::create_dir_all(&group)?;
    let members = group.join("cgroup.procs").to_string_lossy().into_owned();
    let head = ["sh", "-c", MOVE_AND_BECOME].map(str::to_owned);
    Ok([&head[..], &[members], line].concat())
}

/// The directories of the lab in every mounted hierarchy.
pub(crate) fn of_lab(name: &LabName) -> Vec<PathBuf> {
    mounts()
        .into_iter()
        .map(|(mount, _)| mount.join(name.directory_name()))
        .filter(|path| path.is_dir())
        .collect()
}

/// Removes a group and its descendants, leaves first. `rmdir` removes a group; its files are
/// the kernel's and cannot be unlinked.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

/// The mount points of control groups, and the type of each.
fn mounts() -> Vec<(PathBuf, String)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let mount = fields.next()?;
            let kind = fields.next()?;
            kind.starts_with("cgroup")
                .then(|| (PathBuf::from(mount), kind.to_owned()))
        })
        .collect()
}
