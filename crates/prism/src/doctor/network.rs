//! Findings about the network: settings that break a moved connection silently.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;

use super::finding::{Finding, Part, Subject, read};

const CONF: &str = "/proc/sys/net/ipv4/conf";
const INTERFACES: &str = "/sys/class/net";

pub(super) fn examine(part: &Part) -> Vec<Finding> {
    let mut findings = vec![rp_filter(part), bridge_filter(), conntrack()];
    if part.is_switch {
        findings.push(forwarding(part));
        findings.extend(missing_interfaces(part));
    }
    findings.push(mtu(part));
    findings
}

/// Findings about the node's address and a frontend's service address on this host.
pub(super) fn addresses(own: Ipv4Addr, service: Option<Ipv4Addr>) -> Vec<Finding> {
    let subject = Subject("addresses");
    let wanted = std::iter::once((own, "the node's address"))
        .chain(service.map(|service| (service, "the service address, which every frontend has")));
    wanted
        .map(|(address, what)| match source_towards(address) {
            Ok(source) if source == address => subject.good(format!("this host has {address}")),
            _ => subject.missing(
                format!("this host does not have {address}, {what}"),
                format!("ip address add {address}/32 dev INTERFACE"),
            ),
        })
        .collect()
}

/// The address from which this host would send to `address`: the same one if the host has it.
fn source_towards(address: Ipv4Addr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    // Sends nothing.
    socket.connect((address, 9))?;
    Ok(socket.local_addr()?.ip())
}

/// Names of the directories in `path`.
fn names(path: &str) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// The value 1 (strict) drops packets whose way back is another interface. The kernel uses
/// the larger one of `all` and the interface's own value.
fn rp_filter(part: &Part) -> Finding {
    let subject = Subject("rp_filter");
    let value = |name: &str| -> u32 {
        let text = read(Path::new(CONF).join(name).join("rp_filter"));
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let all = value("all");
    let is_named =
        |name: &str| part.interfaces.is_empty() || part.interfaces.iter().any(|n| n == name);
    let strict: Vec<String> = names(CONF)
        .into_iter()
        .filter(|name| !matches!(name.as_str(), "all" | "default" | "lo") && is_named(name))
        .filter(|name| all.max(value(name)) == 1)
        .collect();
    if strict.is_empty() {
        return subject.good("not strict on any interface");
    }
    let found = format!(
        "strict on {}; the kernel drops packets whose way back is another interface",
        strict.join(", ")
    );
    let settings: Vec<String> = strict
        .iter()
        .map(|name| format!("net.ipv4.conf.{name}.rp_filter=2"))
        .collect();
    let mend = format!(
        "sysctl -w net.ipv4.conf.all.rp_filter=0 {}",
        settings.join(" ")
    );
    subject.advice(found, mend)
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
    let bridges: Vec<String> = names(INTERFACES).into_iter().filter(is_bridge).collect();
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

fn conntrack() -> Finding {
    let subject = Subject("conntrack");
    let count = read("/proc/sys/net/netfilter/nf_conntrack_count");
    match count.as_deref().map(str::parse::<u64>) {
        None => subject.good("not loaded"),
        Some(Ok(0)) => subject.good("loaded, but tracks no connection"),
        Some(_) => subject.advice(
            "tracks connections; rules that drop `ct state invalid` cut moved connections",
            "exempt the service: nft add rule ip raw prerouting tcp dport PORT notrack, and \
             the same in output",
        ),
    }
}

fn forwarding(part: &Part) -> Finding {
    let subject = Subject("ip_forward");
    if read("/proc/sys/net/ipv4/ip_forward").as_deref() == Some("1") {
        return subject.good("on");
    }
    let found = "off; a switch then does not pass the packets that it does not steer";
    let mend = "sysctl -w net.ipv4.ip_forward=1";
    // Only the switch needs it.
    match part.is_guess {
        true => subject.advice(found, mend),
        false => subject.missing(found, mend),
    }
}

fn missing_interfaces(part: &Part) -> impl Iterator<Item = Finding> {
    let is_absent = |name: &&String| !Path::new(INTERFACES).join(name).exists();
    part.interfaces.iter().filter(is_absent).map(|name| {
        let found = format!("{name} does not exist");
        Subject("interfaces").missing(found, "correct switch.interfaces")
    })
}

/// The switch passes packets between its interfaces without splitting them.
fn mtu(part: &Part) -> Finding {
    let subject = Subject("MTU");
    let of = |name: &String| -> Option<u32> {
        let directory = Path::new(INTERFACES).join(name);
        let is_up = read(directory.join("operstate")).is_some_and(|state| state == "up");
        let mtu = read(directory.join("mtu"))?.parse().ok()?;
        (is_up && name != "lo").then_some(mtu)
    };
    let wanted = match part.interfaces.is_empty() {
        true => names(INTERFACES),
        false => part.interfaces.clone(),
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
