//! `[[service.limit]]`: the most requests of a client or a key, in a time or at the same time.

use std::fmt;
use std::str::FromStr;

use prism_rules::Conditions;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::networks::Networks;

/// Most limits of a service.
pub(crate) const MAX_LIMITS: usize = 64;
/// Most of them that bound requests at the same time. Each travels with a request that moves.
pub(crate) const MAX_LIMITS_AT_ONCE: usize = 16;

section! {
    /// One limit. A request falls under all limits that it fits.
    pub struct RequestLimit;
    /// Required. Its name in metrics and logs.
    pub name: String,
    /// Default: all. The hosts of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Default: all. The paths of requests for it, as in `[service.upstream]`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Default false. If false, a path that can be read in two ways is answered 400.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ambiguous_paths: bool,
    /// Default: all. The methods of requests for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Default: all. Header fields that requests for it have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Default: all. The networks of clients that it is for, such as `10.0.0.0/8`.
    #[serde(skip_serializing_if = "Networks::is_empty")]
    pub clients: Networks,
    /// Default: none. The networks of clients that it is not for.
    #[serde(skip_serializing_if = "Networks::is_empty")]
    pub except_clients: Networks,
    /// Default `client`. The thing whose requests are counted together: `client`, `key`,
    /// `header:NAME` or `all`.
    pub by: LimitBy,
    /// Default: no bound. The most requests in a time, such as `10/s`, `300/m` or `1000/h`.
    pub rate: Option<LimitRate>,
    /// Default: as many as `rate` has in a second, at least 1. The requests that may come at once
    /// after a pause.
    pub burst: Option<u32>,
    /// Default: no bound. The most requests under way.
    pub at_once: Option<u32>,
}

impl RequestLimit {
    /// The conditions for requests that it counts, besides those for clients.
    pub fn conditions(&self) -> Conditions<'_> {
        Conditions {
            hosts: &self.hosts,
            paths: &self.paths,
            methods: &self.methods,
            headers: &self.headers,
        }
    }

    /// The requests that may come at once after a pause.
    #[must_use]
    pub fn burst_of(&self, rate: LimitRate) -> u32 {
        self.burst.unwrap_or(rate.requests / rate.period.seconds())
    }
}

/// The thing whose requests a limit counts together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LimitBy {
    /// The client's address; of an IPv6 client its first 64 bits.
    #[default]
    Client,
    /// The access key of the object store.
    Key,
    /// The value of this header field.
    Header(String),
    /// All requests.
    All,
}

/// A number of requests in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitRate {
    /// The requests, at least 1.
    pub requests: u32,
    /// The time.
    pub period: Period,
}

/// The time of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// A second.
    Second,
    /// A minute.
    Minute,
    /// An hour.
    Hour,
}

impl Period {
    /// Its length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
        }
    }

    const fn letter(self) -> char {
        match self {
            Self::Second => 's',
            Self::Minute => 'm',
            Self::Hour => 'h',
        }
    }
}

const CLIENT: &str = "client";
const KEY: &str = "key";
const HEADER: &str = "header:";
const ALL: &str = "all";

impl fmt::Display for LimitBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => f.write_str(CLIENT),
            Self::Key => f.write_str(KEY),
            Self::Header(name) => write!(f, "{HEADER}{name}"),
            Self::All => f.write_str(ALL),
        }
    }
}

impl FromStr for LimitBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            CLIENT => Ok(Self::Client),
            KEY => Ok(Self::Key),
            ALL => Ok(Self::All),
            _ => match text.strip_prefix(HEADER).filter(|name| !name.is_empty()) {
                Some(name) => Ok(Self::Header(name.to_owned())),
                None => Err(format!(
                    "unknown variant {text:?}, expected one of {CLIENT:?}, {KEY:?}, \
                     \"{HEADER}NAME\", {ALL:?}"
                )),
            },
        }
    }
}

impl fmt::Display for LimitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.requests, self.period.letter())
    }
}

impl FromStr for LimitRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(requests, period)| {
            let requests = requests.parse().ok().filter(|requests| *requests > 0)?;
            let all = [Period::Second, Period::Minute, Period::Hour];
            let is_named = |one: &Period| period.chars().eq([one.letter()]);
            let period = all.into_iter().find(is_named)?;
            Some(Self { requests, period })
        });
        parsed.ok_or_else(|| {
            format!("{text:?} is not a rate; write it as in \"10/s\", \"300/m\" or \"1000/h\"")
        })
    }
}

/// Has a type written and read as its text.
macro_rules! as_text {
    ($kind:ty) => {
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

as_text!(LimitBy);
as_text!(LimitRate);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_and_what_is_counted_are_texts() {
        for text in ["1/s", "300/m", "4294967295/h"] {
            assert_eq!(text.parse::<LimitRate>().unwrap().to_string(), text);
        }
        for text in ["", "1", "0/s", "-1/s", "1/d", "1/sm", "1/", "1.5/s", "/s"] {
            let error = text.parse::<LimitRate>().unwrap_err();
            assert!(error.contains("is not a rate; write it as in"), "{error}");
        }
        for text in ["client", "key", "all", "header:X-Api-Key"] {
            assert_eq!(text.parse::<LimitBy>().unwrap().to_string(), text);
        }
        for text in ["", "ip", "header", "header:"] {
            assert!(text.parse::<LimitBy>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_burst_is_a_second_of_the_rate_unless_it_is_said() {
        let limit = |burst| RequestLimit {
            burst,
            ..RequestLimit::default()
        };
        for (rate, burst, expected) in [
            ("10/s", None, 10),
            ("300/m", None, 5),
            ("5/m", None, 0),
            ("5/m", Some(3), 3),
        ] {
            assert_eq!(limit(burst).burst_of(rate.parse().unwrap()), expected);
        }
    }
}
