//! The file as structs. Each field says its default, its unit and its cost.
//!
//! Leaves are typed (addresses, enums), so that a value which parsed has the
//! right form; whether the values make sense together is `check`'s question.
//! A required field has an empty default, so that a missing one is reported
//! together with all other faults instead of hiding them.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::relay::RelayUpTo;
use crate::tls::{KernelTls, Tls};

/// The whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Who this cluster is.
    pub cluster: Cluster,
    /// The address that clients know.
    pub service: Service,
    /// The switch in the path. Absent: there is none, and every answer is
    /// relayed by the frontend that accepted the connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub switch: Option<Switch>,
    /// The hosts that serve requests.
    #[serde(rename = "node")]
    pub nodes: Vec<Node>,
    /// How nodes reach and trust each other.
    pub peers: Peers,
    /// Bounds on what each backend stores.
    pub store: Store,
    /// Bounds on memory and time.
    pub limits: Limits,
    /// The S3 interface.
    pub s3: S3,
    /// What is logged, and how.
    pub log: Log,
    /// The local socket that answers counters.
    pub admin: Admin,
}

/// `[service]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Service {
    /// Required. The virtual address and port that clients connect to. The
    /// address belongs to every frontend, and to no other host.
    pub address: SocketAddrV4,
    /// Default `direct`. Where a connection goes for a request that its
    /// present backend does not serve.
    pub hand_off: HandOffMode,
    /// Default `freeze`. How a connection's packets are stopped while it moves.
    pub hand_off_method: HandOffMethod,
    /// Default `carry`. The congestion window of a connection that has just moved.
    pub congestion_window: CongestionWindow,
    /// Default `auto`. Longest answer to a GET that is relayed where another node has
    /// the object; for a longer one the connection is handed off.
    pub relay_up_to: RelayUpTo,
    /// HTTPS on the same address. Absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<Tls>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            address: UNSET,
            hand_off: HandOffMode::default(),
            hand_off_method: HandOffMethod::default(),
            congestion_window: CongestionWindow::default(),
            relay_up_to: RelayUpTo::default(),
            tls: None,
        }
    }
}

/// The congestion window of a connection that has just moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionWindow {
    /// What it was at the source, within bounds. Needs control groups of version 2.
    #[default]
    Carry,
    /// That of a new connection.
    Fresh,
}

/// Where a backend sends a connection whose next request is another's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HandOffMode {
    /// Straight to the backend that serves the request: one hand-off.
    #[default]
    Direct,
    /// Back to the frontend, which hands it on: two hand-offs, but backends
    /// need not know each other.
    Return,
}

/// How a connection's packets are stopped while it moves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HandOffMethod {
    /// The switch drops them: two round trips to the switch.
    TwoPhase,
    /// Its host silences the socket: one round trip to the switch for each
    /// hand-off but the first, and a sixth less time. Uses a socket filter, a
    /// mark and an egress program of the node's control group; where these cannot be
    /// had, the switch drops the packets.
    #[default]
    Freeze,
}

/// `[switch]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// Required. Address and UDP port that the switch answers commands on.
    pub control: SocketAddrV4,
    /// Default 1. Which key signs the commands, so that keys can be rotated.
    pub key_id: u32,
    /// Required. File with the key: 32 hexadecimal digits, readable by its
    /// owner only. The same on the switch and on every node.
    pub key_file: PathBuf,
    /// Default `prism`. Directory below `/sys/fs/bpf` where the switch pins
    /// its programs and maps, so that it can restart without losing a packet.
    pub pin_dir: String,
    /// Required. Interfaces of the switch that service traffic crosses: those
    /// towards clients, frontends and backends.
    pub interfaces: Vec<String>,
    /// Default `tc`. Where the program is attached. `xdp` is for network
    /// cards whose driver has it; on veth it loses checksum offload.
    pub mode: HookMode,
    /// Default 1,048,576 flows. Each in use takes 208 bytes of kernel
    /// memory. A full table refuses new flows, which are then relayed.
    pub max_flows: u32,
    /// Default 3,600 s. A flow without a packet for this long is forgotten.
    /// Must be longer than `limits.idle_timeout_s`.
    pub idle_timeout_s: u32,
}

impl Default for Switch {
    fn default() -> Self {
        Self {
            control: UNSET,
            key_id: 1,
            key_file: PathBuf::new(),
            pin_dir: "prism".into(),
            interfaces: Vec::new(),
            mode: HookMode::default(),
            max_flows: 1 << 20,
            idle_timeout_s: 3_600,
        }
    }
}

impl Switch {
    /// The directory on bpffs that holds the pinned programs and maps.
    #[must_use]
    pub fn pin_path(&self) -> PathBuf {
        Path::new("/sys/fs/bpf").join(&self.pin_dir)
    }
}

