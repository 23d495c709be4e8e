//! `[cluster.etcd]` as structs, and its checks.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::check::Found;
use crate::model::Config;

/// The port of a URL that has none.
const DEFAULT_PORT: u16 = 2379;
/// Most members; no etcd has more.
const MAX_ENDPOINTS: usize = 16;
/// The shortest lease that etcd grants with its usual election timeout, and a longest one.
const LEASE_TTL_S: std::ops::RangeInclusive<u64> = 2..=300;
/// Longest prefix of keys, in bytes.
const MAX_PREFIX_BYTES: usize = 128;

/// `[cluster.etcd]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Etcd {
    /// Required. The members of etcd, as in `http://10.0.0.5:2379` or
    /// `https://etcd-0.example:2379`; all `http` or all `https`.
    pub endpoints: Vec<Endpoint>,
    /// Required with `https`. Certificates (PEM) of the authorities that sign
    /// for etcd.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<PathBuf>,
    /// Default none. The certificate (PEM) by which etcd knows this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_file: Option<PathBuf>,
    /// Default none. Its private key (PEM).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Default 5 s. The time for which a backend may be cut off from etcd before the others go on
    /// without it. The backend itself stops serving a tenth earlier. A shorter time makes
    /// outages shorter, and makes a slow etcd an outage.
    pub lease_ttl_s: u16,
    /// Default `/prism`. The beginning of all keys in etcd; the cluster's name follows.
    pub prefix: String,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            ca_file: None,
            cert_file: None,
            key_file: None,
            lease_ttl_s: 5,
            prefix: "/prism".into(),
        }
    }
}

impl Etcd {
    /// The time that a lease lasts.
    #[must_use]
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(self.lease_ttl_s.into())
    }

    /// The paths of all configured files.
    pub(crate) fn paths(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let files = [&mut self.ca_file, &mut self.cert_file, &mut self.key_file];
        files.into_iter().flatten()
    }

    pub(crate) fn check(&self, found: &mut Found) {
        let field = |leaf: &str| format!("cluster.etcd.{leaf}");
        if self.endpoints.is_empty() {
            let what = "the members of etcd, as in [\"http://10.0.0.5:2379\"]";
            found.missing(&field("endpoints"), what);
        }
        found.check(
            self.endpoints.len() <= MAX_ENDPOINTS,
            &field("endpoints"),
            || {
                (
                    format!("there are more than {MAX_ENDPOINTS}"),
                    "name some of them".into(),
                )
            },
        );
        let secure = self.endpoints.iter().filter(|e| e.is_secure()).count();
        found.check(
            secure == 0 || secure == self.endpoints.len(),
            &field("endpoints"),
            || {
                (
                    "some are http, some https".into(),
                    "use one of the two for all".into(),
                )
            },
        );
        self.check_files(secure > 0, found);
        found.range(
            &field("lease_ttl_s"),
            self.lease_ttl_s.into(),
            *LEASE_TTL_S.start(),
            *LEASE_TTL_S.end(),
        );
        let is_prefix = self.prefix.starts_with('/')
            && !self.prefix.ends_with('/')
            && self.prefix.len() <= MAX_PREFIX_BYTES
            && self.prefix.bytes().all(|b| b.is_ascii_graphic());
        found.check(is_prefix, &field("prefix"), || {
            (
                format!("{:?} is no prefix of keys", self.prefix),
                "use one like \"/prism\": a '/' in front and none at the end".into(),
            )
        });
    }

    fn check_files(&self, secure: bool, found: &mut Found) {
        if secure && self.ca_file.is_none() {
            let what = "the authority's certificate, since endpoints are https";
            found.missing("cluster.etcd.ca_file", what);
        }
        let any = [&self.ca_file, &self.cert_file, &self.key_file];
        let unused = !secure && !self.endpoints.is_empty() && any.iter().any(|f| f.is_some());
        found.check(!unused, "cluster.etcd.endpoints", || {
            (
                "are http, which uses no certificates".into(),
                "use https, or remove ca_file, cert_file and key_file".into(),
            )
        });
        let pair = self.cert_file.is_some() == self.key_file.is_some();
        found.check(pair, "cluster.etcd.cert_file", || {
            (
                "only one of cert_file and key_file is set".into(),
                "set both or neither".into(),
            )
        });
    }
}

impl Config {
    /// The beginning of all keys of this cluster in etcd.
    #[must_use]
    pub fn etcd_prefix(&self) -> Option<String> {
        let etcd = self.cluster.etcd.as_ref()?;
        Some(format!("{}/{}/", etcd.prefix, self.cluster.name))
    }
}

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
    /// Whether it is reached over TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Its name or address, an IPv6 address without brackets.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Its port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The value of the header `Host`.
    #[must_use]
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
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
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

impl FromStr for Endpoint {
    type Err = InvalidEndpoint;

    fn from_str(text: &str) -> Result<Self, InvalidEndpoint> {
        let invalid = || InvalidEndpoint(text.to_owned());
        let (secure, rest) = match (text.strip_prefix("https://"), text.strip_prefix("http://")) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            (None, None) => return Err(invalid()),
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(invalid)?;
                let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
                let port = rest.strip_prefix(':');
                if !is_address || (port.is_none() && !rest.is_empty()) {
                    return Err(invalid());
                }
                (host, port)
            }
            None => match rest.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (rest, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0),
            None => Some(DEFAULT_PORT),
        };
        let is_host = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b':');
        if host.is_empty() || !host.bytes().all(is_host) {
            return Err(invalid());
        }
        Ok(Self {
            secure,
            host: host.to_owned(),
            port: port.ok_or_else(invalid)?,
        })
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
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.authority(), authority);
            assert_eq!(endpoint.is_secure(), secure);
            assert_eq!(endpoint.to_string().parse(), Ok(endpoint));
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
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
    }
}
