//! The file as structs. Each field documents its default, its unit and its cost.
//!
//! Leaves are typed (addresses, enums), so a parsed value has the right form. `check` judges
//! the values together. A required field has an empty default, so that a missing field is
//! reported together with all other faults.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::addresses::{HostAddrs, ServiceAddrs};
use crate::bounds::{Limits, Store};
use crate::cluster::Cluster;
use crate::service::{Service, Services};
use crate::switch::Switch;
use crate::tls::KernelTls;
use crate::trace::Trace;

/// The part of a file that concerns one service: all code that serves requests has such a part. The
/// whole file is a [`ConfigFile`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config<S = Service> {
    /// The file that it was read from; empty if there is none. It is no field of the file.
    #[serde(skip)]
    pub file: PathBuf,
    /// The file as a whole, if this is the part of one of its several services. It is no field
    /// of the file.
    #[serde(skip)]
    pub whole: Option<Arc<ConfigFile>>,
    /// The name, region and replicas of the cluster.
    pub cluster: Cluster,
    /// The service, or the services of a file: addresses, hand-offs, users and backends.
    pub service: S,
    /// The switch in the path. Without it frontends relay every answer.
    pub switch: Option<Switch>,
    /// The nodes.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
    /// The node protocol: its port and certificates.
    pub peers: Peers,
    /// Bounds of each backend's store.
    pub store: Store,
    /// Bounds on memory and time of each node.
    pub limits: Limits,
    /// The users.
    pub s3: S3,
    /// The log.
    pub log: Log,
    /// Traces of requests.
    pub trace: Trace,
    /// The admin sockets.
    pub admin: Admin,
}

/// The whole file.
pub type ConfigFile = Config<Services>;

impl<S> Config<S> {
    /// The file, as an error names it.
    pub fn shown_file(&self) -> String {
        if self.file.as_os_str().is_empty() {
            "the configuration".to_owned()
        } else {
            self.file.display().to_string()
        }
    }
}

section! {
    /// `[[node]]`
    pub struct Node;
    /// Required, unique. The name in its certificate and in placement: 1 to 63 of `a-z`,
    /// `0-9`, `-`. A renamed backend owns other objects.
    pub name: String,
    /// Required, unique. The host's own address: at most one of each family.
    pub address: HostAddrs,
    /// Default: that of `switch.control`. The switch's address on the node's network, by which
    /// the node reaches clients: at most one of each family. `prism setup` makes the routes.
    pub gateway: Option<HostAddrs>,
    /// Required. The node's roles.
    pub roles: Vec<Role>,
    /// Default `/var/lib/prism`. The directory of a backend's objects. With an upstream it has the
    /// file with what operators have said of its servers.
    pub store: PathBuf = "/var/lib/prism".into(),
    /// Default: the addresses of the service's upstream. The address and port of the server behind
    /// this backend, or several of them.
    pub upstream: Option<ServiceAddrs>,
    /// Default 0: one for each core. The number of threads that serve connections.
    pub workers: u16,
    /// Default `fsync`. The durability of an answered write.
    pub durability: Durability,
    /// Default `auto`. The maker of the TLS records of large bodies.
    pub kernel_tls: KernelTls,
    /// Default 0: unknown. The rate of the host's link in each direction, in Mbit/s.
    pub link_mbit_s: u32,
}

impl Node {
    /// Whether the node accepts connections from clients.
    pub fn is_frontend(&self) -> bool {
        self.roles.contains(&Role::Frontend)
    }

    /// Whether the node stores objects.
    pub fn is_backend(&self) -> bool {
        self.roles.contains(&Role::Backend)
    }
}

/// The durability of an answered write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// It is on the disk, and survives a power loss.
    #[default]
    Fsync,
    /// It is in the kernel, and survives the death of the process only. For benchmarks, and for
    /// stores in memory.
    None,
}

/// A role of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Accepts connections, authenticates requests, hands connections off.
    Frontend,
    /// Stores objects and answers requests for them.
    Backend,
}

section! {
    /// `[peers]`
    pub struct Peers;
    /// Default 7400. TCP port of the node protocol, on each node's address.
    pub port: u16 = 7400,
    /// Required. The certificate (PEM) of the authority that signed the nodes' certificates.
    pub ca_file: PathBuf,
    /// Required. The directory with the node's own `<name>.crt` and `<name>.key` (PEM).
    pub cert_dir: PathBuf,
}

impl Peers {
    /// The certificate of node `name`.
    pub fn cert_file(&self, name: &str) -> PathBuf {
        self.cert_dir.join(format!("{name}.crt"))
    }

