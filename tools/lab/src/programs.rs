//! The programs of the system that a lab runs, and the Debian package of each.

use std::ffi::OsStr;

use crate::error::LabError;

/// Labs that need a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Every lab.
    Network,
    /// A cluster whose state is in etcd.
    Etcd,
    /// Clients and captures.
    Clients,
}

const PROGRAMS: [(&str, &str, Use); 8] = [
    ("ip", "iproute2", Use::Network),
    ("tc", "iproute2", Use::Network),
    ("nsenter", "util-linux", Use::Network),
    ("sysctl", "procps", Use::Network),
    ("mount", "mount", Use::Network),
    ("etcd", "etcd-server", Use::Etcd),
    ("curl", "curl", Use::Clients),
    ("tcpdump", "tcpdump", Use::Clients),
];

/// The Debian packages of all programs of labs that `path` (as `PATH`) does not have.
#[must_use]
pub fn missing_packages(path: &OsStr) -> Vec<&'static str> {
    let missing = PROGRAMS.iter().filter(|(name, ..)| !has(path, name));
    let mut packages: Vec<_> = missing.map(|(_, package, _)| *package).collect();
    packages.dedup();
    packages
}

/// Fails unless `path` has what a lab with or without etcd cannot be built without.
pub(crate) fn check(path: &OsStr, with_etcd: bool) -> Result<(), LabError> {
    let needed = |what| what == Use::Network || (what == Use::Etcd && with_etcd);
    let missing = |(name, _, what): &&(&str, _, _)| needed(*what) && !has(path, name);
    match PROGRAMS.iter().find(missing) {
        Some((program, package, _)) => Err(LabError::NoProgram { program, package }),
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
        for (name, ..) in PROGRAMS {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let path = directory.path().as_os_str();
        assert!(missing_packages(path).is_empty());
        check(path, true).unwrap();
        std::fs::remove_file(directory.path().join("etcd")).unwrap();
        assert_eq!(missing_packages(path), ["etcd-server"]);
        check(path, false).unwrap();
        let said = check(path, true).unwrap_err().to_string();
        assert!(
            said.contains("`etcd`") && said.contains("apt-get install etcd-server"),
            "{said}"
        );
    }
}
