//! The hosts of a lab and their addresses. Pure.
//!
//! A lab's addresses are one /24 in 10.64.0.0/10, chosen by its name, so that captures of two
//! labs can be told apart. `.1` is the service address, and `.2` the switch's control address.
//! Each link has four addresses: the switch has the first usable one, and the host the second.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::name::LabName;
use crate::rate::Rate;
use crate::spec::LabSpec;

/// Port of the S3 service.
const SERVICE_PORT: u16 = 80;
/// The port of the switch for commands.
const CONTROL_PORT: u16 = 7300;

/// The hosts of a lab and their links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: LabName,
    pub(crate) service: SocketAddrV4,
    pub(crate) control: SocketAddrV4,
    pub(crate) links: Vec<Link>,
}

/// The link of one host to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) host: String,
    pub(crate) kind: HostKind,
    /// The host's end, a /30.
    pub(crate) address: Ipv4Addr,
    /// The switch's end.
    pub(crate) gateway: Ipv4Addr,
    pub(crate) rate: Option<Rate>,
}

/// The role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostKind {
    Client,
    Frontend,
    Backend,
    /// A member of etcd.
    Etcd,
}

impl Link {
    /// Whether it is a frontend's or a backend's.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self.kind, HostKind::Frontend | HostKind::Backend)
    }
}

impl Plan {
    pub(crate) fn new(spec: &LabSpec) -> Self {
        let numbered = |prefix: &'static str, kind, count| {
            (0..count).map(move |index| (format!("{prefix}{index}"), kind, spec.link))
        };
        let etcd = (0..spec.etcd_hosts()).map(|index| {
            let host = match index {
                0 => "etcd".to_owned(),
                _ => format!("etcd{index}"),
            };
            (host, HostKind::Etcd, spec.link)
        });
        let client = ("client".to_owned(), HostKind::Client, spec.uplink);
        let hosts = std::iter::once(client)
            .chain(numbered("fe", HostKind::Frontend, spec.frontends))
            .chain(numbered("be", HostKind::Backend, spec.backends))
            .chain(etcd);
        let base = base(spec.name.as_str());
        let at = |offset| Ipv4Addr::from_bits(base + offset);
        let links = hosts.zip(1_u32..).map(|((host, kind, rate), number)| {
            let first = 4 * number;
            Link {
                host,
                kind,
                rate,
                gateway: at(first + 1),
                address: at(first + 2),
            }
        });
        Self {
            name: spec.name.clone(),
            service: SocketAddrV4::new(at(1), SERVICE_PORT),
            control: SocketAddrV4::new(at(2), CONTROL_PORT),
            links: links.collect(),
        }
    }

    /// All hosts, the switch among them.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        std::iter::once("switch").chain(self.links.iter().map(|link| link.host.as_str()))
    }

    /// Frontends and backends.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| link.is_server())
    }

    /// Members of etcd.
    pub(crate) fn etcd(&self) -> impl Iterator<Item = &Link> {
        let links = self.links.iter();
        links.filter(|link| link.kind == HostKind::Etcd)
    }

    /// The own address of `host`. That of the switch is its control address.
    pub(crate) fn address(&self, host: &str) -> Option<Ipv4Addr> {
        if host == "switch" {
            return Some(*self.control.ip());
        }
        self.link(host).map(|link| link.address)
    }

    pub(crate) fn link(&self, host: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.host == host)
    }
}

/// First address of the lab's /24: 10.(64..=127).(0..=255).0.
fn base(name: &str) -> u32 {
    // FNV-1a: stable between builds, which std's hasher need not be.
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    let folded = (hash >> 16) ^ (hash & 0xffff);
    u32::from_be_bytes([10, 64, 0, 0]) + ((folded & 0x3fff) << 8)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;
    use crate::spec::MAX_SERVERS;

    fn plan(name: &str, backends: usize) -> Plan {
        let mut spec = LabSpec::new(name.parse().unwrap(), PathBuf::new());
        spec.backends = backends;
        Plan::new(&spec)
    }

    #[test]
    fn the_largest_lab_fits_its_addresses() {
        let plan = plan("full", MAX_SERVERS - 1);
        let subnet = plan.service.ip().to_bits() & !0xff;
        let addresses: BTreeSet<_> = plan
            .links
            .iter()
            .flat_map(|link| [link.address, link.gateway])
            .collect();
        assert_eq!(addresses.len(), 2 * (MAX_SERVERS + 1));
        assert!(addresses.iter().all(|a| a.to_bits() & !0xff == subnet));
        assert!(!addresses.contains(plan.service.ip()) && !addresses.contains(plan.control.ip()));
    }

    #[test]
    fn every_lab_is_in_its_range_and_most_differ() {
        let bases: BTreeSet<_> = (0..100).map(|n| base(&format!("lab-{n}"))).collect();
        assert!(bases.len() > 95);
        assert!(
            bases
                .iter()
                .all(|b| b >> 22 == u32::from_be_bytes([10, 64, 0, 0]) >> 22)
        );
    }

    #[test]
    fn both_ends_of_a_link_share_a_slash_30() {
        for link in plan("x", 5).links {
            assert_eq!(link.address.to_bits() & !3, link.gateway.to_bits() & !3);
            assert!(![0, 3].contains(&(link.address.to_bits() & 3)));
        }
    }
}
