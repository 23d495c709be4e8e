//! Namespaces, links, addresses, routes, kernel settings and link speeds.

use std::net::IpAddr;
use std::process::Command;

use prism_config::HookMode;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::fabric::{bridge_commands, cable_commands, far_namespace, has_fabric, host_port};
use crate::family::Family;
use crate::name::{FABRIC, LabName};
use crate::plan::{HostKind, HostLink, LabPlan, alone};
use crate::rate::Rate;
use crate::state::Lock;
use crate::tool::{batch, in_namespace, run};

/// A token bucket must hold one whole GSO packet (64 KiB and headers), or the
/// kernel cuts each into segments first; twice that lets two follow closely.
const MIN_BURST_BYTES: u64 = 128 << 10;
/// The longest burst; longer ones would let short transfers escape the limit.
const BURST_MS: u64 = 1;
/// The buffer of a port: 20 ms of the link, as in a switch with shallow buffers,
const QUEUE_MS: u64 = 20;
/// but enough for eight GSO packets at any speed.
const MIN_QUEUE_BYTES: u64 = 512 << 10;

/// Settings of every host.
const EVERY_SETTING: [&str; 2] = [
    "net.ipv4.ip_local_port_range=10000 65535",
    "net.core.somaxconn=4096",
];
/// Further settings of a lab without IPv6, whose captures then have no other packets.
const NO_V6_SETTINGS: [&str; 2] = [
    "net.ipv6.conf.all.disable_ipv6=1",
    "net.ipv6.conf.default.disable_ipv6=1",
];
/// Further settings of a lab with IPv6. An interface's own link-local address, which discovers
/// neighbours, is ready at once, and nothing is asked of routers. An interface that was taken down
/// still has its addresses when it comes up, as those of IPv4.
const V6_SETTINGS: [&str; 7] = [
    "net.ipv6.conf.all.disable_ipv6=0",
    "net.ipv6.conf.default.disable_ipv6=0",
    "net.ipv6.conf.default.accept_dad=0",
    "net.ipv6.conf.default.accept_ra=0",
    "net.ipv6.conf.default.router_solicitations=0",
    "net.ipv6.conf.all.keep_addr_on_down=1",
    "net.ipv6.conf.default.keep_addr_on_down=1",
];
/// Further settings of hosts that are set up. Reverse path filters and the bridge filter would
/// break return paths.
const HOST_SETTINGS: [&str; 3] = [
    "net.ipv4.conf.all.rp_filter=0",
    "net.ipv4.conf.default.rp_filter=0",
    "net.bridge.bridge-nf-call-iptables=0",
];
/// Further settings of those that are not, as some distributions have it.
const BARE_SETTINGS: [&str; 1] = ["net.ipv4.conf.all.rp_filter=1"];
/// Further settings of the switch, and of a router. Forwarding comes first: it resets others.
const SWITCH_SETTINGS: [&str; 4] = [
    "net.ipv4.ip_forward=1",
    "net.ipv6.conf.all.forwarding=1",
    "net.ipv4.conf.all.send_redirects=0",
    "net.ipv4.conf.default.send_redirects=0",
];

/// Further settings of a router: a flow's way depends on its ports too.
const ROUTER_SETTINGS: [&str; 2] = [
    "net.ipv4.fib_multipath_hash_policy=1",
    "net.ipv6.fib_multipath_hash_policy=1",
];

/// Further settings of nodes in host mode, which have the service address as well: only the host
/// that has it on its interface tells the others so.
const SHARED_ADDRESS_SETTINGS: [&str; 4] = [
    "net.ipv4.conf.all.arp_ignore=1",
    "net.ipv4.conf.default.arp_ignore=1",
    "net.ipv4.conf.all.arp_announce=2",
    "net.ipv4.conf.default.arp_announce=2",
];

/// The state of the switch's and the nodes' hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setup {
    /// They have all that Prism needs.
    Whole,
    /// They have links, addresses of their own, and routes to each other.
    Bare,
}

/// Bytes that a host's interface has moved, headers included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InterfaceBytes {
    /// Received.
    pub rx: u64,
    /// Sent.
    pub tx: u64,
}

