//! The speed of a link.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Slowest link that carries a whole GSO packet within a TCP timeout.
const MIN_BITS_PER_S: u64 = 100_000;
/// Faster than any link that one machine can imitate.
const MAX_BITS_PER_S: u64 = 1_000_000_000_000;

/// The speed of a link in bits per second, headers included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Rate {
    bits_per_s: u64,
}

/// The text is not a rate.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a rate: use a number and kbit, mbit or gbit, as in 200mbit or 2.5gbit (100kbit to 1000gbit)"
)]
pub struct InvalidRate(String);

impl Rate {
    /// `bits_per_s` bits per second.
    ///
    /// # Errors
    /// Below 100 kbit/s or above 1000 Gbit/s.
    pub fn new(bits_per_s: u64) -> Result<Self, InvalidRate> {
        let is_sane = (MIN_BITS_PER_S..=MAX_BITS_PER_S).contains(&bits_per_s);
        if is_sane {
            Ok(Self { bits_per_s })
        } else {
            Err(InvalidRate(format!("{bits_per_s}bit")))
        }
    }

    /// Bits per second.
    #[must_use]
    pub fn bits_per_s(self) -> u64 {
        self.bits_per_s
    }

    /// Bytes that pass in `ms` milliseconds.
    pub(crate) fn bytes_in_ms(self, ms: u64) -> u64 {
        self.bits_per_s / 8 * ms / 1_000
    }
}

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let fault = || InvalidRate(text.into());
        let lower = text.trim().to_ascii_lowercase();
        let digits_end = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits_end);
        let factor = match unit.trim() {
            "bit" => 1.0,
            "k" | "kbit" => 1e3,
            "m" | "mbit" => 1e6,
            "g" | "gbit" => 1e9,
            _ => return Err(fault()),
        };
        let number: f64 = number.parse().map_err(|_| fault())?;
        // The cast saturates, and the bounds are checked after it.
        Self::new((number * factor) as u64).map_err(|_| fault())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits_per_s;
        match bits {
            _ if bits.is_multiple_of(1_000_000_000) => write!(f, "{}gbit", bits / 1_000_000_000),
            _ if bits.is_multiple_of(1_000_000) => write!(f, "{}mbit", bits / 1_000_000),
            _ if bits.is_multiple_of(1_000) => write!(f, "{}kbit", bits / 1_000),
            _ => write!(f, "{bits}bit"),
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = InvalidRate;

    fn try_from(text: String) -> Result<Self, InvalidRate> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn rates_read_and_print_as_tc_takes_them() {
        for (text, printed) in [
            ("200mbit", "200mbit"),
            ("2.5Gbit", "2500mbit"),
            ("1g", "1gbit"),
        ] {
            assert_eq!(text.parse::<Rate>().unwrap().to_string(), printed);
        }
        for bad in [
            "",
            "10",
            "fast",
            "-1mbit",
            "1bit",
            "9999gbit",
            "1e9mbit",
            "1.2.3mbit",
        ] {
            assert!(bad.parse::<Rate>().is_err(), "{bad:?}");
        }
    }
}
