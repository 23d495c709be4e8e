//! The families of a lab's addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The families of the addresses that a lab's hosts have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Families {
    /// IPv4 alone. IPv6 is off.
    #[default]
    V4,
    /// IPv6 alone. The only IPv4 address of a host is that of its loopback.
    V6,
    /// Both.
    Dual,
}

/// The text names no families.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a family of addresses: use 4, 6 or dual")]
pub struct InvalidFamily(String);

impl Family {
    /// Both, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of `address`.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl Families {
    /// Whether `family` is one of them.
    #[must_use]
    pub fn has(self, family: Family) -> bool {
        match self {
            Self::V4 => family == Family::V4,
            Self::V6 => family == Family::V6,
            Self::Dual => true,
        }
    }

    /// Each of them, IPv4 first.
    pub fn iter(self) -> impl Iterator<Item = Family> {
        Family::ALL
            .into_iter()
            .filter(move |family| self.has(*family))
    }
}

impl FromStr for Families {
    type Err = InvalidFamily;

    fn from_str(text: &str) -> Result<Self, InvalidFamily> {
        match text {
            "4" => Ok(Self::V4),
            "6" => Ok(Self::V6),
            "dual" => Ok(Self::Dual),
            _ => Err(InvalidFamily(text.into())),
        }
    }
}

impl fmt::Display for Families {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "4",
            Self::V6 => "6",
            Self::Dual => "dual",
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn families_read_as_they_print() {
        for families in [Families::V4, Families::V6, Families::Dual] {
            assert_eq!(families.to_string().parse(), Ok(families));
        }
        for bad in ["", "5", "v6", "Dual"] {
            let said = bad.parse::<Families>().unwrap_err().to_string();
            assert!(said.contains("4, 6 or dual"), "{said}");
        }
    }
}