/// Builds the network of `plan`. After an error the sweep removes its parts.
pub(crate) fn build(plan: &LabPlan, setup: Setup, lock: &Lock) -> Result<(), LabError> {
    let name = &plan.name;
    let hosts = plan.hosts().chain(fabric_of(plan));
    let commands: Vec<String> = hosts
        .map(|host| format!("netns add {}", name.namespace(host)))
        .collect();
    batch("ip", None, &commands, lock)?;
    set_kernel(plan, setup)?;
    batch("ip", None, &cable_commands(plan), lock)?;
    for (number, switch) in plan.switches.iter().enumerate() {
        let commands = switch_commands(plan, setup, number);
        batch("ip", Some(&name.namespace(&switch.name)), &commands, lock)?;
    }
    if let Some(fabric) = fabric_of(plan) {
        let fabric = name.namespace(fabric);
        batch("ip", Some(&fabric), &bridge_commands(plan), lock)?;
    }
    for link in &plan.links {
        batch(
            "ip",
            Some(&name.namespace(&link.host)),
            &host_commands(plan, setup, link),
            lock,
        )?;
    }
    shape(plan, lock)
}

/// The host with the bridges, if there is one.
fn fabric_of(plan: &LabPlan) -> Option<&'static str> {
    has_fabric(plan).then_some(FABRIC)
}

/// It runs before any interface exists, so that each begins with these settings.
fn set_kernel(plan: &LabPlan, setup: Setup) -> Result<(), LabError> {
    for host in plan.hosts().chain(fabric_of(plan)) {
        let mut command = in_namespace(&plan.name.namespace_path(host), "sysctl");
        // -e: a kernel without the bridge filter lacks its setting.
        command.args(["-e", "-q", "-w"]);
        let is_router = plan.is_routed() && host == FABRIC;
        if plan.family.has(Family::V6) && (host != FABRIC || is_router) {
            command.args(V6_SETTINGS)
        } else {
            command.args(NO_V6_SETTINGS)
        };
        let is_set_up = plan.link(host).is_some_and(|link| !link.is_server());
        match setup {
            Setup::Bare if !is_set_up => command.args(BARE_SETTINGS),
            _ if is_router || plan.switch(host).is_some() => {
                command.args(SWITCH_SETTINGS).args(HOST_SETTINGS)
            }
            _ => command.args(HOST_SETTINGS),
        };
        if plan.is_host_mode() && plan.link(host).is_some_and(HostLink::is_server) {
            command.args(SHARED_ADDRESS_SETTINGS);
        }
        if is_router {
            command.args(ROUTER_SETTINGS);
        }
        run(command.args(EVERY_SETTING))?;
    }
    Ok(())
}

fn switch_commands(plan: &LabPlan, setup: Setup, number: usize) -> Vec<String> {
    let mut commands = vec!["link set lo up".to_owned()];
    // The address is on lo, as not every kernel has the dummy driver.
    let own = plan.switches.get(number).map(|switch| switch.address);
    let own = own.iter().flat_map(|own| own.iter());
    commands.extend(own.map(|own| add(&alone(own), "lo")));
    for link in &plan.links {
        // keepalived adds the gateway of a pair.
        let ends = link.own.get(number).unwrap_or(&link.gateway).iter();
        commands.extend(ends.map(|end| add(&plan.on_link(end), &link.host)));
        commands.push(format!("link set {} up", link.host));
    }
    // The hosts of a pair reach each other by the segment of the first node.
    let others = plan.switches.iter().enumerate();
    for (other, switch) in others.filter(|(other, _)| *other != number) {
        let first = plan.servers().next();
        let ways = first.and_then(|link| Some((link.own.get(other)?, &link.host)));
        commands.extend(ways.into_iter().flat_map(|(end, device)| {
            let ways = switch.address.iter().zip(end.iter());
            ways.map(move |(to, via)| format!("route add {} via {via} dev {device}", alone(to)))
        }));
    }
    if setup == Setup::Whole {
        commands.extend(way_in_commands(plan));
    }
    commands
}

/// Packets that the switch program does not steer go to the first frontend.
pub(crate) fn way_in_commands(plan: &LabPlan) -> impl Iterator<Item = String> {
    let mut links = plan.links.iter();
    let frontend = links.find(|link| link.kind == HostKind::Frontend);
    frontend.into_iter().flat_map(|link| {
        let ways = plan.service.iter().zip(link.address.iter());
        ways.map(move |(service, frontend)| {
            let service = alone(service);
            let device = &link.host;
            format!("route replace {service} via {frontend} dev {device}")
        })
    })
}

