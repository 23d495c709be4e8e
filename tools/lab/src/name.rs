//! Names of the namespaces, directories and pins of a lab.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The directory in which `ip netns` keeps names of namespaces.
const NETNS_DIR: &str = "/run/netns";
/// The host whose bridges are the segments of a lab with two switches.
pub(crate) const FABRIC: &str = "fabric";
/// The longest lab name; the path of a Unix socket has room for it.
const MAX_NAME_BYTES: usize = 24;

/// The name of a lab: 1 to 24 of `a-z`, `0-9` and `-`, not starting or ending
/// with `-`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LabName(String);

/// The text is not a lab's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a lab's name: use 1 to {MAX_NAME_BYTES} of a-z, 0-9 and '-', not '-' at either end"
)]
pub struct InvalidName(String);

impl FromStr for LabName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        let is_name = (1..=MAX_NAME_BYTES).contains(&text.len())
            && text.bytes().all(is_allowed)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_name {
            Ok(Self(text.into()))
        } else {
            Err(InvalidName(text.into()))
        }
    }
}

impl TryFrom<String> for LabName {
    type Error = InvalidName;

    fn try_from(text: String) -> Result<Self, InvalidName> {
        text.parse()
    }
}

impl From<LabName> for String {
    fn from(name: LabName) -> Self {
        name.0
    }
}

impl fmt::Display for LabName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl LabName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Name of the namespace of `host`.
    pub(crate) fn namespace(&self, host: &str) -> String {
        format!("prism-{self}-{host}")
    }

    /// The path that `nsenter --net` takes for `host`.
    pub(crate) fn namespace_path(&self, host: &str) -> PathBuf {
        Path::new(NETNS_DIR).join(self.namespace(host))
    }

    /// The directory of the lab's state.
    pub(crate) fn state_dir(&self) -> PathBuf {
        root_dir().join(&self.0)
    }

    /// The name of the lab's own directories in shared places.
    pub(crate) fn directory_name(&self) -> String {
        format!("prism-lab-{self}")
    }

    /// The directory below `/sys/fs/bpf` in which a switch pins its programs and maps. A lab's
    /// name has no `_`.
    pub(crate) fn pin_dir(&self, switch: &str) -> String {
        match switch {
            "switch" => self.directory_name(),
            of_pair => format!("{}_{of_pair}", self.directory_name()),
        }
    }

    /// The present directories of the pins of all switches of this lab.
    pub(crate) fn pin_paths(&self) -> impl Iterator<Item = PathBuf> {
        let single = self.directory_name();
        let of_others = self.pin_dir("");
        let entries = std::fs::read_dir("/sys/fs/bpf").into_iter().flatten();
        let names = entries.flatten().map(|entry| entry.path());
        names.filter(move |path| {
            let name = path.file_name().map(|name| name.to_string_lossy());
            name.is_some_and(|name| *name == single || name.starts_with(&of_others))
        })
    }

    /// The existing namespaces of this lab. Lab `a` does not claim those of lab `a-b`.
    pub(crate) fn namespaces(&self) -> Vec<String> {
        let prefix = format!("prism-{self}-");
        let Ok(entries) = std::fs::read_dir(NETNS_DIR) else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|file| file.strip_prefix(&prefix).is_some_and(is_host))
            .collect()
    }
}

/// The path of a namespace by its full name.
pub(crate) fn netns_file(namespace: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(namespace)
}

/// The parent of all labs' state directories.
pub(crate) fn root_dir() -> PathBuf {
    "/run/prism-lab".into()
}

/// Whether `text` is a name that a host of a lab can have.
fn is_host(text: &str) -> bool {
    let is_numbered = |prefix: &str| {
        text.strip_prefix(prefix)
            .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    matches!(text, "client" | "switch" | "etcd" | FABRIC)
        || ["fe", "be", "etcd", "switch"].into_iter().any(is_numbered)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn a_name_stays_inside_its_own_directory() {
        for bad in [
            "",
            "-a",
            "a-",
            "A",
            "../x",
            "a/b",
            "a b",
            "aaaaaaaaaaaaaaaaaaaaaaaaa",
        ] {
            assert!(bad.parse::<LabName>().is_err(), "{bad:?}");
        }
        let name: LabName = "run-7".parse().unwrap();
        assert_eq!(name.state_dir(), Path::new("/run/prism-lab/run-7"));
        assert_eq!(name.namespace("fe0"), "prism-run-7-fe0");
    }

    #[test]
    fn only_hosts_of_the_lab_itself_are_claimed() {
        assert!(
            is_host("client")
                && is_host("etcd")
                && is_host("etcd2")
                && is_host("fe0")
                && is_host("be12")
        );
        assert!(!is_host("b-client") && !is_host("fe") && !is_host("be1x"));
    }
}
