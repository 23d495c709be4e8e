//! The result for one subject, and the files that it is read from.

use std::path::Path;

use serde::Serialize;

/// The host's part in the cluster.
pub(super) struct HostPart {
    pub(super) is_switch: bool,
    pub(super) is_node: bool,
    /// The switch's interfaces; empty if they are not known.
    pub(super) interfaces: Vec<String>,
    /// Client connections at once.
    pub(super) connections: u64,
    /// Whether a service of the host is the object store.
    pub(super) has_objects: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// As it should be.
    Good,
    /// It works, but may cause trouble.
    Advice,
    /// This process cannot find out.
    Unknown,
    /// Prism does not work like this.
    Missing,
}

/// The result for one subject.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) subject: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// The remedy; empty if nothing has to be done.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) mend: String,
}

#[derive(Clone, Copy)]
pub(super) struct Subject(pub(super) &'static str);

impl Subject {
    pub(super) fn good(self, found: impl Into<String>) -> Finding {
        self.is(State::Good, found, "")
    }

    pub(super) fn advice(self, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.is(State::Advice, found, mend)
    }

    pub(super) fn unknown(self, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.is(State::Unknown, found, mend)
    }

    pub(super) fn missing(self, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        self.is(State::Missing, found, mend)
    }

    fn is(self, state: State, found: impl Into<String>, mend: impl Into<String>) -> Finding {
        Finding {
            subject: self.0,
            state,
            found: found.into(),
            mend: mend.into(),
        }
    }
}

/// The content of a small file of /proc or /sys, trimmed.
pub(super) fn read(path: impl AsRef<Path>) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned())
}
