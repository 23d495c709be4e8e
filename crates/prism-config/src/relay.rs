//! The bound between relaying an answer and handing its connection off.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const AUTO: &str = "auto";
const EXPECTED: &str = "\"auto\" or a number of bytes below 4 GiB";

/// The longest answer to a GET that is relayed if another node has the object: `"auto"`, or a
/// number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RelayUpTo {
    /// The node relays answers that it measures to cost less than a hand-off.
    #[default]
    Auto,
    /// This number of bytes; with 0 every connection is handed off.
    Bytes(u32),
}

impl Serialize for RelayUpTo {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Bytes(bytes) => serializer.serialize_u32(*bytes),
        }
    }
}

impl<'de> Deserialize<'de> for RelayUpTo {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

struct Either;

impl Visitor<'_> for Either {
    type Value = RelayUpTo;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<RelayUpTo, E> {
        match text {
            AUTO => Ok(RelayUpTo::Auto),
            other => Err(E::invalid_value(Unexpected::Str(other), &EXPECTED)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<RelayUpTo, E> {
        let bytes = u32::try_from(number);
        let invalid = |_| E::invalid_value(Unexpected::Signed(number), &EXPECTED);
        bytes.map(RelayUpTo::Bytes).map_err(invalid)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Table {
        up_to: RelayUpTo,
    }

    #[test]
    fn is_a_word_or_a_number() {
        for (text, up_to) in [
            ("up_to = \"auto\"\n", RelayUpTo::Auto),
            ("up_to = 0\n", RelayUpTo::Bytes(0)),
            ("up_to = 4294967295\n", RelayUpTo::Bytes(u32::MAX)),
        ] {
            let table = Table { up_to };
            assert_eq!(toml::from_str::<Table>(text).unwrap(), table);
            assert_eq!(toml::to_string(&table).unwrap(), text);
        }
    }

    #[test]
    fn anything_else_is_refused_with_what_it_may_be() {
        for text in [
            "up_to = -1",
            "up_to = 4294967296",
            "up_to = \"all\"",
            "up_to = true",
        ] {
            let error = toml::from_str::<Table>(text).unwrap_err().to_string();
            assert!(error.contains("\"auto\" or a number of bytes"), "{error}");
        }
    }
}
