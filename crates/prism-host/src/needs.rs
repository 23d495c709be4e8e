//! The needs of a host of the cluster, of its kernel and its network: one list, by the
//! configuration and the host's role. `prism setup` applies it, and `prism doctor` checks it.
//!
//! Not here: features of the kernel, certificates, and limits, which only `prism doctor` has.

pub(crate) mod apply;
mod change;
mod check;
mod files;
#[cfg(test)]
mod host_tests;
mod live;
mod netfilter;
mod networkd;
mod record;
mod render;

use std::net::IpAddr;

use prism_config::{ConfigFile, HookMode, Node, ServiceAddrs, Switch};

pub(crate) use self::change::{HostChange, changes};
pub(crate) use self::check::{NeedOutcome, check};
pub(crate) use self::files::Root;
pub(crate) use self::live::interfaces;

/// One fact about a host that its role in the cluster needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The host has this address on an interface of its own. Only its operator can know which.
    OwnAddress(IpAddr),
    /// The frontend has the service address.
    Service(IpAddr),
    /// A kernel parameter, named by its path below `/proc/sys`.
    Sysctl { name: String, value: &'static str },
    /// No program is given a local port of connections at backends.
    ReservedPorts,
    /// Packets are taken also where the way back is another interface. All interfaces if none is
    /// named.
    LooseReversePath { interfaces: Vec<String> },
    /// Packets to clients from these addresses of the host go to the switch.
    WayOut { from: Vec<IpAddr>, via: IpAddr },
    /// Packets to the service that the switch does not steer go to a frontend.
    WayIn {
        service: IpAddr,
        frontends: Vec<IpAddr>,
    },
    /// conntrack ignores the service, which has these ports.
    Notrack { service: Vec<u16> },
}

impl Need {
    /// Whether Prism does not work without it. Otherwise it depends on the network around.
    pub(crate) fn is_necessary(&self) -> bool {
        !matches!(self, Self::LooseReversePath { .. })
    }
}

/// The needs of `node`'s host, or of the switch's.
pub(crate) fn needs(config: &ConfigFile, node: Option<&Node>) -> Vec<Need> {
    match (node, &config.switch) {
        (Some(node), Some(switch)) if switch.mode == HookMode::Host => in_host_mode(config, node),
        (None, Some(switch)) if switch.mode == HookMode::Host => Vec::new(),
        (Some(node), switch) => of_node(config, node, switch.as_ref()),
        (None, Some(switch)) => of_switch(config, switch),
        (None, None) => Vec::new(),
    }
}

fn of_node(config: &ConfigFile, node: &Node, switch: Option<&Switch>) -> Vec<Need> {
    let mut needs: Vec<Need> = node.address.iter().map(Need::OwnAddress).collect();
    let service = if node.is_frontend() {
        hosts_of_services(config)
    } else {
        Vec::new()
    };
    needs.extend(service.iter().copied().map(Need::Service));
    // Without a switch no connection moves.
    let Some(switch) = switch else { return needs };
    for own in node.address.iter() {
        needs.extend(way_out(node, switch, own, &service));
    }
    needs.push(Need::ReservedPorts);
    // The kernel has such a parameter for IPv4 only.
    if node.address.v4.is_some() {
        needs.push(Need::LooseReversePath {
            interfaces: Vec::new(),
        });
    }
    needs.push(notrack(config));
    needs
}

/// Every node has the service address. Only the host that has it on its interface may say so to the
/// others of the segment. IPv6 does that by itself.
fn in_host_mode(config: &ConfigFile, node: &Node) -> Vec<Need> {
    let service = hosts_of_services(config);
    let mut needs: Vec<Need> = node.address.iter().map(Need::OwnAddress).collect();
    needs.extend(service.iter().copied().map(Need::Service));
    if service.iter().any(IpAddr::is_ipv4) {
        let arp = [("arp_ignore", "1"), ("arp_announce", "2")];
        needs.extend(arp.map(|(name, value)| Need::Sysctl {
            name: format!("net/ipv4/conf/all/{name}"),
            value,
        }));
        needs.push(Need::LooseReversePath {
            interfaces: Vec::new(),
        });
    }
    needs.push(notrack(config));
    needs
}

