//! The place of the program that steers packets.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The end of the name of an agent on a node's host.
const AGENT: &str = "-agent";

/// The place of the program that steers packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// On a switch, through which all packets pass.
    #[default]
    Switch,
    /// On the nodes' own hosts.
    Host,
}

/// The network of host mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Layout {
    /// All hosts are on one Ethernet segment.
    #[default]
    Segment,
    /// A plain router is between the segment of the frontends, that of each backend, and the
    /// client.
    Routed,
    /// The same, and the router spreads flows over all frontends (ECMP).
    Spread,
}

/// The text is not a mode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no mode: use switch or host")]
pub struct InvalidMode(String);

impl FromStr for Mode {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, InvalidMode> {
        match text {
            "switch" => Ok(Self::Switch),
            "host" => Ok(Self::Host),
            _ => Err(InvalidMode(text.into())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Switch => "switch",
            Self::Host => "host",
        })
    }
}

/// The name of the process of the agent on a node's host.
pub(crate) fn agent_of(host: &str) -> String {
    format!("{host}{AGENT}")
}

/// The host that the process called `program` runs on.
pub(crate) fn host_of(program: &str) -> &str {
    program.strip_suffix(AGENT).unwrap_or(program)
}
