//! The section `[switch]`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::addresses::{ControlAddrs, HostAddrs};

section! {
    /// `[switch]`
    pub struct Switch;
    /// Required. The address and port on which the switch takes commands (UDP) and grants
    /// leases (TCP): at most one address of each family.
    pub control: ControlAddrs,
    /// Default: none, for a single switch. The hosts of a pair: one of them is active, namely the
    /// one that has the address of `control` at the moment.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<SwitchHost>,
    /// Default 1. The number of the key that signs the commands.
    pub key_id: u32 = 1,
    /// Required. The file with the key: 32 hexadecimal digits, readable by its owner only.
    /// The same on the switch and on every node.
    pub key_file: PathBuf,
    /// Default `prism`. The directory below `/sys/fs/bpf` where the switch pins its programs
    /// and maps, so that it can restart without losing a packet.
    pub pin_dir: String = "prism".into(),
    /// Required. The switch's interfaces towards clients, frontends and backends, and those on
    /// which commands arrive.
    pub interfaces: Vec<String>,
    /// Default `tc`. The place of the program. `xdp` is for network cards whose driver has it;
    /// on veth it loses checksum offload. `host` does without a switch (docs/design/host-mode.md).
    pub mode: HookMode,
    /// Default 0: in host mode all nodes are on one Ethernet segment. Otherwise the longest IP
    /// packet that the network carries between nodes, in bytes, 1,280 to 65,535: clients' packets
    /// reach their owner in a tunnel, across routers. Clients are told to send segments that fit.
    pub tunnel_mtu_bytes: u32,
    /// Default 1,048,576 flows. Each flow in use takes 208 bytes of kernel memory. A full table
    /// refuses new flows, and their requests are relayed.
    pub max_flows: u32 = 1 << 20,
    /// Default 3,600 s. The switch forgets a flow without packets after this time. It has to
    /// exceed `limits.idle_timeout_s` and `limits.stall_timeout_s`.
    pub idle_timeout_s: u32 = 3_600,
}

section! {
    /// A host of a pair of switches.
    pub struct SwitchHost;
    /// Required, unique. Its name, of the form of a node's.
    pub name: String,
    /// Required, unique. The address that it keeps: at most one of each family. By it the agent
    /// knows which of the two hosts it is on. Nodes copy their flows to it, by the family in
    /// which they reach `control`.
    pub address: HostAddrs,
}

/// The place in the kernel where the switch program runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookMode {
    /// Traffic control, ingress. It works on every interface.
    #[default]
    Tc,
    /// The driver, before the packet is allocated. It needs a network card with XDP.
    Xdp,
    /// Host mode: no switch box. Traffic control, ingress, on each node's own interfaces.
    /// `prism switch` runs on the host of every node, and every node has the service addresses.
    Host,
}
