//! The switch's configuration: a plain struct, which the program `prism` reads from TOML.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use prism_proto::control::{ControlKey, TOMBSTONE_NS};
use prism_proto::copy::KEPT_NS;
use prism_proto::export::BLOCKED_NS;

/// Most frontends of one service (`MAX_FRONTENDS` of `bpf/maps.h`).
pub const MAX_FRONTENDS: usize = 16;
/// Most interfaces of one switch.
pub const MAX_INTERFACES: usize = 256;
/// The tenant of a node that serves all tenants: a frontend of several services (`ALL_TENANTS` of
/// `bpf/maps.h`).
pub const ALL_TENANTS: u32 = u32::MAX;
/// Most services of one tenant (`MAX_TENANT_SERVICES` of `bpf/maps.h`): an owner's packet may
/// belong to any of them.
pub const MAX_TENANT_SERVICES: usize = 32;
/// Kernel memory of one flow, in bytes: an entry of 192, and a bucket of 16.
pub const FLOW_BYTES: usize = 192 + 16;

/// Configuration of a [`Switch`](crate::Switch).
#[derive(Clone, Debug)]
pub struct SwitchConfig {
    /// The directory under `/sys/fs/bpf` for maps and links. Each switch has its own.
    pub pin_dir: String,
    /// Interfaces whose incoming packets the switch handles.
    /// [`Switch::attach`](crate::Switch::attach) adds interfaces that do not exist yet.
    pub interfaces: Vec<String>,
    /// Whether to attach the XDP program too. It is for drivers with native XDP. On veth it
    /// breaks offloaded checksums. Default no.
    pub xdp: bool,
    /// The addresses of this host that commands are sent to: at most one of each family, with
    /// the same port.
    pub control: Vec<SocketAddr>,
    /// The own addresses of a host of a pair, at which it takes copies of flows at the same port:
    /// at most one of each family. Default none.
    pub copies: Vec<IpAddr>,
    /// Addresses that clients connect to.
    pub services: Vec<ServiceConfig>,
    /// All hosts behind the switch. An address of this host that backends must reach by TCP is
    /// a node without a role.
    pub nodes: Vec<NodeConfig>,
    /// The keys of the nodes that may send commands.
    pub senders: Vec<SenderConfig>,
    /// The numbers of the interfaces that lead to nodes. Commands and requests for leases that come
    /// in by others are dropped. Default: empty, which is all.
    pub control_interfaces: BTreeSet<u32>,
    /// Most flows, recent tombstones included. Default 1,048,576. Each takes [`FLOW_BYTES`]
    /// when it is used. The value cannot change while pins exist.
    pub max_flows: u32,
    /// The time without packets or commands after which a flow is forgotten, so that owners
    /// that vanish leave no flows. It must exceed every idle timer of the service. Default
    /// 15 minutes.
    pub idle: Duration,
    /// The time after which a blocked flow is forgotten, so that a source that crashed in a
    /// hand-off cannot hang its client. Default [`BLOCKED_NS`], 10 s: that long either end of a
    /// hand-off may still decide who owns the flow.
    pub blocked: Duration,
    /// The time without packets after which the flow of a dead owner is ended, and its client
    /// reset. The owner's kernel may still send until then. Default 1 s.
    pub died: Duration,
    /// The time without packets after which the flow of an owner that ended in order is
    /// forgotten. It must exceed TIME_WAIT (60 s). Default 65 s.
    pub left: Duration,
    /// The time after which a standby forgets a flow that no node has copied again. Default
    /// [`KEPT_NS`], 3 minutes.
    pub copied: Duration,
    /// The time for which a forgotten flow has an epoch of its own. Then it has that of all
    /// unknown flows. At least [`TOMBSTONE_NS`], 5 s, which is the default.
    pub tombstone: Duration,
    /// Host mode: the addresses of this host among those of the nodes. The programs then send
    /// packets of flows to their owners, and leave all others to this host. Default: a switch.
    pub host_mode: Option<BTreeSet<IpAddr>>,
    /// Host mode: the longest IP packet between nodes, in bytes, if routers are between them.
    /// Packets to owners then go in a tunnel. Default 0: all nodes are on one segment.
    pub tunnel_mtu_bytes: u32,
    /// The period in which one packet to each next hop goes through the kernel's neighbour
    /// table, which then checks stale neighbours. Default 4 s.
    pub confirm: Duration,
}

