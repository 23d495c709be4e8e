//! The programs of the system that a lab runs, and the Debian package of each.

use std::ffi::OsStr;

use crate::error::LabError;
use crate::keepalived;

/// Programs that every lab needs.
const PROGRAMS: [(&str, &str); 6] = [
    ("ip", "iproute2"),
    ("tc", "iproute2"),
    ("nsenter", "util-linux"),
    ("sysctl", "procps"),
    ("mount", "mount"),
    ("curl", "curl"),
];
/// The program of a lab whose state is in etcd.
pub(crate) const ETCD: (&str, &str) = ("etcd", "etcd-server");
/// The program of a lab with two switches.
pub(crate) const KEEPALIVED: (&str, &str) = (keepalived::PROGRAM, "keepalived");

/// Checks that the directories of `path` (as in `PATH`) have the programs that a lab needs, and
/// these `further` ones.
///
/// # Errors
/// Names the first missing program, and its package.
pub(crate) fn check(
    path: &OsStr,
    further: &[(&'static str, &'static str)],
) -> Result<(), LabError> {
    let needed = PROGRAMS.iter().chain(further).copied();
    match needed.into_iter().find(|(name, _)| !has(path, name)) {
        Some((program, package)) => Err(LabError::NoProgram { program, package }),
        None => Ok(()),
    }
}

fn has(path: &OsStr, name: &str) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(name).exists())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]

    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_package() {
        let directory = tempfile::tempdir().unwrap();
        for (name, _) in PROGRAMS.iter().chain([&ETCD]) {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let path = directory.path().as_os_str();
        check(path, &[ETCD]).unwrap();
        std::fs::remove_file(directory.path().join("etcd")).unwrap();
        check(path, &[]).unwrap();
        let said = check(path, &[ETCD]).unwrap_err().to_string();
        assert!(
            said.contains("`etcd`") && said.contains("apt-get install etcd-server"),
            "{said}"
        );
    }
}
