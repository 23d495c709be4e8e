//! `[service.upstream]`: the HTTP servers behind a service, and the requests that each gets.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use prism_rules::Conditions;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::addresses::{MAX_SERVICE_ADDRESSES, ServiceAddrs};
use crate::auth::ForwardAuth;
use crate::redirects::Redirects;

/// Most upstreams of a service.
pub const MAX_UPSTREAMS: usize = 64;

/// The upstreams of a service, in the order in which requests try them. `upstream =
/// "127.0.0.1:9000"` stands for one with that address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstreams(Vec<Upstream>);

impl Upstreams {
    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Upstream> {
        self.0.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Upstream> {
        self.0.iter_mut()
    }

    /// The name of a field of the upstream at `index`, as in `service.upstream[1].paths`.
    pub(crate) fn field(&self, index: usize, leaf: &str) -> String {
        if self.is_single() {
            format!("service.upstream.{leaf}")
        } else {
            format!("service.upstream[{index}].{leaf}")
        }
    }

    /// Whether there is one alone.
    pub fn is_single(&self) -> bool {
        self.0.len() == 1
    }
}

impl From<Vec<Upstream>> for Upstreams {
    fn from(all: Vec<Upstream>) -> Self {
        Self(all)
    }
}

section! {
    /// One upstream: the same server beside each of some backends.
    pub struct Upstream;
    /// Default: the requests that it gets, such as `www.example.com/api/`. Its name for operators,
    /// and between nodes.
    pub name: Option<String>,
    /// Required, unless there is `servers_file` or every backend has its own `upstream`. The
    /// address and port of the server, or several of them, as a backend reaches them.
    #[serde(skip_serializing_if = "ServiceAddrs::is_empty")]
    pub address: ServiceAddrs,
    /// Default: none. A file with further servers, which another program may write while nodes run:
    /// `ADDRESS:PORT` or `BACKEND ADDRESS:PORT` in each line. Each node reads its own copy.
    pub servers_file: Option<PathBuf>,
    /// Default: all of the service. The backends that reach it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    /// Default: all. The hosts of requests for it, such as `www.example.com`, `*.example.com` for
    /// the names below one, `www.example.*`, or `~` and a regular expression.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Default: all. The paths of requests for it: a beginning such as `/api/`, `=` and a whole
    /// path, or `~` and a regular expression.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
    /// Default false. Only internal redirects reach it, no request of a client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub internal: bool,
    /// Default false: 400. Requests for it may have paths that can be read in two ways: with an
    /// escaped slash or backslash, a NUL or `..;`. Its server has to read them as Prism does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ambiguous_paths: bool,
    /// Default: none. It gets this in the place of the beginning that `paths` names: with `/` and
    /// `paths = ["/api/"]` the server gets `/users` for `/api/users`.
    pub replace_prefix: Option<String>,
    /// Default: all. The methods of requests for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Default: all. Header fields that requests for it have: `X-Beta` for any value, or
    /// `X-Beta: yes`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<String>,
    /// Default `least-requests`. The choice among backends, and among addresses of one.
    pub balance: Balance,
    /// Default: none. The name of a cookie that Prism sets, by which the requests of a client stay
    /// with one server as long as it is healthy.
    pub cookie: Option<String>,
    /// Default `Path=/; HttpOnly`. The attributes of that cookie.
    pub cookie_attributes: String = "Path=/; HttpOnly".into(),
    /// Header fields that requests get in the place of a client's own, such as `X-Env: prod`.
    /// `{client}` stands for the client's address, `{host}` for the request's host, `{request_id}`
    /// for its identifier.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub request_headers: Vec<String>,
    /// Header fields that answers get in the place of the server's own, with the same variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub answer_headers: Vec<String>,
    /// Default 5 s. The longest time to connect to it.
    pub connect_timeout_s: u32 = 5,
    /// Default 60 s. The longest time for which it may be silent before and in its answer, and
    /// for which it may take no byte of a body.
    pub answer_timeout_s: u32 = 60,
    /// Default 2. How often a request is sent again that a server got and did not answer. One that
    /// may not run twice is never sent again.
    #[serde(skip_serializing_if = "is_usual_retries")]
    pub retries: u8 = RETRIES,
    /// Default: `limits.stall_timeout_s`. The longest time without a byte after an upgrade, such as
    /// to WebSocket.
    pub tunnel_timeout_s: Option<u32>,
    /// Default 0: no limit. The longest body of a request in bytes; a longer one is answered 413.
    pub max_body_bytes: u64,
    /// Default 32. Connections to each address that each thread keeps open between requests.
    pub idle_connections: u16 = 32,
    /// Default 4 s, below the 5 s of Node. The longest time for which such a connection waits for a
    /// request. A server's `Keep-Alive: timeout=` may shorten it.
    #[serde(skip_serializing_if = "is_usual_idle_timeout")]
    pub idle_timeout_s: u32 = IDLE_TIMEOUT_S,
    /// Default false. Each connection begins with the client's address, by version 2 of the PROXY
    /// protocol. No connection is kept open between requests then.
    pub proxy_protocol: bool,
    /// Default: none. Which answers of its servers are internal redirects.
    pub redirects: Option<Redirects>,
    /// Default: none. The upstream whose server decides which requests it gets.
    pub auth: Option<ForwardAuth>,
    /// Active health checks. Without it a connection is the check of a server that is out, or that
    /// has answered nothing for 1 s.
    pub health: Option<HealthCheck>,
}

/// The default of `retries`.
const RETRIES: u8 = 2;
/// The default of `idle_timeout_s`.
const IDLE_TIMEOUT_S: u32 = 4;

/// Left out of a written file, which the former release can then read.
fn is_usual_retries(retries: &u8) -> bool {
    *retries == RETRIES
}

/// As [`is_usual_retries`].
fn is_usual_idle_timeout(seconds: &u32) -> bool {
    *seconds == IDLE_TIMEOUT_S
}

impl Upstream {
    /// The conditions for requests that it gets.
    pub fn conditions(&self) -> Conditions<'_> {
        Conditions {
            hosts: &self.hosts,
            paths: &self.paths,
            methods: &self.methods,
            headers: &self.headers,
        }
    }
}

