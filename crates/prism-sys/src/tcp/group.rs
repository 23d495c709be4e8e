//! The control group (version 2) of this process, to which programs are attached.

use std::fs::{File, read_to_string};
use std::io;
use std::path::{Path, PathBuf};

/// The group's directory; `None` without groups of version 2.
pub(super) fn open() -> io::Result<Option<File>> {
    own_group().map(File::open).transpose()
}

/// The directory of this process's control group of version 2.
fn own_group() -> Option<PathBuf> {
    let groups = read_to_string("/proc/self/cgroup").ok()?;
    let mounts = read_to_string("/proc/self/mountinfo").ok()?;
    group_in(&groups, &mounts)
}

fn group_in(groups: &str, mounts: &str) -> Option<PathBuf> {
    let own = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    // Fields of proc_pid_mountinfo(5): the fourth is the root of the mount, the fifth
    // its place, and the type follows a lone dash.
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        if !kind.starts_with("cgroup2 ") {
            return None;
        }
        let mut fields = place.split(' ').skip(3);
        let root = fields.next()?;
        let place = fields.next()?;
        // The comparison is by whole names: the name of another group may begin like that of the
        // mount's root.
        let below = Path::new(own).strip_prefix(root).ok()?;
        Some(Path::new(place).join(below))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_group_is_found_below_its_mount() {
        let mount = |root: &str| {
            format!(
                "1 2 0:1 / /proc rw - proc proc rw\n\
                 30 24 0:26 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
            )
        };
        let of = |groups: &str, root: &str| group_in(groups, &mount(root));
        let at = |path: &str| Some(PathBuf::from(path));
        let unit = "1:cpu:/x\n0::/system.slice/prism.service\n";
        assert_eq!(
            of(unit, "/"),
            at("/sys/fs/cgroup/system.slice/prism.service")
        );
        assert_eq!(
            of(unit, "/system.slice"),
            at("/sys/fs/cgroup/prism.service")
        );
        assert_eq!(of("0::/\n", "/"), at("/sys/fs/cgroup/"));
        assert_eq!(of("0::/systems/a\n", "/system"), None);
        assert_eq!(of("1:cpu:/x\n", "/"), None);
        assert_eq!(group_in(unit, "1 2 0:1 / /proc rw - proc proc rw\n"), None);
    }

    #[test]
    fn the_own_group_is_a_directory_of_control_files() {
        let Some(group) = own_group() else {
            eprintln!("skipped: no control groups of version 2 here");
            return;
        };
        assert!(group.join("cgroup.procs").exists(), "{group:?}");
    }
}
