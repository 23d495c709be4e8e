//! `[service]` and `[[service]]` as structs.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::acme::Acme;
use crate::addresses::ServiceAddrs;
use crate::limit::RequestLimit;
use crate::model::S3;
use crate::networks::Networks;
use crate::redirects::ObjectRoutes;
use crate::relay::RelayUpTo;
use crate::rule::Rule;
use crate::tls::Tls;
use crate::upstream::Upstreams;

/// Most services: each has threads of its own at every frontend.
pub const MAX_SERVICES: usize = 16;

/// The services of a file, at least one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Services {
    first: Service,
    others: Vec<Service>,
}

impl Services {
    /// The first one: the only one of a file with `[service]`.
    pub fn first(&self) -> &Service {
        &self.first
    }

    /// The same, to be changed.
    pub fn first_mut(&mut self) -> &mut Service {
        &mut self.first
    }

    /// All services, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Service> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Whether there is more than one.
    pub fn are_several(&self) -> bool {
        !self.others.is_empty()
    }

    /// Adds a service.
    pub fn push(&mut self, service: Service) {
        self.others.push(service);
    }
}

impl From<Service> for Services {
    fn from(first: Service) -> Self {
        let others = Vec::new();
        Self { first, others }
    }
}

impl Serialize for Services {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.are_several() {
            serializer.collect_seq(self.iter())
        } else {
            self.first.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for Services {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrManyServices)
    }
}

struct OneOrManyServices;

impl<'de> Visitor<'de> for OneOrManyServices {
    type Value = Services;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table [service], or tables [[service]]")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Services, A::Error> {
        Service::deserialize(MapAccessDeserializer::new(map)).map(Services::from)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Services, A::Error> {
        let first = list.next_element::<Service>()?;
        let first =
            first.ok_or_else(|| A::Error::custom("names no service; write at least one"))?;
        let mut services = Services::from(first);
        while let Some(service) = list.next_element()? {
            if services.iter().count() == MAX_SERVICES {
                let fault = format!("has more than {MAX_SERVICES} services; remove some");
                return Err(A::Error::custom(fault));
            }
            services.push(service);
        }
        Ok(services)
    }
}

section! {
    /// `[service]`, or one `[[service]]` of several
    pub struct Service;
    /// Required if there are several services. Its name in etcd, in sockets and in `prism ctl`: 1
    /// to 63 of `a-z`, `0-9` and `-`. The service with the name of the cluster has the keys and
    /// sockets of a cluster with one service, so a cluster can get further services.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Default: all, if there is one service. The names of the backends that store its objects. A
    /// backend serves one service. Frontends serve all services.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub backends: Vec<String>,
    /// Required. The virtual addresses and ports that clients connect to, of one family or both.
    /// The addresses belong to every frontend, and to no other host.
    pub address: ServiceAddrs,
    /// Default: none, and the service is the object store. The HTTP servers behind the service, as
    /// its backends reach them.
    pub upstream: Option<Upstreams>,
    /// Default: none beside upstreams. The object store of a service that has upstreams too.
    pub objects: Option<ObjectRoutes>,
    /// Default: none. Requests that this file answers, in the order in which they are tried. They
    /// come before the upstreams and the object store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rule: Vec<Rule>,
    /// Default: none. The most requests of a client or a key. Each node refuses what is above.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limit: Vec<RequestLimit>,
    /// Default `direct`. The way of a connection whose next request belongs to another
    /// backend.
    pub hand_off: HandOffMode,
    /// Default `freeze`. The method that stops a connection's packets while it moves.
    pub hand_off_method: HandOffMethod,
    /// Default `carry`. The congestion window of a connection that has just moved.
    pub congestion_window: CongestionWindow,
    /// Default `auto`. The longest answer to a GET that is relayed if another node has the
    /// object. For a longer answer the connection is handed off.
    pub relay_up_to: RelayUpTo,
    /// Default: those of the IPv4 addresses. The URLs at which clients reach the service, such as
    /// `https://s3.example.com`. The page for a browser offers them for its view of the store.
    pub urls: Vec<String>,
    /// Default `http://127.0.0.1:9464` and `http://localhost:9464`: the page for a browser. The
    /// origins of web pages that may use all buckets with their users' own keys. A bucket's CORS
    /// rules allow others.
    pub cors_origins: Vec<String> = vec![
        "http://127.0.0.1:9464".into(),
        "http://localhost:9464".into(),
    ],
    /// HTTPS on the same address. Without it there is no HTTPS.
    pub tls: Option<Tls>,
    /// A certificate from an authority by ACME (RFC 8555), for `tls`. Without it all certificates
    /// are files.
    pub acme: Option<Acme>,
    /// Default: `peers.port`. The TCP port of the node protocol of this service's nodes. Services
    /// have different ones.
    pub peer_port: Option<u16>,
    /// Default: `switch.key_id`. The number of the key that signs commands for this service's
    /// flows. Services have different ones.
    pub control_key_id: Option<u32>,
    /// Default: `switch.key_file`. The file with that key, on the switch, on frontends and on this
    /// service's backends. Services have different ones.
    pub control_key_file: Option<PathBuf>,
    /// Default: `cluster.replicas`. The number of backends that have each object.
    pub replicas: Option<u16>,
    /// Default: `cluster.min_replicas`. The number of copies in sync that a write needs.
    pub min_replicas: Option<u16>,
    /// Default: none, and `admin.listen` for the service with the name of the cluster. The address
    /// at which frontends answer HTTP with this service's metrics and health.
    pub admin_listen: Option<SocketAddr>,
    /// Default: `[s3]`, which several services do not have. The users.
    pub s3: Option<S3>,
    /// Default: none. The networks of proxies in front of the service, such as `10.0.0.0/8`. Their
    /// `X-Forwarded-For` names the client, and bounds for one address do not apply to them.
    #[serde(skip_serializing_if = "Networks::is_empty")]
    pub trusted_proxies: Networks,
    /// Default: false. Each connection of a trusted proxy begins with a header of the PROXY
    /// protocol, version 1 or 2, which names its client.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub accept_proxy_protocol: bool,
    /// Bounds that differ from those of `[limits]`.
    pub limits: Option<ServiceLimits>,
}

