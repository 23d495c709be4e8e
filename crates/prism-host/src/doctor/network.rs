//! Findings about links and bridges, which `prism setup` leaves to the host's operator.

use std::collections::BTreeMap;
use std::path::Path;

use super::finding::{Finding, HostPart, Subject, read};
use crate::needs::interfaces;

/// The settings of each interface of this network namespace.
const SETTINGS: &str = "/proc/sys/net/ipv4/conf";
const INTERFACES: &str = "/sys/class/net";

pub(super) fn examine(part: &HostPart) -> Vec<Finding> {
    let mut findings = vec![bridge_filter(), mtu(part)];
    findings.extend(missing_interfaces(part));
    findings
}

/// conntrack sees bridged packets that pass through iptables.
fn bridge_filter() -> Finding {
    let subject = Subject("bridge-nf");
    let setting = "/proc/sys/net/bridge/bridge-nf-call-iptables";
    if read(setting).is_none_or(|text| text == "0") {
        return subject.good("bridged packets do not pass through iptables");
    }
    let mend = "sysctl -w net.bridge.bridge-nf-call-iptables=0";
    let is_bridge = |name: &String| Path::new(INTERFACES).join(name).join("bridge").exists();
    let bridges: Vec<String> = interfaces().into_iter().filter(is_bridge).collect();
    if bridges.is_empty() {
        return subject.good("on, but this host has no bridge");
    }
    let found = format!(
        "bridged packets (of {}) pass through iptables and conntrack, which drop the packets \
         of a moved connection as invalid",
        bridges.join(", ")
    );
    subject.advice(found, mend)
}

fn missing_interfaces(part: &HostPart) -> impl Iterator<Item = Finding> {
    let is_absent = |name: &&String| !Path::new(SETTINGS).join(name).exists();
    part.interfaces.iter().filter(is_absent).map(|name| {
        let found = format!("{name} does not exist");
        Subject("interfaces").missing(found, "correct switch.interfaces")
    })
}

/// The switch passes packets between its interfaces without splitting them.
fn mtu(part: &HostPart) -> Finding {
    let subject = Subject("MTU");
    let of = |name: &String| -> Option<u32> {
        let directory = Path::new(INTERFACES).join(name);
        let is_up = read(directory.join("operstate")).is_some_and(|state| state == "up");
        let mtu = read(directory.join("mtu"))?.parse().ok()?;
        (is_up && name != "lo").then_some(mtu)
    };
    let wanted = if part.interfaces.is_empty() {
        interfaces()
    } else {
        part.interfaces.clone()
    };
    let mut by_mtu: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for name in wanted {
        if let Some(mtu) = of(&name) {
            by_mtu.entry(mtu).or_default().push(name);
        }
    }
    match by_mtu.len() {
        0 => subject.unknown("no interface is up", ""),
        1 => subject.good("the same on all interfaces"),
        _ => {
            let each = by_mtu.iter();
            let each = each.map(|(mtu, names)| format!("{mtu} on {}", names.join(" ")));
            let list: Vec<String> = each.collect();
            let found = format!(
                "differs ({}); segments that fit one backend's link may not fit another's",
                list.join(", ")
            );
            let mend = "ip link set dev INTERFACE mtu VALUE, with the same value on all interfaces";
            subject.advice(found, mend)
        }
    }
}