section! {
    /// `[service.upstream.health]`: a GET from each backend to each address, from time to time.
    pub struct HealthCheck;
    /// Default `/`. The path. An answer from 200 to 399 is a good one.
    pub path: String = "/".into(),
    /// Default: the address of the server. The `Host` of the request.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Default 2 s. The time between two checks.
    pub interval_s: u32 = 2,
    /// Default 2 s. The longest time of one check.
    pub timeout_s: u32 = 2,
    /// Default 2. Bad checks in a row after which the address is out.
    pub fall: u8 = 2,
    /// Default 2. Good checks in a row after which it is in again.
    pub rise: u8 = 2,
}

/// The choice among the backends of an upstream, and among its addresses at one of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// The one with the fewest requests under way.
    #[default]
    LeastRequests,
    /// Each in its turn.
    RoundRobin,
    /// By a consistent hash: equal keys have the same backend as long as it is healthy.
    Hash(HashOf),
}

/// The part of a request that is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HashOf {
    /// The path.
    Path,
    /// The value of this parameter of the query.
    Query(String),
    /// The value of this header field.
    Header(String),
}

const LEAST_REQUESTS: &str = "least-requests";
const ROUND_ROBIN: &str = "round-robin";
const HASH_PATH: &str = "hash:path";
const HASH_QUERY: &str = "hash:query:";
const HASH_HEADER: &str = "hash:header:";

impl fmt::Display for Balance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeastRequests => f.write_str(LEAST_REQUESTS),
            Self::RoundRobin => f.write_str(ROUND_ROBIN),
            Self::Hash(HashOf::Path) => f.write_str(HASH_PATH),
            Self::Hash(HashOf::Query(name)) => write!(f, "{HASH_QUERY}{name}"),
            Self::Hash(HashOf::Header(name)) => write!(f, "{HASH_HEADER}{name}"),
        }
    }
}

impl FromStr for Balance {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = |prefix| text.strip_prefix(prefix).filter(|name| !name.is_empty());
        let hash = match text {
            LEAST_REQUESTS => return Ok(Self::LeastRequests),
            ROUND_ROBIN => return Ok(Self::RoundRobin),
            HASH_PATH => Some(HashOf::Path),
            _ => {
                let query = named(HASH_QUERY).map(|name| HashOf::Query(name.to_owned()));
                query.or_else(|| named(HASH_HEADER).map(|name| HashOf::Header(name.to_owned())))
            }
        };
        hash.map(Self::Hash).ok_or_else(|| {
            format!(
                "unknown variant {text:?}, expected one of {LEAST_REQUESTS:?}, {ROUND_ROBIN:?}, \
                 {HASH_PATH:?}, \"{HASH_QUERY}NAME\", \"{HASH_HEADER}NAME\""
            )
        })
    }
}

impl Serialize for Balance {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Balance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Upstreams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => one.serialize(serializer),
            all => serializer.collect_seq(all),
        }
    }
}

impl<'de> Deserialize<'de> for Upstreams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyUpstreams)
    }
}

struct OneOrManyUpstreams;

/// An address, or a whole upstream.
enum Element {
    Addresses(ServiceAddrs),
    Upstream(Box<Upstream>),
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Either)
    }
}

struct Either;

impl<'de> Visitor<'de> for Either {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address with a port, or a table")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        address(text).map(Element::Addresses)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Element, A::Error> {
        let one = Upstream::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Element::Upstream(Box::new(one)))
    }
}

fn address<E: Error>(text: &str) -> Result<ServiceAddrs, E> {
    ServiceAddrs::deserialize(serde::de::value::StrDeserializer::new(text))
}

impl<'de> Visitor<'de> for OneOrManyUpstreams {
    type Value = Upstreams;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an address, a list of addresses, a table [service.upstream], or tables [[service.upstream]]")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Upstreams, E> {
        let address = address(text)?;
        Ok(Upstreams(vec![at(address)]))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Upstreams, A::Error> {
        let one = Upstream::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Upstreams(vec![one]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Upstreams, A::Error> {
        let mut addresses = Vec::new();
        let mut all = Vec::new();
        while let Some(element) = list.next_element()? {
            match element {
                Element::Addresses(more) => addresses.extend(more.iter()),
                Element::Upstream(one) => all.push(*one),
            }
            if all.len() > MAX_UPSTREAMS || addresses.len() > MAX_SERVICE_ADDRESSES {
                let most = format!(
                    "has more than {MAX_UPSTREAMS} tables or {MAX_SERVICE_ADDRESSES} addresses; \
                     remove some"
                );
                return Err(A::Error::custom(most));
            }
        }
        match (addresses.is_empty(), all.is_empty()) {
            (true, false) => Ok(Upstreams(all)),
            (false, true) => Ok(Upstreams(vec![at(addresses.into_iter().collect())])),
            (true, true) => Err(A::Error::custom(
                "names no upstream; write the address and port of a server",
            )),
            (false, false) => Err(A::Error::custom(
                "mixes addresses and tables; write a table for each",
            )),
        }
    }
}

fn at(address: ServiceAddrs) -> Upstream {
    Upstream {
        address,
        ..Upstream::default()
    }
}

#[cfg(test)]
#[path = "upstream_tests.rs"]
mod tests;
