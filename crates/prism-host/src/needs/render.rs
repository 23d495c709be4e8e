//! The files of a host, as text.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;
use std::path::PathBuf;

use prism_handoff::switch::LOCAL_PORTS;

use super::change::{HostChange, MAIN};
use super::networkd::Links;

/// The kernel parameters, for each boot.
const SYSCTL_FILE: &str = "/etc/sysctl.d/60-prism.conf";
/// The rules of nftables.
pub(super) const NOTRACK_FILE: &str = "/etc/prism/notrack.nft";
const NOTRACK: &str = include_str!("notrack.nft");

/// The files that belong to the changes `live` of the running kernel.
pub(super) fn files(live: &[HostChange], links: &Links) -> Vec<HostChange> {
    let notrack = live.iter().find_map(|change| match change {
        HostChange::Notrack { service } => Some((NOTRACK_FILE.into(), notrack(service))),
        _ => None,
    });
    let all = sysctl(live)
        .map(|text| (SYSCTL_FILE.into(), text))
        .into_iter()
        .chain(notrack)
        .chain(networkd(live, links));
    let files = all.map(|(path, text): (PathBuf, _)| HostChange::File { path, text });
    files.collect()
}

fn sysctl(live: &[HostChange]) -> Option<String> {
    let lines = live.iter().filter_map(|change| match change {
        HostChange::Sysctl { name, value } => Some(format!("{} = {value}\n", sysctl_name(name))),
        _ => None,
    });
    let lines: String = lines.collect();
    let head = "# Kernel parameters of this host of a Prism cluster. `prism setup` has written \
                this file.\n";
    (!lines.is_empty()).then(|| format!("{head}{lines}"))
}

/// A parameter as sysctl.d(5) spells it. An interface's name may have dots, and then slashes
/// stay.
pub(super) fn sysctl_name(name: &str) -> String {
    if name.contains('.') {
        name.to_owned()
    } else {
        name.replace('/', ".")
    }
}

/// The rules of nftables for these ports of the service.
pub(super) fn notrack(service: &[u16]) -> String {
    let ports: Vec<String> = service.iter().map(u16::to_string).collect();
    NOTRACK
        .replace("@SERVICE@", &ports.join(", "))
        .replace("@BACKEND@", &our_ports())
}

/// The local ports of connections at backends, as a range.
pub(super) fn our_ports() -> String {
    format!("{}-{}", LOCAL_PORTS.start, LOCAL_PORTS.end - 1)
}

/// A value of `ip_local_reserved_ports` that has our ports besides those that it has, as the
/// kernel writes it: in order, and ranges that touch are one.
pub(super) fn with_our_ports(value: &str) -> String {
    let ours = (LOCAL_PORTS.start, LOCAL_PORTS.end - 1);
    let mut all: Vec<(u16, u16)> = ranges(value).chain([ours]).collect();
    all.sort_unstable();
    let mut joined: Vec<(u16, u16)> = Vec::new();
    for (first, last) in all {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    let texts = joined.iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    texts.collect::<Vec<_>>().join(",")
}

/// Whether a value of `ip_local_reserved_ports` has all of our ports.
pub(super) fn has_our_ports(value: &str) -> bool {
    ranges(value).any(|(first, last)| first <= LOCAL_PORTS.start && LOCAL_PORTS.end - 1 <= last)
}

fn ranges(value: &str) -> impl Iterator<Item = (u16, u16)> {
    value.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some((first.trim().parse().ok()?, last.trim().parse().ok()?))
    })
}

/// Additions to the files of systemd-networkd. It removes addresses, routes and rules that it
/// does not know from the links that it manages.
fn networkd(live: &[HostChange], links: &Links) -> BTreeMap<PathBuf, String> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut add = |path: Option<&PathBuf>, section: String| {
        let Some(path) = path else { return };
        let head = "# `prism setup` has written this file.\n";
        let text = files.entry(path.clone()).or_insert_with(|| head.to_owned());
        // Writing to a String cannot fail.
        let _ = write!(text, "\n{section}");
    };
    let mut uplink = None;
    for change in live {
        match change {
            HostChange::Address { address } => {
                add(
                    links.lo(),
                    format!("[Address]\nAddress={}\n", alone(*address)),
                );
            }
            HostChange::Route { to, via, table } => {
                uplink = links.towards(*via);
                let to = to.map(|to| format!("Destination={}\n", alone(to)));
                let to = to.unwrap_or_default();
                add(
                    uplink,
                    format!("[Route]\n{to}Gateway={via}\nTable={table}\n"),
                );
            }
            HostChange::Rule {
                priority,
                from,
                table,
                no_default,
            } => {
                let without = if *no_default {
                    "SuppressPrefixLength=0\n"
                } else {
                    ""
                };
                let from = alone(*from);
                let rule = format!("Priority={priority}\nFrom={from}\nTable={table}\n");
                add(uplink, format!("[RoutingPolicyRule]\n{rule}{without}"));
            }
            HostChange::File { .. } | HostChange::Sysctl { .. } | HostChange::Notrack { .. } => {}
        }
    }
    files
}

/// The arguments of `ip` that add the change, if it is one of addresses, routes and rules.
/// `ip` removes it by the same words with `del` in the place of `add`.
pub(super) fn ip_arguments(change: &HostChange) -> Option<Vec<String>> {
    let line = match change {
        HostChange::Address { address } => format!("address add {} dev lo", alone(*address)),
        HostChange::Route { to, via, table } => {
            let to = to.map_or_else(|| "default".to_owned(), alone);
            format!("{}route add {to} via {via} table {table}", option(*via))
        }
        HostChange::Rule {
            priority,
            from,
            table,
            no_default,
        } => {
            let without = if *no_default {
                " suppress_prefixlength 0"
            } else {
                ""
            };
            format!(
                "{}rule add priority {priority} from {from} lookup {table}{without}",
                option(*from)
            )
        }
        HostChange::File { .. } | HostChange::Sysctl { .. } | HostChange::Notrack { .. } => {
            return None;
        }
    };
    let line = line.replace(&format!(" table {MAIN}"), "");
    Some(line.split(' ').map(str::to_owned).collect())
}

/// An address as a network without others.
fn alone(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("{v4}/32"),
        IpAddr::V6(v6) => format!("{v6}/128"),
    }
}

/// The option of `ip` for the routes and rules of IPv6.
fn option(of: IpAddr) -> &'static str {
    if of.is_ipv6() { "-6 " } else { "" }
}

/// See [`Change::command`].
pub(super) fn command(change: &HostChange) -> Option<String> {
    match change {
        HostChange::File { .. } => None,
        HostChange::Sysctl { name, value } => {
            Some(format!("sysctl -w {}={value}", sysctl_name(name)))
        }
        HostChange::Notrack { .. } => Some(format!("nft -f {NOTRACK_FILE}")),
        _ => ip_arguments(change).map(|words| format!("ip {}", words.join(" "))),
    }
}