/// Where in the kernel the switch program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookMode {
    /// Traffic control, ingress: works on every interface.
    #[default]
    Tc,
    /// In the driver, before the packet is allocated: network cards only.
    Xdp,
}

/// `[[node]]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// Required, unique. The name in its certificate, and in placement:
    /// renaming a backend moves its objects. 1 to 63 of `a-z`, `0-9`, `-`.
    pub name: String,
    /// Required, unique. The host's own address.
    pub address: Ipv4Addr,
    /// Required. What the host does.
    pub roles: Vec<Role>,
    /// Default `/var/lib/prism`. Where a backend keeps its objects.
    pub store: PathBuf,
    /// Default 0: one per core. Threads that serve connections.
    pub workers: u16,
    /// Default `fsync`. What an answered write has reached.
    pub durability: Durability,
    /// Default `auto`. Whether the host's kernel makes the TLS records of large
    /// bodies.
    pub kernel_tls: KernelTls,
    /// Default 0: unknown. What the host's link carries each way, in Mbit/s.
    pub link_mbit_s: u32,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            name: String::new(),
            address: Ipv4Addr::UNSPECIFIED,
            roles: Vec::new(),
            store: "/var/lib/prism".into(),
            workers: 0,
            durability: Durability::default(),
            kernel_tls: KernelTls::default(),
            link_mbit_s: 0,
        }
    }
}

impl Node {
    /// Whether the node accepts connections from clients.
    #[must_use]
    pub fn is_frontend(&self) -> bool {
        self.roles.contains(&Role::Frontend)
    }

    /// Whether the node stores objects.
    #[must_use]
    pub fn is_backend(&self) -> bool {
        self.roles.contains(&Role::Backend)
    }
}

/// What an answered write has reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// The disk: it survives the loss of power.
    #[default]
    Fsync,
    /// The kernel: it survives the death of the process only. For benchmarks,
    /// and for stores in memory.
    None,
}

/// What a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Accepts connections, authenticates requests, hands connections off.
    Frontend,
    /// Stores objects and answers requests for them.
    Backend,
}

/// `[peers]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Peers {
    /// Default 7400. TCP port of the node protocol, on each node's address.
    pub port: u16,
    /// Required. Certificate (PEM) of the authority
    /// that signed the nodes' certificates.
    pub ca_file: PathBuf,
    /// Required. Directory with the node's own
    /// `<name>.crt` and `<name>.key` (PEM).
    pub cert_dir: PathBuf,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            port: 7400,
            ca_file: PathBuf::new(),
            cert_dir: PathBuf::new(),
        }
    }
}

impl Peers {
    /// The certificate of node `name`.
    #[must_use]
    pub fn cert_file(&self, name: &str) -> PathBuf {
        self.cert_dir.join(format!("{name}.crt"))
    }

    /// The private key of node `name`.
    #[must_use]
    pub fn key_file(&self, name: &str) -> PathBuf {
        self.cert_dir.join(format!("{name}.key"))
    }
}

/// `[store]`, each per backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Store {
    /// Default 0: none. Most bytes of objects and parts that a backend takes;
    /// more is answered 507. Keys and metadata, some hundred bytes for each
    /// object, come on top. With a quota a backend looks at every small object
    /// when it starts.
    pub quota_bytes: u64,
    /// Default 268,435,456 (256 MiB). Free bytes of the file system that writes
    /// leave; they are answered 507 below it. The store's own log and its
    /// compaction live on them, and so does what deletes write.
    pub reserve_bytes: u64,
    /// Default 604,800 (a week); 0 for never. How often everything is read and
    /// compared with its checksums.
    pub scrub_interval_s: u32,
    /// Default 33,554,432 (32 MiB). How many bytes per second that reads.
    pub scrub_bytes_per_s: u64,
    /// Default 0: as fast as it goes. How many bytes per second a backend fetches that
    /// catches up, or gets hold of keys that it is to have.
    pub refill_bytes_per_s: u64,
    /// Default 60. How long a block of an object that was compared with its
    /// checksum may be sent without being compared again; 0 for never.
    /// `docs/configuration.md` says what that costs.
    pub recheck_s: u32,
    /// Default 0: never. After how many days an upload in parts of which nothing more
    /// has come is aborted, and its parts are removed.
    pub expire_uploads_days: u32,
}

impl Default for Store {
    fn default() -> Self {
        Self {
            quota_bytes: 0,
            reserve_bytes: 256 << 20,
            scrub_interval_s: 7 * 86_400,
            scrub_bytes_per_s: 32 << 20,
            refill_bytes_per_s: 0,
            recheck_s: 60,
            expire_uploads_days: 0,
        }
    }
}