section! {
    /// `[service.limits]`. A field that is absent has the value of `[limits]`.
    pub struct ServiceLimits;
    /// Open client connections of each node.
    pub connections: Option<u32>,
    /// Newcomers of one client address.
    pub unauthenticated_per_address: Option<u32>,
    /// The longest time in seconds between two requests of a connection.
    pub idle_timeout_s: Option<u32>,
    /// The largest object in bytes that one PUT may write.
    pub max_object_bytes: Option<u64>,
}

impl Service {
    /// Whether its backends keep objects.
    pub fn keeps_objects(&self) -> bool {
        self.upstream.is_none() || self.objects.is_some()
    }

    /// The files that it names.
    pub(crate) fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let tls = self.tls.iter_mut().flat_map(|tls| {
            tls.certificates
                .iter_mut()
                .flat_map(|certificate| [&mut certificate.file, &mut certificate.key_file])
                .chain(&mut tls.ticket_secret_file)
        });
        let acme = self.acme.iter_mut();
        let acme = acme.filter_map(|acme| acme.ca_file.as_mut());
        let users = self.s3.iter_mut().map(|s3| &mut s3.credentials_file);
        let key = self.control_key_file.iter_mut();
        let upstreams = self.upstream.iter_mut().flat_map(Upstreams::iter_mut);
        let servers = upstreams.filter_map(|upstream| upstream.servers_file.as_mut());
        tls.chain(acme).chain(users).chain(key).chain(servers)
    }
}

/// The congestion window of a connection that has just moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionWindow {
    /// The window of the source, within bounds. It needs control groups of version 2.
    #[default]
    Carry,
    /// The window of a new connection.
    Fresh,
}

/// The way of a connection whose next request belongs to another backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandOffMode {
    /// Directly to that backend: one hand-off.
    #[default]
    Direct,
    /// Through the frontend: two hand-offs.
    Return,
}

/// The method that stops a connection's packets while it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandOffMethod {
    /// The switch drops them: two round trips to the switch.
    TwoPhase,
    /// Its host freezes the socket: one round trip to the switch for each hand-off except the
    /// first. It uses a socket filter, a mark, and an egress program on the node's control
    /// group. A node without them uses `TwoPhase`.
    #[default]
    Freeze,
}
