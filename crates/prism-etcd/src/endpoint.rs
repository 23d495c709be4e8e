//! The address of a member of etcd.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// The port of a URL that has none.
const DEFAULT_PORT: u16 = 2379;

/// One member of etcd: `http://HOST:PORT` or `https://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    secure: bool,
    host: String,
    port: u16,
}

/// The text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not http://HOST:PORT or https://HOST:PORT")]
pub struct InvalidEndpoint(String);

impl Endpoint {
    fn parse(secure: bool, rest: &str) -> Option<Self> {
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<Ipv6Addr>().ok()?;
                (host, port)
            }
            None => rest.split_at(rest.find(':').unwrap_or(rest.len())),
        };
        let port = match port {
            "" => DEFAULT_PORT,
            port => port.strip_prefix(':')?.parse().ok()?,
        };
        let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':');
        let is_good = port != 0 && !host.is_empty() && host.bytes().all(is_host);
        is_good.then(|| Self {
            secure,
            host: host.to_owned(),
            port,
        })
    }

    /// Whether it is reached over TLS.
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Its name or address, an IPv6 address without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of the header `Host`.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            return format!("[{}]:{}", self.host, self.port);
        }
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.secure { "https" } else { "http" };
        write!(f, "{scheme}://{}", self.authority())
    }
}

impl TryFrom<String> for Endpoint {
    type Error = InvalidEndpoint;

    fn try_from(text: String) -> Result<Self, InvalidEndpoint> {
        let parsed = match text.split_once("://") {
            Some(("http", rest)) => Self::parse(false, rest),
            Some(("https", rest)) => Self::parse(true, rest),
            _ => None,
        };
        parsed.ok_or(InvalidEndpoint(text))
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn an_endpoint_is_read_and_written() {
        for (text, authority, secure) in [
            ("http://10.0.0.1:2379", "10.0.0.1:2379", false),
            ("https://etcd-0.example:4001/", "etcd-0.example:4001", true),
            ("http://localhost", "localhost:2379", false),
            ("https://[fd00::1]:2379", "[fd00::1]:2379", true),
        ] {
            let endpoint = Endpoint::try_from(text.to_owned()).unwrap();
            assert_eq!(endpoint.authority(), authority);
            assert_eq!(endpoint.is_secure(), secure);
            assert_eq!(Endpoint::try_from(endpoint.to_string()), Ok(endpoint));
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused() {
        for text in [
            "",
            "10.0.0.1:2379",
            "ftp://x",
            "http://",
            "http://:2379",
            "http://a:0",
            "http://a:b",
            "http://a:70000",
            "http://a/b",
            "http://a b",
            "http://[fd00::1",
            "http://[x]:1",
            "http://u@h:1",
        ] {
            assert!(Endpoint::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