/// `[limits]`, each per node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Default 16,384 bytes. The longest request head; a longer one is
    /// answered 431. Costs this much memory per connection at most.
    pub head_bytes: u32,
    /// Default 100,000. Open client connections; for one more the oldest is closed on which
    /// no request was let in yet, and without such a one the new one.
    /// An idle one takes some 10 KiB, 7 of them in the kernel, and a file descriptor.
    pub connections: u32,
    /// Default 4,096. Open client connections of one address on which no request was let in
    /// yet; more are closed at once.
    pub unauthenticated_per_address: u32,
    /// Default 30 s. How long a connection may last until a request on it was let in.
    pub unauthenticated_timeout_s: u32,
    /// Default 60 s. How long a connection may wait between two requests.
    pub idle_timeout_s: u32,
    /// Default 10 s. From the first byte of a request head to its last.
    pub head_timeout_s: u32,
    /// Default 60 s. How long a body may go without a byte moved.
    pub stall_timeout_s: u32,
    /// Default 5 GiB (in bytes). The largest object that one PUT may write;
    /// a larger one is answered `EntityTooLarge`.
    pub max_object_bytes: u64,
    /// Default 10 s. After SIGTERM, how long requests under way may take.
    pub drain_timeout_s: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head_bytes: 16 << 10,
            connections: 100_000,
            unauthenticated_per_address: 4096,
            unauthenticated_timeout_s: 30,
            idle_timeout_s: 60,
            head_timeout_s: 10,
            stall_timeout_s: 60,
            max_object_bytes: 5 << 30,
            drain_timeout_s: 10,
        }
    }
}

impl Limits {
    /// How long a connection may last until a request on it was let in.
    #[must_use]
    pub fn unauthenticated_timeout(&self) -> Duration {
        Duration::from_secs(self.unauthenticated_timeout_s.into())
    }

    /// How long a connection may wait between two requests.
    #[must_use]
    pub fn idle_timeout(&self) -> Duration {
        Duration::from_secs(self.idle_timeout_s.into())
    }

    /// From the first byte of a request head to its last.
    #[must_use]
    pub fn head_timeout(&self) -> Duration {
        Duration::from_secs(self.head_timeout_s.into())
    }

    /// How long a body may go without a byte moved.
    #[must_use]
    pub fn stall_timeout(&self) -> Duration {
        Duration::from_secs(self.stall_timeout_s.into())
    }

    /// How long requests under way may take after SIGTERM.
    #[must_use]
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_secs(self.drain_timeout_s.into())
    }
}

/// `[s3]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3 {
    /// Required without etcd. TOML file with one `[[credential]]` (fields
    /// `access_key`, `secret_key`) for each user, readable by its owner only. Read
    /// again when it changes. With etcd the first node of a new cluster writes
    /// these users there, and from then on those in etcd count.
    pub credentials_file: PathBuf,
    /// Default `deny`. What a request without a signature may do.
    pub anonymous: Anonymous,
}

/// What a request without a signature may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Anonymous {
    /// Nothing.
    #[default]
    Deny,
    /// Read objects and list the keys of a bucket, but not the buckets. Every
    /// object is public then.
    Read,
}

/// `[log]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Default `info`. `error`, `warn`, `info`, `debug`, `trace` or `off`, optionally
    /// per module: `info,prism_handoff=debug`. `trace` costs throughput.
    pub level: String,
    /// Default `text`.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::default(),
        }
    }
}

/// How a line of the log looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// `[admin]`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// Default `/run/prism`. Directory of the Unix sockets `<node>.sock`,
    /// which answer the process's counters as JSON. Whoever can open them can
    /// read the counters, and have a node hand all its clients to others.
    pub socket_dir: PathBuf,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            socket_dir: "/run/prism".into(),
        }
    }
}

impl Config {
    /// The node called `name`.
    #[must_use]
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

    /// Where node `name` listens for its peers.
    #[must_use]
    pub fn peer_address(&self, name: &str) -> Option<SocketAddrV4> {
        self.node(name)
            .map(|node| SocketAddrV4::new(node.address, self.peers.port))
    }

    /// Where clients connect to over HTTPS.
    #[must_use]
    pub fn tls_address(&self) -> Option<SocketAddrV4> {
        let tls = self.service.tls.as_ref()?;
        Some(SocketAddrV4::new(*self.service.address.ip(), tls.port))
    }

    /// The Unix socket on which node `name` answers its counters.
    #[must_use]
    pub fn admin_socket(&self, name: &str) -> PathBuf {
        self.admin.socket_dir.join(format!("{name}.sock"))
    }
}

/// Stands for a required address that is missing.
pub(crate) const UNSET: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);