/// The way of the family of the node's address `own`, unless the node is the switch itself.
fn way_out(node: &Node, switch: &Switch, own: IpAddr, service: &[IpAddr]) -> Option<Need> {
    let control = switch.control.hosts.of(own);
    let via = node
        .gateway
        .and_then(|gateway| gateway.of(own))
        .or(control)?;
    if control == Some(own) {
        return None;
    }
    let of_family = service
        .iter()
        .filter(|host| host.is_ipv4() == own.is_ipv4());
    Some(Need::WayOut {
        from: of_family.copied().chain([own]).collect(),
        via,
    })
}

fn of_switch(config: &ConfigFile, switch: &Switch) -> Vec<Need> {
    let service = hosts_of_services(config);
    let of_switch = switch.control.hosts.iter();
    let has = |is_v4: bool| {
        let mut all = service.iter().copied().chain(switch.control.hosts.iter());
        all.any(|host| host.is_ipv4() == is_v4)
    };
    let mut needs: Vec<Need> = match switch.hosts.is_empty() {
        true => of_switch.map(Need::OwnAddress).collect(),
        // It moves between the two hosts.
        false => Vec::new(),
    };
    if has(true) {
        needs.extend(router_of_ipv4(switch));
    }
    if has(false) {
        needs.push(Need::Sysctl {
            name: live::IPV6_FORWARD.into(),
            value: "1",
        });
    }
    needs.extend(ways_in(config, switch));
    if has(true) {
        let interfaces = switch.interfaces.clone();
        needs.push(Need::LooseReversePath { interfaces });
    }
    needs.push(notrack(config));
    needs
}

fn router_of_ipv4(switch: &Switch) -> Vec<Need> {
    let mut needs = vec![Need::Sysctl {
        name: live::IP_FORWARD.into(),
        value: "1",
    }];
    // A host that is told of a shorter way sends around the switch. The kernel asks `all` and
    // the interface, and one of them suffices to send redirects.
    let all = std::iter::once("all");
    let places = all.chain(switch.interfaces.iter().map(String::as_str));
    needs.extend(places.map(|place| Need::Sysctl {
        name: format!("net/ipv4/conf/{place}/send_redirects"),
        value: "0",
    }));
    needs
}

/// The way to each address of the service, by a frontend of its family.
fn ways_in(config: &ConfigFile, switch: &Switch) -> Vec<Need> {
    let ways = hosts_of_services(config).into_iter();
    let ways = ways.filter_map(|service| {
        let frontends = config.frontends();
        let frontends: Vec<IpAddr> = frontends
            .filter_map(|node| node.address.of(service))
            .collect();
        // A frontend on this host takes the packets itself.
        let is_here = |frontend: &IpAddr| switch.control.hosts.contains(*frontend);
        (!frontends.iter().any(is_here)).then_some(Need::WayIn { service, frontends })
    });
    ways.collect()
}

/// The addresses of all services, each once.
fn hosts_of_services(config: &ConfigFile) -> Vec<IpAddr> {
    let addresses = config
        .service
        .iter()
        .flat_map(|service| service.address.iter());
    addresses.collect::<ServiceAddrs>().hosts()
}

fn notrack(config: &ConfigFile) -> Need {
    let services = config.service.iter();
    let ports = services.flat_map(|service| {
        let https = service.tls.as_ref().map(|tls| tls.port);
        let plain = service.address.iter().map(|address| address.port());
        plain.chain(https)
    });
    let mut service: Vec<u16> = ports.collect();
    service.sort_unstable();
    service.dedup();
    Need::Notrack { service }
}