/// One service address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceConfig {
    /// The address that clients connect to.
    pub addr: SocketAddr,
    /// The tenant that owns it.
    pub tenant: u32,
    /// The nodes that accept its connections, at most [`MAX_FRONTENDS`]; of each its address of
    /// the service's family.
    pub frontends: Vec<IpAddr>,
}

/// The roles of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Roles {
    /// Accepts connections.
    pub frontend: bool,
    /// Serves flows. Its TCP packets to addresses of no node are dropped unless they belong to
    /// a flow.
    pub backend: bool,
}

/// One address of a host. A host with an address of each family is two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeConfig {
    /// The address.
    pub addr: IpAddr,
    /// The tenant that owns it.
    pub tenant: u32,
    /// Its roles.
    pub roles: Roles,
    /// Its next hop, if the kernel is not to look it up.
    pub link: Option<Link>,
}

/// A next hop that is given instead of looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The interface that leads to the node.
    pub ifindex: u32,
    /// The node's Ethernet address.
    pub node_mac: [u8; 6],
    /// This host's Ethernet address there.
    pub own_mac: [u8; 6],
    /// Longest IP packet, in bytes; 0 for no check.
    pub mtu_bytes: u32,
}

/// One key for commands.
#[derive(Clone, Debug)]
pub struct SenderConfig {
    /// The number that identifies the key in commands.
    pub key_id: u32,
    /// The secret.
    pub key: ControlKey,
    /// The tenant whose flows it may change.
    pub tenant: u32,
    /// The addresses of the only node that has the key, at most one of each family. It may change
    /// its own flows, and get a lease for itself. Empty: all nodes of the tenant share the key.
    pub node: Vec<IpAddr>,
}

impl SenderConfig {
    /// The node with the key, or its tenant, for messages.
    fn holder(&self) -> String {
        match self.node.first() {
            Some(node) => format!("the node at {node}"),
            None => format!("all nodes of tenant {}", self.tenant),
        }
    }
}

impl Default for SwitchConfig {
    fn default() -> Self {
        Self {
            pin_dir: "prism".into(),
            interfaces: Vec::new(),
            xdp: false,
            control: Vec::new(),
            copies: Vec::new(),
            services: Vec::new(),
            nodes: Vec::new(),
            senders: Vec::new(),
            control_interfaces: BTreeSet::new(),
            max_flows: 1 << 20,
            idle: Duration::from_mins(15),
            blocked: Duration::from_nanos(BLOCKED_NS),
            died: Duration::from_secs(1),
            left: Duration::from_secs(65),
            copied: Duration::from_nanos(KEPT_NS),
            tombstone: Duration::from_nanos(TOMBSTONE_NS),
            host_mode: None,
            tunnel_mtu_bytes: 0,
            confirm: Duration::from_secs(4),
        }
    }
}

impl SwitchConfig {
    /// Whether `node` is this host, in host mode.
    pub(crate) fn is_here(&self, node: &NodeConfig) -> bool {
        let own = self.host_mode.as_ref();
        own.is_some_and(|own| own.contains(&node.addr))
    }

    /// Whether this host is a frontend, in host mode.
    pub(crate) fn has_frontend_here(&self) -> bool {
        let mut nodes = self.nodes.iter();
        nodes.any(|node| node.roles.frontend && self.is_here(node))
    }

    /// A description of the first fault. Faults that `prism-config` finds are not looked for again.
    pub(crate) fn problem(&self) -> Option<String> {
        if self.interfaces.len() > MAX_INTERFACES {
            return Some(format!("more than {MAX_INTERFACES} interfaces"));
        }
        let mut services = self.services.iter();
        let crowded = services.find(|service| service.frontends.len() > MAX_FRONTENDS);
        let crowded = crowded.map(|service| {
            let addr = service.addr;
            format!("service {addr} has more than {MAX_FRONTENDS} frontends")
        });
        crowded.or_else(|| sender_problem(&self.senders))
    }
}

fn sender_problem(senders: &[SenderConfig]) -> Option<String> {
    let mut known: BTreeMap<u32, &SenderConfig> = BTreeMap::new();
    for sender in senders {
        if let Some(other) = known.insert(sender.key_id, sender) {
            return Some(format!(
                "the keys of {} and {} have the same number, {:08x}; change the name of one",
                other.holder(),
                sender.holder(),
                sender.key_id
            ));
        }
    }
    None
}
