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

use std::net::Ipv4Addr;

use prism_config::{Config, Node, Switch};

pub(crate) use self::change::{Change, changes};
pub(crate) use self::check::{Outcome, check};
pub(crate) use self::files::Root;

/// One fact about a host that its role in the cluster needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The host has this address on an interface of its own. Only its operator can know which.
    OwnAddress(Ipv4Addr),
    /// The frontend has the service address.
    Service(Ipv4Addr),
    /// A kernel parameter, named by its path below `/proc/sys`.
    Sysctl { name: String, value: &'static str },
    /// No program is given a local port of connections at backends.
    ReservedPorts,
    /// Packets are taken also where the way back is another interface. All interfaces if none is
    /// named.
    LooseReversePath { interfaces: Vec<String> },
    /// Packets to clients from these addresses of the host go to the switch.
    WayOut { from: Vec<Ipv4Addr>, via: Ipv4Addr },
    /// Packets to the service that the switch does not steer go to a frontend.
    WayIn {
        service: Ipv4Addr,
        frontends: Vec<Ipv4Addr>,
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
pub(crate) fn needs(config: &Config, node: Option<&Node>) -> Vec<Need> {
    match (node, &config.switch) {
        (Some(node), switch) => of_node(config, node, switch.as_ref()),
        (None, Some(switch)) => of_switch(config, switch),
        (None, None) => Vec::new(),
    }
}

fn of_node(config: &Config, node: &Node, switch: Option<&Switch>) -> Vec<Need> {
    let service = *config.service.address.ip();
    let mut needs = vec![Need::OwnAddress(node.address)];
    if node.is_frontend() {
        needs.push(Need::Service(service));
    }
    // Without a switch no connection moves.
    let Some(switch) = switch else { return needs };
    let control = *switch.control.ip();
    if control != node.address {
        needs.push(Need::WayOut {
            from: node
                .is_frontend()
                .then_some(service)
                .into_iter()
                .chain([node.address])
                .collect(),
            via: node.gateway.unwrap_or(control),
        });
    }
    needs.extend([
        Need::ReservedPorts,
        Need::LooseReversePath {
            interfaces: Vec::new(),
        },
        notrack(config),
    ]);
    needs
}

fn of_switch(config: &Config, switch: &Switch) -> Vec<Need> {
    let control = *switch.control.ip();
    let mut needs = vec![
        Need::OwnAddress(control),
        Need::Sysctl {
            name: live::IP_FORWARD.into(),
            value: "1",
        },
    ];
    // A host that is told of a shorter way sends around the switch. The kernel asks `all` and
    // the interface, and one of them suffices to send redirects.
    let all = std::iter::once("all");
    let places = all.chain(switch.interfaces.iter().map(String::as_str));
    needs.extend(places.map(|place| Need::Sysctl {
        name: format!("net/ipv4/conf/{place}/send_redirects"),
        value: "0",
    }));
    let frontends: Vec<Ipv4Addr> = config.frontends().map(|node| node.address).collect();
    // A frontend on this host takes the packets itself.
    if !frontends.contains(&control) {
        needs.push(Need::WayIn {
            service: *config.service.address.ip(),
            frontends,
        });
    }
    let interfaces = switch.interfaces.clone();
    needs.extend([Need::LooseReversePath { interfaces }, notrack(config)]);
    needs
}

fn notrack(config: &Config) -> Need {
    let https = config.tls_address().map(|address| address.port());
    let mut service: Vec<u16> = std::iter::once(config.service.address.port())
        .chain(https)
        .collect();
    service.sort_unstable();
    service.dedup();
    Need::Notrack { service }
}
