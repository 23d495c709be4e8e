//! The faults of a configuration, and the checks of single values.

use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::Path;

use crate::position::FilePosition;

/// One fault: its place, the field, the fault, and how to fix it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}{field}: {fault}; {fix}")]
pub struct Problem {
    /// The file, and the line of the field or of the table that lacks it.
    pub place: FilePosition,
    /// Path of the field, as in `node[2].address`.
    pub field: String,
    /// The fault.
    pub fault: String,
    /// How to fix it.
    pub fix: String,
}

/// The faults that were found.
#[derive(Default)]
pub(crate) struct Problems(pub(crate) Vec<Problem>);

impl Problems {
    pub(crate) fn check(&mut self, holds: bool, field: &str, fault: impl Display, fix: &str) {
        if !holds {
            self.0.push(Problem {
                place: FilePosition::default(),
                field: field.into(),
                fault: fault.to_string(),
                fix: fix.into(),
            });
        }
    }

    pub(crate) fn missing(&mut self, field: &str, what: &str) {
        self.check(false, field, "is missing", &format!("give {what}"));
    }

    pub(crate) fn name(&mut self, field: &str, name: &str) {
        if name.is_empty() {
            return self.missing(field, "a name of a-z, 0-9 and '-'");
        }
        let is_name = is_label(name) && !name.contains(|c: char| c.is_ascii_uppercase());
        let fix = "use 1 to 63 of a-z, 0-9 and '-', not '-' at either end";
        self.check(is_name, field, format!("{name:?} is not a valid name"), fix);
    }

    pub(crate) fn host(&mut self, field: &str, address: IpAddr) {
        let is_of_one_link = match address {
            IpAddr::V4(v4) => v4 == Ipv4Addr::BROADCAST,
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let is_host = !address.is_unspecified()
            && !address.is_multicast()
            && !address.is_loopback()
            && !is_of_one_link;
        let fault = format!("{address} cannot be a host's address on the network");
        let fix = "use a unicast address that other hosts can reach";
        self.check(is_host, field, fault, fix);
    }

    pub(crate) fn port(&mut self, field: &str, port: u16) {
        self.check(port != 0, field, "has port 0", "use 1 to 65535");
    }

    pub(crate) fn path(&mut self, field: &str, path: &Path, what: &str) {
        if path.as_os_str().is_empty() {
            self.missing(field, what);
        }
    }

    pub(crate) fn range(&mut self, field: &str, value: impl Into<u64>, range: RangeInclusive<u64>) {
        let value = value.into();
        let fix = format!("use {} to {}", range.start(), range.end());
        let fault = format!("{value} is out of range");
        self.check(range.contains(&value), field, fault, &fix);
    }
}

/// The remedy for a file that cannot be read. `absent` is for one that does not exist.
pub(crate) fn remedy<'t>(error: &std::io::Error, absent: &'t str) -> &'t str {
    use std::io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => absent,
        Kind::PermissionDenied => "run this as root, or as the owner of the file",
        Kind::IsADirectory => "name a file, not a directory",
        Kind::InvalidData => "write it in UTF-8",
        _ => "look at its disk, or name another file",
    }
}

/// Whether `text` is one label of a host name (RFC 1035).
pub(crate) fn is_label(text: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    (1..=63).contains(&text.len())
        && text.bytes().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}
