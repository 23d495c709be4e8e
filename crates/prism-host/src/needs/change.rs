//! From needs to changes of a host, each of which can be made, seen and undone.

use std::net::IpAddr;
use std::path::PathBuf;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::files::Root;
use super::live::{self, IP_FORWARD, IPV6_FORWARD, RESERVED_PORTS};
use super::networkd::Links;
use super::{Need, render};

/// The table of the nodes' route to the switch. Other programs use smaller numbers.
const TABLE: u32 = 7300;
/// The kernel's number of the table `main`.
pub(super) const MAIN: u32 = 254;
/// The priorities of the rules: after those of operators, before the kernel's 32766.
const PRIORITY: u32 = 32_000;

/// One change of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum HostChange {
    /// A file of this host's.
    File { path: PathBuf, text: String },
    /// A kernel parameter, named by its path below `/proc/sys`.
    Sysctl { name: String, value: String },
    /// An address on `lo`.
    Address { address: IpAddr },
    /// A route to an address, or the default route.
    Route {
        to: Option<IpAddr>,
        via: IpAddr,
        table: u32,
    },
    /// A rule of routing for what has this source address.
    Rule {
        priority: u32,
        from: IpAddr,
        table: u32,
        /// Whether the table's default route does not count.
        no_default: bool,
    },
    /// The table of nftables, for these ports of the service.
    Notrack { service: Vec<u16> },
}

impl HostChange {
    /// The change as a command for a shell; a file has none.
    pub(crate) fn command(&self) -> Option<String> {
        render::command(self)
    }

    /// Whether both change the same thing, which one of them can replace. A file is removed
    /// before another text is written, so that the record always has the text of ours.
    pub(super) fn is_about_that_of(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Sysctl { name, .. }, Self::Sysctl { name: of, .. }) => name == of,
            (Self::Notrack { .. }, Self::Notrack { .. }) => true,
            _ => self == other,
        }
    }
}

/// The changes that satisfy `needs` on this host, in the order in which they are made.
pub(crate) fn changes(needs: &[Need], root: &Root) -> Result<Vec<HostChange>> {
    let live = of_kernel(needs, &live::sysctl(RESERVED_PORTS)?);
    let mut changes = render::files(&live, &Links::find(root, &live));
    changes.extend(live);
    Ok(changes)
}

/// The changes of the running kernel. `reserved_ports` is the present value of that parameter.
pub(super) fn of_kernel(needs: &[Need], reserved_ports: &str) -> Vec<HostChange> {
    let changes = needs.iter();
    let changes = changes.flat_map(|need| of_need(need, reserved_ports));
    changes.collect()
}

fn of_need(need: &Need, reserved_ports: &str) -> Vec<HostChange> {
    let sysctl = |name: &str, value: String| {
        let name = name.to_owned();
        vec![HostChange::Sysctl { name, value }]
    };
    match need {
        Need::OwnAddress(_) => Vec::new(),
        Need::Service(address) => vec![HostChange::Address { address: *address }],
        Need::Sysctl { name, value } => sysctl(name, (*value).to_owned()),
        Need::ReservedPorts => sysctl(RESERVED_PORTS, render::with_our_ports(reserved_ports)),
        // The kernel uses the larger one of `all` and the interface's own value.
        Need::LooseReversePath { .. } => sysctl("net/ipv4/conf/all/rp_filter", "2".into()),
        Need::WayOut { from, via } => way_out(from, *via),
        Need::WayIn { service, frontends } => {
            let first = frontends.first().map(|via| HostChange::Route {
                to: Some(*service),
                via: *via,
                table: MAIN,
            });
            first.into_iter().collect()
        }
        Need::Notrack { service } => vec![HostChange::Notrack {
            service: service.clone(),
        }],
    }
}

/// The host's default route stays, so that its operator can still reach it. Networks that the
/// host is on are reached directly.
fn way_out(from: &[IpAddr], via: IpAddr) -> Vec<HostChange> {
    let route = HostChange::Route {
        to: None,
        via,
        table: TABLE,
    };
    let rules = from.iter().flat_map(|from| {
        let rule = |priority, table, no_default| HostChange::Rule {
            priority,
            from: *from,
            table,
            no_default,
        };
        [rule(PRIORITY, MAIN, true), rule(PRIORITY + 1, TABLE, false)]
    });
    std::iter::once(route).chain(rules).collect()
}

/// Whether a change of this parameter changes others too.
pub(super) fn has_side_effects(name: &str) -> bool {
    [IP_FORWARD, IPV6_FORWARD].contains(&name)
}
