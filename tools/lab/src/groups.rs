//! Control groups of a lab: each host has one of version 2, as each service has under
//! systemd. Programs that a node attaches to its group do not meet other nodes' packets.

use std::io;
use std::path::{Path, PathBuf};

use crate::name::LabName;

/// Moves itself to the group whose file is the first argument, and becomes the rest.
const MOVE_AND_BECOME: &str = r#"echo 0 >"$0" && exec "$@""#;

/// The command line that runs `line` in the control group of `host`: `line` as it is
/// where no groups of version 2 are mounted.
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

/// Removes a group and those below it. A group goes away by rmdir, from the leaves up;
/// its files are the kernel's and cannot be unlinked.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

/// Where control groups are mounted, and the type of each mount.
fn mounts() -> Vec<(PathBuf, String)> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (mount, kind) = (fields.next()?, fields.next()?);
            kind.starts_with("cgroup")
                .then(|| (PathBuf::from(mount), kind.to_owned()))
        })
        .collect()
}
