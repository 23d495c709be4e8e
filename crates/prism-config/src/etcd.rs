//! `[cluster.etcd]` as structs, and its checks.

use std::fmt;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::problem::Problems;

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
    pub ca_file: Option<PathBuf>,
    /// Default none. The certificate (PEM) by which etcd knows this host.
    pub cert_file: Option<PathBuf>,
    /// Default none. Its private key (PEM).
    pub key_file: Option<PathBuf>,
    /// Default 5 s. The time for which a backend may be cut off from etcd before the others go on
    /// without it. The backend itself stops serving a tenth earlier, and a node refuses
    /// requests with keys then, because a key may have been deleted meanwhile. A shorter time
    /// makes outages shorter, and makes a slow etcd an outage.
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
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_secs(self.lease_ttl_s.into())
    }

    pub(crate) fn check(&self, found: &mut Problems) {
        let field = "cluster.etcd.endpoints";
        if self.endpoints.is_empty() {
            let what = "the members of etcd, as in [\"http://10.0.0.5:2379\"]";
            found.missing(field, what);
        }
        let count = self.endpoints.len();
        let fault = format!("there are more than {MAX_ENDPOINTS}");
        found.check(count <= MAX_ENDPOINTS, field, fault, "name some of them");
        let secure = self.endpoints.iter().filter(|e| e.is_secure()).count();
        let is_uniform = secure == 0 || secure == count;
        let fix = "use one of the two for all";
        found.check(is_uniform, field, "some are http, some https", fix);
        if secure > 0 && self.ca_file.is_none() {
            let what = "the authority's certificate, since endpoints are https";
            found.missing("cluster.etcd.ca_file", what);
        }
        let has_file =
            self.ca_file.is_some() || self.cert_file.is_some() || self.key_file.is_some();
        let is_used = secure > 0 || count == 0 || !has_file;
        let fix = "use https, or remove ca_file, cert_file and key_file";
        found.check(is_used, field, "are http, which uses no certificates", fix);
        let is_pair = self.cert_file.is_some() == self.key_file.is_some();
        let fault = "only one of cert_file and key_file is set";
        let fix = "set both or neither";
        found.check(is_pair, "cluster.etcd.cert_file", fault, fix);
        found.range("cluster.etcd.lease_ttl_s", self.lease_ttl_s, LEASE_TTL_S);
        let prefix = &self.prefix;
        let is_prefix = prefix.starts_with('/')
            && !prefix.ends_with('/')
            && prefix.len() <= MAX_PREFIX_BYTES
            && prefix.bytes().all(|b| b.is_ascii_graphic());
        let fault = format!("{prefix:?} is no prefix of keys");
        let fix = "use one like \"/prism\": a '/' in front and none at the end";
        found.check(is_prefix, "cluster.etcd.prefix", fault, fix);
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