    /// The private key of node `name`.
    pub fn key_file(&self, name: &str) -> PathBuf {
        self.cert_dir.join(format!("{name}.key"))
    }
}

section! {
    /// `[s3]`
    pub struct S3;
    /// Required without etcd. The TOML file with one `[[credential]]` (fields `access_key`,
    /// `secret_key`) for each user, readable by its owner only. It is read again when it
    /// changes. With etcd the founder of a new cluster writes these users there; from then on
    /// the users in etcd count.
    pub credentials_file: PathBuf,
    /// Default `deny`. The permissions of a request without a signature.
    pub anonymous: Anonymous,
    /// Default: none, and buckets are named in the path only. Domains such as `s3.example.com`,
    /// below which the first part of a host's name is a bucket: `BUCKET.s3.example.com`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub domains: Vec<String>,
}

/// The permissions of a request without a signature.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Anonymous {
    /// It may do what the bucket's policy lets everybody do.
    #[default]
    Deny,
    /// It may read every object and list the keys of every bucket, but not list the buckets.
    Read,
}

section! {
    /// `[log]`
    pub struct Log;
    /// Default `info`. `error`, `warn`, `info`, `debug`, `trace` or `off`, optionally
    /// per module: `info,prism_handoff=debug`. `trace` costs throughput.
    pub level: String = "info".into(),
    /// Default `text`.
    pub format: LogFormat,
    /// Default "": none. The file of the access log, a line of JSON for each request; `stdout`
    /// for standard output.
    pub access: PathBuf,
    /// Default `json`. The form of its lines.
    #[serde(skip_serializing_if = "AccessLogFormat::is_json")]
    pub access_format: AccessLogFormat,
    /// Default "": the process's own log. The file of the audit log, a line of JSON for each
    /// administrative action.
    pub audit: PathBuf,
}

/// The form of a line of the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessLogFormat {
    /// One JSON object per line.
    #[default]
    Json,
    /// The combined log format of Apache and nginx.
    Combined,
}

impl AccessLogFormat {
    /// Left out of a written file, which the former release can then read.
    fn is_json(&self) -> bool {
        *self == Self::Json
    }
}

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

section! {
    /// `[admin]`
    pub struct Admin;
    /// Default `127.0.0.1:9464`; "" for none. The address at which a node answers HTTP with its
    /// metrics and health. Everybody who reaches it can read them, and change nothing.
    #[serde(with = "optional_address")]
    pub listen: Option<SocketAddr> = Some((Ipv4Addr::LOCALHOST, 9464).into()),
    /// Default `127.0.0.1:9465`; "" for none. The same address of the agent of the switch.
    #[serde(with = "optional_address")]
    pub switch_listen: Option<SocketAddr> = Some((Ipv4Addr::LOCALHOST, 9465).into()),
    /// Default none. Further host names at which these pages are asked for. Others are refused, so
    /// that no web page can read them through a name of its own that leads here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
    /// Default none. Hosts that ask backends through the switch, such as Prometheus. The switch
    /// drops what backends send to hosts that it does not know.
    pub scrapers: Vec<IpAddr>,
    /// Default `/run/prism`. The directory of the Unix sockets `<node>.sock`, which answer in
    /// JSON. A user who can open them can read counters, start scrubs, and make a node move
    /// its connections.
    pub socket_dir: PathBuf = "/run/prism".into(),
}

/// Addresses of which "" stands for none.
mod optional_address {
    use std::net::SocketAddr;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        address: &Option<SocketAddr>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match address {
            Some(address) => serializer.collect_str(address),
            None => serializer.serialize_str(""),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SocketAddr>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.is_empty() {
            return Ok(None);
        }
        let address = text.parse().map_err(|_| {
            D::Error::custom(format!(
                "{text:?} is not an address with a port; write it as in \"127.0.0.1:9464\""
            ))
        });
        address.map(Some)
    }
}

impl<S> Config<S> {
    /// The node called `name`.
    pub fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// The nodes that accept connections, in the order of the file.
    pub fn frontends(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_frontend())
    }

    /// The nodes that store objects, in the order of the file.
    pub fn backends(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| node.is_backend())
    }

    /// Whether the access log goes to standard output.
    pub fn logs_access_to_stdout(&self) -> bool {
        self.log.access.as_os_str() == STDOUT
    }
}

impl Config {
    /// The addresses of clients over HTTPS.
    pub fn tls_address(&self) -> Option<ServiceAddrs> {
        let tls = self.service.tls.as_ref()?;
        Some(self.service.address.at_port(tls.port))
    }
}

/// Stands for standard output in the place of a file.
pub(crate) const STDOUT: &str = "stdout";
