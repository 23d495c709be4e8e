//! A client and two nodes behind a switch, each in a network namespace of its own, and the
//! configuration of the nodes. The tests of this crate use the same network.
//!
//! ```text
//!   client 192.0.2.1 ─── switch ─┬─ left  10.0.0.1 (accepts clients)
//!                                └─ right 10.0.1.1
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use prism_handoff::pki::{self, Identity};
use prism_handoff::{EndpointConfig, Peer, Process, SwitchAddress};
use prism_netns::NetNs;
use prism_proto::control::ControlKey;
use prism_switch::{NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig};
use tempfile::TempDir;

/// The address that clients connect to.
pub(crate) const SERVICE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(198, 51, 100, 1), 7);
/// Names and addresses of the nodes; the first one accepts clients.
pub(crate) const NODES: [(&str, Ipv4Addr); 2] = [
    ("left", Ipv4Addr::new(10, 0, 0, 1)),
    ("right", Ipv4Addr::new(10, 0, 1, 1)),
];
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the switch for commands.
const CONTROL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 1), 7171);
const KEY_ID: u32 = 1;
/// A secret of the switch and its nodes; a real one is random.
const KEY: [u8; 16] = *b"not a secret key";
const TENANT: u32 = 1;

/// The namespaces, the switch that is loaded in one of them, and the nodes' certificates.
pub(crate) struct Network {
    /// The client's namespace.
    pub(crate) client: NetNs,
    nodes: Vec<(&'static str, NetNs)>,
    switch: NetNs,
    pki: TempDir,
    pin_dir: String,
}

impl Network {
    /// Builds a network whose switch is pinned below `/sys/fs/bpf/PIN_DIR`.
    pub(crate) fn new(pin_dir: &str) -> anyhow::Result<Self> {
        let pki = tempfile::tempdir()?;
        pki::init(pki.path(), &NODES.map(|(name, _)| name.to_owned()))?;
        let switch = NetNs::anonymous()?;
        sh(
            &switch,
            &format!(
                "ip link set lo up && ip address add {}/32 dev lo
                 echo 1 > /proc/sys/net/ipv4/ip_forward",
                CONTROL.ip()
            ),
        )?;
        let client = host(&switch, "client", CLIENT)?;
        let nodes = NODES.map(|(name, address)| Ok((name, host(&switch, name, address)?)));
        let nodes: Vec<_> = nodes.into_iter().collect::<anyhow::Result<_>>()?;
        let network = Self {
            client,
            nodes,
            switch,
            pki,
            pin_dir: pin_dir.to_owned(),
        };
        let (accepting, _) = NODES[0];
        let service = format!("ip address add {}/32 dev lo", SERVICE.ip());
        sh(network.node(accepting)?, &service)?;
        // A killed predecessor leaves its pins.
        network.switch.run(|| Switch::unload(pin_dir))??;
        let config = switch_config(pin_dir);
        drop(network.switch.run(|| Switch::load(&config))??);
        Ok(network)
    }

    /// The namespace of the node `name`.
    pub(crate) fn node(&self, name: &str) -> anyhow::Result<&NetNs> {
        let found = self.nodes.iter().find(|(n, _)| *n == name);
        let (_, namespace) = found.with_context(|| format!("no node is called {name}"))?;
        Ok(namespace)
    }

    /// The directory of the nodes' certificates.
    pub(crate) fn pki_dir(&self) -> &Path {
        self.pki.path()
    }

    /// Connects or disconnects the node `name`.
    #[allow(dead_code, reason = "for the tests")]
    pub(crate) fn set_link(&self, name: &str, is_up: bool) -> anyhow::Result<()> {
        let state = if is_up { "up" } else { "down" };
        sh(&self.switch, &format!("ip link set {name} {state}"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let unloaded = self.switch.run(|| Switch::unload(&self.pin_dir));
        if !matches!(unloaded, Ok(Ok(()))) {
            eprintln!("remove /sys/fs/bpf/{}: {unloaded:?}", self.pin_dir);
        }
    }
}

/// The configuration of the node `name`.
pub(crate) fn config(name: &str, pki_dir: &Path) -> anyhow::Result<EndpointConfig> {
    let nodes = NODES.map(|(name, address)| Peer {
        name: name.to_owned(),
        addresses: vec![address.into()],
    });
    let identity = Identity::of_node(pki_dir, name)?;
    let config = EndpointConfig::new(name, &nodes, &[SERVICE.into()], identity);
    let mut config = config.with_context(|| format!("no node is called {name}"))?;
    config.listen = name == NODES[0].0;
    config.switch = Some(SwitchAddress::new(CONTROL.into(), KEY_ID, KEY));
    Ok(config)
}

/// Waits until the node has heard from the switch: it hands off no connection before.
pub(crate) async fn knows_switch(process: &Process) {
    while process.counters.workers_steering.read() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// The file by which other programs enter a namespace.
pub(crate) fn path(namespace: &NetNs) -> String {
    let fd = namespace.as_fd().as_raw_fd();
    format!("/proc/{}/fd/{fd}", std::process::id())
}

fn switch_config(pin_dir: &str) -> SwitchConfig {
    let node = |addr: IpAddr, roles| NodeConfig {
        addr,
        tenant: TENANT,
        roles,
        link: None,
    };
    let [(left, left_address), (right, right_address)] = NODES;
    SwitchConfig {
        pin_dir: pin_dir.to_owned(),
        interfaces: ["client", left, right].map(String::from).into(),
        control: vec![CONTROL.into()],
        services: vec![ServiceConfig {
            addr: SERVICE.into(),
            tenant: TENANT,
            frontends: vec![left_address.into()],
        }],
        nodes: [(left_address, true), (right_address, false)]
            .map(|(address, frontend)| {
                let backend = !frontend;
                node(address.into(), Roles { frontend, backend })
            })
            .into(),
        senders: vec![SenderConfig {
            key_id: KEY_ID,
            key: ControlKey::new(KEY),
            tenant: TENANT,
            node: Vec::new(),
        }],
        max_flows: 1024,
        ..SwitchConfig::default()
    }
}

/// A namespace with `address`, whose link to the switch is called `name` there.
fn host(switch: &NetNs, name: &str, address: Ipv4Addr) -> anyhow::Result<NetNs> {
    let namespace = NetNs::anonymous()?;
    let [a, b, c, _] = address.octets();
    let gateway = Ipv4Addr::new(a, b, c, 254);
    sh(
        switch,
        &format!(
            "ip link add {name} type veth peer name eth0 netns {}
             ip address add {gateway}/24 dev {name} && ip link set {name} up",
            path(&namespace)
        ),
    )?;
    sh(
        &namespace,
        &format!(
            "ip link set lo up && ip link set eth0 up
             ip address add {address}/24 dev eth0 && ip route add default via {gateway}"
        ),
    )?;
    Ok(namespace)
}

/// Runs shell commands in a namespace.
fn sh(namespace: &NetNs, commands: &str) -> anyhow::Result<()> {
    let output = namespace.run(|| Command::new("sh").args(["-ec", commands]).output())??;
    let stderr = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{commands}: {stderr}");
    Ok(())
}
