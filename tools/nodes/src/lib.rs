//! A client and nodes of `prism-handoff` behind a switch, each in a network namespace of its own,
//! for tests and examples of the library.
//!
//! ```text
//!   client 192.0.2.1 ─── switch ─┬─ first node  10.0.0.1 (accepts clients)
//!                                ├─ second node 10.0.1.1
//!                                └─ ...
//! ```
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Command;

use anyhow::Context;
use prism_handoff::pki::{self, Identity};
use prism_handoff::{EndpointConfig, Peer, SwitchAddress};
use prism_netns::NetNs;
use prism_proto::control::ControlKey;
use prism_switch::{NodeConfig, Roles, SenderConfig, ServiceConfig, Switch, SwitchConfig};
use tempfile::TempDir;

/// The host that clients connect to.
pub const SERVICE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the switch for commands.
pub const CONTROL: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 1), 7171);
/// The number of the key of the switch and its nodes.
pub const KEY_ID: u32 = 1;
/// That key; a real one is random.
pub const KEY: [u8; 16] = *b"not a secret key";
const TENANT: u32 = 1;

/// The names of the nodes, and the port of the service.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The nodes, at most nine. The first one accepts clients.
    pub nodes: &'static [&'static str],
    /// The port that clients connect to.
    pub port: u16,
}

impl Plan {
    /// The address that clients connect to.
    pub fn service(&self) -> SocketAddrV4 {
        SocketAddrV4::new(SERVICE, self.port)
    }

    /// The names and addresses of the nodes.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, Ipv4Addr)> {
        let nodes = self.nodes.iter().zip(0..9);
        nodes.map(|(name, n)| (*name, Ipv4Addr::new(10, 0, n, 1)))
    }

    fn accepting(&self) -> anyhow::Result<&'static str> {
        self.nodes.first().copied().context("there is no node")
    }

    /// The configuration of the node `name`, whose certificate is in `pki_dir`.
    ///
    /// # Errors
    /// If there is no such node, or its certificate cannot be read.
    pub fn config(&self, name: &str, pki_dir: &Path) -> anyhow::Result<EndpointConfig> {
        let nodes = self.addresses().map(|(name, address)| Peer {
            name: name.to_owned(),
            addresses: vec![address.into()],
        });
        let nodes: Vec<_> = nodes.collect();
        let identity = Identity::of_node(pki_dir, name)?;
        let config = EndpointConfig::new(name, &nodes, &[self.service().into()], identity);
        let mut config = config.with_context(|| format!("no node is called {name}"))?;
        config.listen = name == self.accepting()?;
        config.switch = Some(SwitchAddress::new(CONTROL.into(), KEY_ID, KEY));
        Ok(config)
    }

    fn switch(&self, pin_dir: &str) -> anyhow::Result<SwitchConfig> {
        let accepting = self.accepting()?;
        let is_frontend = |name: &str| name == accepting;
        let nodes = self.addresses().map(|(name, address)| NodeConfig {
            addr: address.into(),
            tenant: TENANT,
            roles: Roles {
                frontend: is_frontend(name),
                backend: !is_frontend(name),
            },
            link: None,
        });
        let frontends = self.addresses().filter(|(name, _)| is_frontend(name));
        let links = ["client"].into_iter().chain(self.nodes.iter().copied());
        Ok(SwitchConfig {
            pin_dir: pin_dir.to_owned(),
            interfaces: links.map(String::from).collect(),
            control: vec![CONTROL.into()],
            services: vec![ServiceConfig {
                addr: self.service().into(),
                tenant: TENANT,
                frontends: frontends
                    .map(|(_, address)| IpAddr::from(address))
                    .collect(),
            }],
            nodes: nodes.collect(),
            senders: vec![SenderConfig {
                key_id: KEY_ID,
                key: ControlKey::new(KEY),
                tenant: TENANT,
                node: Vec::new(),
            }],
            max_flows: 1 << 16,
            ..SwitchConfig::default()
        })
    }
}

/// The namespaces, the switch that is loaded in one of them, and the nodes' certificates.
pub struct Network {
    /// The client's namespace.
    pub client: NetNs,
    nodes: Vec<(&'static str, NetNs)>,
    switch: NetNs,
    pki: TempDir,
    /// The place of the switch's programs.
    pin_dir: String,
}

impl Network {
    /// Builds a network whose switch is pinned below `/sys/fs/bpf/PIN_DIR`.
    ///
    /// # Errors
    /// Without root, or if the kernel refuses a namespace, a link or a program of the switch.
    pub fn new(plan: &Plan, pin_dir: &str) -> anyhow::Result<Self> {
        let pki = tempfile::tempdir()?;
        let names: Vec<_> = plan.nodes.iter().map(|name| (*name).to_owned()).collect();
        pki::init(pki.path(), &names)?;
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
        let hosts = plan.addresses();
        let nodes = hosts.map(|(name, address)| Ok((name, host(&switch, name, address)?)));
        let nodes: Vec<_> = nodes.collect::<anyhow::Result<_>>()?;
        let network = Self {
            client,
            nodes,
            switch,
            pki,
            pin_dir: pin_dir.to_owned(),
        };
        let service = format!("ip address add {SERVICE}/32 dev lo");
        sh(network.node(plan.accepting()?)?, &service)?;
        // A killed predecessor leaves its pins.
        network.switch.run(|| Switch::unload(pin_dir))??;
        let config = plan.switch(pin_dir)?;
        drop(network.switch.run(|| Switch::load(&config))??);
        Ok(network)
    }

    /// The namespace of the node `name`.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn node(&self, name: &str) -> anyhow::Result<&NetNs> {
        let found = self.nodes.iter().find(|(n, _)| *n == name);
        let (_, namespace) = found.with_context(|| format!("no node is called {name}"))?;
        Ok(namespace)
    }

    /// The directory of the nodes' certificates.
    pub fn pki_dir(&self) -> &Path {
        self.pki.path()
    }

    /// Connects or disconnects the node `name`.
    ///
    /// # Errors
    /// If there is no such node.
    pub fn set_link(&self, name: &str, is_up: bool) -> anyhow::Result<()> {
        let state = if is_up { "up" } else { "down" };
        sh(&self.switch, &format!("ip link set {name} {state}"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let pin_dir = &self.pin_dir;
        let unloaded = self.switch.run(|| Switch::unload(pin_dir));
        if !matches!(unloaded, Ok(Ok(()))) {
            eprintln!("remove /sys/fs/bpf/{pin_dir}: {unloaded:?}");
        }
    }
}

/// True where a test that needs root is to run; without root it is skipped, but never in CI.
///
/// # Panics
/// In CI without root.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    assert!(
        is_root || std::env::var_os("CI").is_none(),
        "CI must run as root"
    );
    if !is_root {
        eprintln!("SKIPPED: needs root");
    }
    is_root
}

/// The file by which other programs enter a namespace.
fn path(namespace: &NetNs) -> String {
    let fd = namespace.as_fd().as_raw_fd();
    format!("/proc/{}/fd/{fd}", std::process::id())
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
