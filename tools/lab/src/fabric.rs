//! The cables of a lab. With two switches, the segment of each host is a bridge on a host of its
//! own, the fabric:
//!
//! ```text
//!   be0: eth0 ── be0-h ┐  fabric  ┌ be0-0 ── be0 :switch0
//!                      └─── be0 ──┴ be0-1 ── be0 :switch1
//! ```
//!
//! In host mode there is one bridge, `lan`, for all hosts. If the lab is routed, it is for the
//! frontends, and the fabric is a router between it and the cable of every other host:
//!
//! ```text
//!   client: eth0 ── client-h ┐ fabric ┌ lan ── fe0-h ── eth0 :fe0
//!      be0: eth0 ──── be0-h ─┘        └ be1-h ───────── eth0 :be1
//! ```

use crate::error::LabError;
use crate::name::FABRIC;
use crate::network::{add, way_in_commands};
use crate::plan::{HostKind, HostLink, LabPlan, alone};
use crate::state::Lock;
use crate::tool::batch;

/// The only bridge of host mode.
const LAN: &str = "lan";

/// The commands that lay all cables.
pub(crate) fn cable_commands(plan: &LabPlan) -> Vec<String> {
    let namespace = |host: &str| plan.name.namespace(host);
    let far = namespace(far_host(plan));
    let mut commands = Vec::new();
    for link in &plan.links {
        let host = namespace(&link.host);
        let port = host_port(plan, link);
        commands.push(format!(
            "link add eth0 netns {host} type veth peer name {port} netns {far}"
        ));
        for (number, switch) in plan.switches.iter().enumerate().filter(|_| plan.is_pair()) {
            let name = &link.host;
            let switch = namespace(&switch.name);
            let port = switch_port(link, number);
            commands.push(format!(
                "link add {name} netns {switch} type veth peer name {port} netns {far}"
            ));
        }
    }
    commands
}

/// The commands that make the bridges.
pub(crate) fn bridge_commands(plan: &LabPlan) -> Vec<String> {
    if plan.is_routed() {
        return router_commands(plan);
    }
    if plan.is_host_mode() {
        let begin = bridge(LAN).into_iter();
        let ports = plan.links.iter().map(|link| host_port(plan, link));
        return begin.chain(ports.map(|port| join(&port, LAN))).collect();
    }
    let of_link = plan.links.iter().flat_map(|link| {
        let bridge = &link.host;
        let begin = self::bridge(bridge);
        let switches = (0..plan.switches.len()).map(|number| switch_port(link, number));
        let ports = std::iter::once(host_port(plan, link)).chain(switches);
        let joined = ports.map(move |port| join(&port, bridge));
        begin.into_iter().chain(joined)
    });
    of_link.collect()
}

/// The router has an end of each link, and knows that the service and the arbiter are on `lan`.
fn router_commands(plan: &LabPlan) -> Vec<String> {
    let mut commands = vec!["link set lo up".to_owned()];
    commands.extend(bridge(LAN));
    for link in &plan.links {
        let port = host_port(plan, link);
        let device = match link.kind {
            HostKind::Frontend => LAN,
            _ => &port,
        };
        commands.push(match link.kind {
            HostKind::Frontend => join(&port, LAN),
            _ => format!("link set {port} up"),
        });
        let ends = link.gateway.iter();
        commands.extend(ends.map(|end| add(&plan.on_link(end), device)));
    }
    let way = |address| format!("route add {} dev {LAN}", alone(address));
    commands.extend(plan.control.iter().map(way));
    if plan.is_spread() {
        commands.extend(spread_commands(plan, |_| true))
    } else {
        commands.extend(plan.service.iter().map(way))
    }
    commands
}

/// The router sends each flow to one of these frontends, by its addresses and ports.
pub(crate) fn spread_commands(plan: &LabPlan, over: impl Fn(&HostLink) -> bool) -> Vec<String> {
    let ways = plan.service.iter().map(|service| {
        let frontends = plan.frontends().filter(|link| over(link));
        let hops = frontends.filter_map(|link| link.address.of(service));
        let hops = hops.map(|via| format!(" nexthop via {via} dev {LAN}"));
        let hops: String = hops.collect();
        format!("route replace {}{hops}", alone(service))
    });
    ways.collect()
}

fn bridge(name: &str) -> [String; 2] {
    [
        format!("link add {name} type bridge mcast_snooping 0"),
        format!("link set {name} up"),
    ]
}

fn join(port: &str, bridge: &str) -> String {
    format!("link set {port} master {bridge} up")
}

/// The host at the other end of each host's cable.
fn far_host(plan: &LabPlan) -> &str {
    if has_fabric(plan) { FABRIC } else { "switch" }
}

/// The interface at the other end of the cable of a link's host.
pub(crate) fn host_port(plan: &LabPlan, link: &HostLink) -> String {
    if has_fabric(plan) {
        format!("{}-h", link.host)
    } else {
        link.host.clone()
    }
}

/// Whether the cables lead to bridges.
pub(crate) fn has_fabric(plan: &LabPlan) -> bool {
    plan.is_pair() || plan.is_host_mode()
}

fn switch_port(link: &HostLink, number: usize) -> String {
    format!("{}-{number}", link.host)
}

/// The namespace where a host's links are shaped and cut, at the other ends of the cables.
pub(crate) fn far_namespace(plan: &LabPlan) -> String {
    plan.name.namespace(far_host(plan))
}

/// Cuts all links of `host`, or repairs them.
pub(crate) fn set_links(plan: &LabPlan, host: &str, is_up: bool) -> Result<(), LabError> {
    let ports: Vec<String> = match (plan.switch(host), plan.is_pair()) {
        (Some(number), true) => {
            let links = plan.links.iter();
            links.map(|link| switch_port(link, number)).collect()
        }
        (Some(_), false) => plan.links.iter().map(|link| link.host.clone()).collect(),
        (None, _) => plan
            .link(host)
            .map(|link| host_port(plan, link))
            .into_iter()
            .collect(),
    };
    let state = if is_up { "up" } else { "down" };
    let set = ports.iter().map(|port| format!("link set {port} {state}"));
    let mut commands: Vec<String> = set.collect();
    if is_up && !has_fabric(plan) {
        // The kernel has removed the routes of the switch's own interfaces.
        commands.extend(way_in_commands(plan));
    }
    batch("ip", Some(&far_namespace(plan)), &commands, &Lock::take()?)
}