fn host_commands(plan: &LabPlan, setup: Setup, link: &HostLink) -> Vec<String> {
    let mut commands = vec!["link set lo up".to_owned()];
    commands.extend(
        link.address
            .iter()
            .map(|own| add(&plan.on_link(own), "eth0")),
    );
    if setup == Setup::Bare && link.is_server() {
        commands.push("link set eth0 up".to_owned());
        let servers = plan.servers().filter(|other| other.host != link.host);
        let others = servers.map(|other| other.address);
        for to in std::iter::once(plan.control).chain(others) {
            let ways = to.iter().zip(link.gateway.iter());
            commands.extend(ways.map(|(to, via)| format!("route add {} via {via}", alone(to))));
        }
        return commands;
    }
    if plan.is_host_mode() {
        commands.extend(lan_commands(plan, link));
    } else if link.kind == HostKind::Frontend {
        commands.extend(plan.service.iter().map(|service| match service {
            IpAddr::V4(_) => add(&alone(service), "eth0"),
            // On eth0 it would be the source of packets to some hosts (RFC 6724, rule 8).
            IpAddr::V6(_) => add(&alone(service), "lo"),
        }));
    }
    commands.push("link set eth0 up".to_owned());
    commands.extend(link.gateway.iter().map(|via| match via {
        IpAddr::V4(_) => format!("route add 0.0.0.0/0 via {via}"),
        IpAddr::V6(_) => format!("route add ::/0 via {via}"),
    }));
    commands
}

/// Host mode: the only frontend has the service and control addresses on its interface. With two,
/// keepalived gives them to one. Every other node has the service address on lo. If clients are
/// spread over the frontends, these have it there as well, and keepalived moves the control
/// addresses alone.
fn lan_commands(plan: &LabPlan, link: &HostLink) -> Vec<String> {
    let is_first = |kind| plan.links.iter().find(|link| link.kind == kind) == Some(link);
    let service = plan.service.iter().map(alone);
    if !plan.is_spread() && plan.movers().is_empty() && is_first(HostKind::Frontend) {
        let all = service.chain(plan.control.iter().map(alone));
        return all.map(|address| add(&address, "eth0")).collect();
    }
    let nodes = service.filter(|_| link.is_server());
    nodes.map(|address| add(&address, "lo")).collect()
}

/// The command that adds an address. One of IPv6 is ready at once.
pub(crate) fn add(address: &str, device: &str) -> String {
    let when = if address.contains(':') { " nodad" } else { "" };
    format!("address add {address} dev {device}{when}")
}

/// Limits each link both ways: the host's interface and the other end of its cable.
fn shape(plan: &LabPlan, lock: &Lock) -> Result<(), LabError> {
    let far = far_namespace(plan);
    for link in &plan.links {
        let Some(rate) = link.rate else { continue };
        batch(
            "tc",
            Some(&far),
            &[shape_command(&host_port(plan, link), rate)],
            lock,
        )?;
        let host = plan.name.namespace(&link.host);
        batch("tc", Some(&host), &[shape_command("eth0", rate)], lock)?;
    }
    Ok(())
}

fn shape_command(interface: &str, rate: Rate) -> String {
    let burst_bytes = rate.bytes_in_ms(BURST_MS).max(MIN_BURST_BYTES);
    let limit_bytes = rate.bytes_in_ms(QUEUE_MS).max(MIN_QUEUE_BYTES);
    format!(
        "qdisc add dev {interface} root tbf rate {rate} burst {burst_bytes} limit {limit_bytes}"
    )
}

/// Counters of `interface` in `namespace` since it was made.
pub(crate) fn interface_bytes(
    name: &LabName,
    host: &str,
    interface: &str,
) -> Result<InterfaceBytes, LabError> {
    let mut command = Command::new("ip");
    command.args([
        "-n",
        &name.namespace(host),
        "-s",
        "-j",
        "link",
        "show",
        "dev",
        interface,
    ]);
    let output = run(&mut command)?;
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let bytes = |direction: &str| {
        links
            .pointer(&format!("/0/stats64/{direction}/bytes"))
            .and_then(|bytes| bytes.as_u64())
    };
    match (bytes("rx"), bytes("tx")) {
        (Some(rx), Some(tx)) => Ok(InterfaceBytes { rx, tx }),
        _ => Err(LabError::Tool {
            command: format!("ip -s -j link show dev {interface}"),
            outcome: "no counters in its answer".into(),
            output: String::from_utf8_lossy(&output.stdout).into_owned(),
        }),
    }
}

/// Whether a program sees the packets that `interface` of `switch` receives.
pub(crate) fn has_program(
    name: &LabName,
    switch: &str,
    interface: &str,
    mode: HookMode,
) -> Result<bool, LabError> {
    let namespace = name.namespace(switch);
    let mut command = Command::new(if mode == HookMode::Xdp { "ip" } else { "tc" });
    command.args(["-n", &namespace]);
    match mode {
        HookMode::Tc | HookMode::Host => {
            command.args(["filter", "show", "dev", interface, "ingress"]);
            Ok(!run(&mut command)?.stdout.is_empty())
        }
        HookMode::Xdp => {
            command.args(["-d", "link", "show", "dev", interface]);
            let output = run(&mut command)?.stdout;
            Ok(String::from_utf8_lossy(&output).contains("xdp"))
        }
    }
}
