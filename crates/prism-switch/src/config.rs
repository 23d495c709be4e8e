//! What the switch has to know. A plain struct: the program `prism` reads it
//! from TOML.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::Duration;

use prism_proto::control::{ControlKey, TOMBSTONE_NS};
use prism_proto::export::BLOCKED_NS;

/// Most frontends of one service (`MAX_FRONTENDS` of `bpf/maps.h`).
pub const MAX_FRONTENDS: usize = 16;
/// Most interfaces of one switch.
pub const MAX_INTERFACES: usize = 256;
/// Most services of one tenant (`MAX_TENANT_SERVICES` of `bpf/maps.h`): an owner's
/// packet may be of each.
pub const MAX_TENANT_SERVICES: usize = 16;
/// Most tenants that have services (`MAX_TENANTS` of `bpf/maps.h`).
pub const MAX_TENANTS: usize = 1024;
/// Kernel memory of one flow, bytes: an entry of 192, and a bucket of 16.
pub const FLOW_BYTES: usize = 192 + 16;

/// Configuration of a [`Switch`](crate::Switch).
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// Name of the directory under `/sys/fs/bpf` that keeps maps and links. One
    /// name is one switch.
    pub pin_dir: String,
    /// Interfaces whose incoming packets the switch handles. Those that do not
    /// exist yet can be added with [`Switch::attach`](crate::Switch::attach).
    pub interfaces: Vec<InterfaceConfig>,
    /// Where commands are sent to: an address of this host.
    pub control: SocketAddrV4,
    /// Addresses that clients connect to.
    pub services: Vec<ServiceConfig>,
    /// Every host behind the switch, and this host's own addresses (without a
    /// role) where backends are to reach them by TCP.
    pub nodes: Vec<NodeConfig>,
    /// Who may send commands.
    pub senders: Vec<SenderConfig>,
    /// Most flows, tombstones of the last seconds included. Default 1,048,576;
    /// costs [`FLOW_BYTES`] each, when used. Fixed while pins exist.
    pub max_flows: u32,
    /// A flow without packets or commands for this long is forgotten. It is the
    /// net under owners that vanish: keep it above every idle timeout of the
    /// service. Default 15 minutes.
    pub idle: Duration,
    /// A flow blocked for this long is forgotten, so that a source that crashed
    /// in a hand-off cannot hang its client. Default [`BLOCKED_NS`], 10 s: while either
    /// end of a hand-off may still settle whose the flow is.
    pub blocked: Duration,
    /// A flow whose owner has died is ended, and its client reset, when no packet
    /// has passed for this long: what the owner's kernel still sends is not cut
    /// off. Default 1 s.
    pub died: Duration,
    /// A flow whose owner ended in order is forgotten when no packet has passed
    /// for this long. Must exceed TIME_WAIT (60 s). Default 65 s.
    pub left: Duration,
    /// How long a forgotten flow's own epoch is kept; later it has that of all unknown
    /// flows. At least [`TOMBSTONE_NS`], 5 s, the default.
    pub tombstone: Duration,
    /// How often a packet to a next hop passes the kernel's neighbour table, which then
    /// asks whether a stale neighbour is still there. Default 4 s.
    pub confirm: Duration,
}

/// One interface of the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceConfig {
    /// Its name.
    pub name: String,
    /// Also attach the XDP program. For drivers with native XDP, on all
    /// interfaces; not for veth, where it breaks offloaded checksums. Default no.
    pub xdp: bool,
}

/// One service address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// What clients connect to (IPv4).
    pub addr: SocketAddr,
    /// Whose it is.
    pub tenant: u32,
    /// Nodes that accept its connections, at most [`MAX_FRONTENDS`].
    pub frontends: Vec<IpAddr>,
}

/// What a node does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Accepts connections.
    pub frontend: bool,
    /// Serves flows: its TCP to addresses that are no nodes is dropped unless it
    /// belongs to a flow.
    pub backend: bool,
}

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// Its address (IPv4).
    pub addr: IpAddr,
    /// Whose it is.
    pub tenant: u32,
    /// What it does.
    pub roles: Roles,
    /// How to reach it, where the kernel is not to be asked.
    pub link: Option<Link>,
}

/// A next hop that is given instead of looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Interface that leads to the node.
    pub ifindex: u32,
    /// The node's Ethernet address.
    pub node_mac: [u8; 6],
    /// This host's Ethernet address there.
    pub own_mac: [u8; 6],
    /// Longest IP packet, bytes. 0: not checked.
    pub mtu_bytes: u32,
}

/// One key.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// Identifies the key in commands.
    pub key_id: u32,
    /// The secret.
    pub key: ControlKey,
    /// Whose flows it may change.
    pub tenant: u32,
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            pin_dir: "prism".into(),
            interfaces: Vec::new(),
            control: SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0),
            services: Vec::new(),
            nodes: Vec::new(),
            senders: Vec::new(),
            max_flows: 1 << 20,
            idle: Duration::from_mins(15),
            blocked: Duration::from_nanos(BLOCKED_NS),
            died: Duration::from_secs(1),
            left: Duration::from_secs(65),
            tombstone: Duration::from_nanos(TOMBSTONE_NS),
            confirm: Duration::from_secs(4),
        }
    }
}

impl SwitchConfig {
    /// The first thing that is wrong, in words.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.interfaces.len() > MAX_INTERFACES {
            return Some(format!("more than {MAX_INTERFACES} interfaces"));
        }
        if self.max_flows == 0 || self.max_flows > 1 << 26 {
            return Some("max_flows must be 1 to 67,108,864".into());
        }
        let least = Duration::from_nanos(TOMBSTONE_NS);
        if self.tombstone < least {
            return Some(format!("tombstone must be {least:?} or longer"));
        }
        self.services
            .iter()
            .find_map(service_problem)
            .or_else(|| tenant_problem(&self.services))
            .or_else(|| self.nodes.iter().find_map(node_problem))
    }
}

fn service_problem(service: &ServiceConfig) -> Option<String> {
    let addr = service.addr;
    if !addr.is_ipv4() || addr.port() == 0 {
        return Some(format!("service {addr} is not an IPv4 address with a port"));
    }
    if service.frontends.len() > MAX_FRONTENDS {
        return Some(format!(
            "service {addr} has more than {MAX_FRONTENDS} frontends"
        ));
    }
    let foreign = service.frontends.iter().find(|ip| !ip.is_ipv4())?;
    Some(format!("frontend {foreign} of service {addr} is not IPv4"))
}

fn tenant_problem(services: &[ServiceConfig]) -> Option<String> {
    let mut counts = BTreeMap::new();
    for service in services {
        *counts.entry(service.tenant).or_insert(0) += 1;
    }
    if counts.len() > MAX_TENANTS {
        return Some(format!("services of more than {MAX_TENANTS} tenants"));
    }
    let (tenant, _) = counts.iter().find(|(_, n)| **n > MAX_TENANT_SERVICES)?;
    Some(format!(
        "tenant {tenant} has more than {MAX_TENANT_SERVICES} services"
    ))
}

fn node_problem(node: &NodeConfig) -> Option<String> {
    (!node.addr.is_ipv4()).then(|| format!("node {} is not IPv4", node.addr))
}
