//! The hosts of a lab and their addresses. Pure.
//!
//! A lab's IPv4 addresses are one /24 in 10.64.0.0/10, and its IPv6 addresses one /48 in
//! fd64::/16. Its name chooses them, so that captures of two labs can be told apart. Both have
//! the same plan: 1 is the service address, and 2 the switch's control address. Each link has
//! four addresses: the switch has the first usable one, and the host the second.
//!
//! With a pair of switches, 3 and 4 are their own addresses, and each link has eight: the gateway
//! that moves, the host, and an own one of each switch.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use prism_config::{ControlAddrs, HostAddrs};
use serde::{Deserialize, Serialize};

use crate::family::{Families, Family};
use crate::mode::{Layout, Mode, agent_of};
use crate::name::LabName;
use crate::rate::Rate;

/// Port of the S3 service.
pub(crate) const SERVICE_PORT: u16 = 80;
/// The port of the switch for commands.
const CONTROL_PORT: u16 = 7300;

/// The hosts of a lab and their links.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LabPlan {
    pub(crate) name: LabName,
    pub(crate) family: Families,
    pub(crate) mode: Mode,
    pub(crate) layout: Layout,
    /// The addresses of the service.
    pub(crate) service: HostAddrs,
    /// The switch's addresses for commands.
    pub(crate) control: HostAddrs,
    /// The hosts of the switch: one, or two of which one is active. None in host mode.
    pub(crate) switches: Vec<SwitchHost>,
    pub(crate) links: Vec<HostLink>,
}

/// A host of the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SwitchHost {
    pub(crate) name: String,
    /// The addresses that stay at it. A single switch has its control addresses.
    pub(crate) address: HostAddrs,
}

/// The link of one host to the switch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostLink {
    pub(crate) host: String,
    pub(crate) kind: HostKind,
    /// The host's end: a /30, a /126 or both; in a lab with two switches a /29, a /125 or both.
    pub(crate) address: HostAddrs,
    /// The switch's end. In a pair it moves. In host mode it is a router's, if there is one.
    pub(crate) gateway: HostAddrs,
    /// The own ends of a pair, in the order of the switches.
    pub(crate) own: Vec<HostAddrs>,
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

impl HostLink {
    /// Whether it is a frontend's or a backend's.
    pub(crate) fn is_server(&self) -> bool {
        matches!(self.kind, HostKind::Frontend | HostKind::Backend)
    }
}

impl LabPlan {
    /// The addresses and port that clients connect to.
    pub(crate) fn services(&self) -> impl Iterator<Item = SocketAddr> {
        self.service.iter().map(|ip| (ip, SERVICE_PORT).into())
    }

    /// The addresses and port of the switch for commands.
    pub(crate) fn controls(&self) -> ControlAddrs {
        ControlAddrs {
            hosts: self.control,
            port: CONTROL_PORT,
        }
    }

    /// All hosts, the switches first.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = &str> {
        let switches = self.switches.iter().map(|switch| switch.name.as_str());
        switches.chain(self.links.iter().map(|link| link.host.as_str()))
    }

    /// Whether there is no switch. All hosts are on one segment then, unless it is routed.
    pub(crate) fn is_host_mode(&self) -> bool {
        self.mode == Mode::Host
    }

    /// Whether a router is between the frontends' segment and every other host.
    pub(crate) fn is_routed(&self) -> bool {
        self.layout != Layout::Segment
    }

    /// Whether all frontends accept clients at once.
    pub(crate) fn is_spread(&self) -> bool {
        self.layout == Layout::Spread
    }

    /// The hosts between which keepalived moves addresses: a pair of switches, or in host mode the
    /// first two frontends.
    pub(crate) fn movers(&self) -> Vec<&str> {
        let switches = self.switches.iter().map(|switch| switch.name.as_str());
        let frontends = self.frontends().map(|link| link.host.as_str());
        let hosts: Vec<&str> = if self.is_host_mode() {
            frontends.take(2).collect()
        } else {
            switches.collect()
        };
        Some(hosts)
            .filter(|hosts| hosts.len() == 2)
            .unwrap_or_default()
    }

    /// The processes of the agents on the nodes' hosts.
    pub(crate) fn agents(&self) -> impl Iterator<Item = String> {
        let nodes = self.servers().filter(|_| self.is_host_mode());
        nodes.map(|link| agent_of(&link.host))
    }

    /// Whether two hosts take turns as the switch.
    pub(crate) fn is_pair(&self) -> bool {
        self.switches.len() == 2
    }

    /// The place of `host` among the switches, if it is one.
    pub(crate) fn switch(&self, host: &str) -> Option<usize> {
        self.switches.iter().position(|switch| switch.name == host)
    }

    /// The addresses that a pair moves, each with its prefix and the interface that has it.
    pub(crate) fn moved(&self) -> impl Iterator<Item = (String, &str)> {
        let at = if self.is_host_mode() { "eth0" } else { "lo" };
        let has_service = self.is_host_mode() && !self.is_spread();
        let service = self.service.iter().filter(move |_| has_service);
        let control = service.chain(self.control.iter());
        let control = control.map(move |address| (alone(address), at));
        let links = self.links.iter().filter(|_| !self.is_host_mode());
        let gateways = links.flat_map(|link| {
            let gateways = link.gateway.iter();
            gateways.map(|gateway| (self.on_link(gateway), link.host.as_str()))
        });
        control.chain(gateways)
    }

    /// An address with the length of a link's prefix.
    pub(crate) fn on_link(&self, address: IpAddr) -> String {
        let is_one_segment = self.is_host_mode() && !self.is_routed();
        let length = match (address, self.is_pair()) {
            (IpAddr::V4(_), _) if is_one_segment => 24,
            (IpAddr::V6(_), _) if is_one_segment => 112,
            (IpAddr::V4(_), false) => 30,
            (IpAddr::V6(_), false) => 126,
            (IpAddr::V4(_), true) => 29,
            (IpAddr::V6(_), true) => 125,
        };
        format!("{address}/{length}")
    }

    pub(crate) fn frontends(&self) -> impl Iterator<Item = &HostLink> {
        let links = self.links.iter();
        links.filter(|link| link.kind == HostKind::Frontend)
    }

    /// Frontends and backends.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &HostLink> {
        self.links.iter().filter(|link| link.is_server())
    }

    /// Members of etcd.
    pub(crate) fn etcd(&self) -> impl Iterator<Item = &HostLink> {
        let links = self.links.iter();
        links.filter(|link| link.kind == HostKind::Etcd)
    }

    /// The own addresses of `host`. A single switch has its control addresses.
    pub(crate) fn addresses(&self, host: &str) -> Option<HostAddrs> {
        if let Some(switch) = self.switches.iter().find(|switch| switch.name == host) {
            return Some(switch.address);
        }
        self.link(host).map(|link| link.address)
    }

    pub(crate) fn link(&self, host: &str) -> Option<&HostLink> {
        self.links.iter().find(|link| link.host == host)
    }
}

/// The prefix of one address.
pub(crate) fn alone(address: IpAddr) -> String {
    match address {
        IpAddr::V4(_) => format!("{address}/32"),
        IpAddr::V6(_) => format!("{address}/128"),
    }
}

/// The first of `addresses`. A plan has one of each of its families.
pub(crate) fn first(addresses: &HostAddrs) -> IpAddr {
    addresses.first().unwrap_or(Ipv4Addr::UNSPECIFIED.into())
}

/// The URL of `service`, without the port that `scheme` implies.
pub(crate) fn url(scheme: &str, service: SocketAddr) -> String {
    let implied = if scheme == "https" { 443 } else { 80 };
    match service {
        _ if service.port() != implied => format!("{scheme}://{service}"),
        SocketAddr::V4(v4) => format!("{scheme}://{}", v4.ip()),
        SocketAddr::V6(v6) => format!("{scheme}://[{}]", v6.ip()),
    }
}

/// The addresses before a lab's first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Base {
    /// 10.(64..=127).(0..=255).0
    v4: u32,
    /// fd64:(32 bits)::
    v6: u128,
}

impl Base {
    pub(crate) fn of(name: &str) -> Self {
        // FNV-1a: stable between builds, which std's hasher need not be.
        let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
        });
        let folded = (hash >> 16) ^ (hash & 0xffff);
        Self {
            v4: u32::from_be_bytes([10, 64, 0, 0]) + ((folded & 0x3fff) << 8),
            v6: (0xfd64 << 112) + (u128::from(hash) << 80),
        }
    }

    /// The addresses of `families` with this number.
    pub(crate) fn at(self, number: u32, families: Families) -> HostAddrs {
        let of = |family| families.has(family);
        HostAddrs {
            v4: of(Family::V4).then(|| Ipv4Addr::from_bits(self.v4 + number)),
            v6: of(Family::V6).then(|| Ipv6Addr::from_bits(self.v6 + u128::from(number))),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use std::collections::BTreeSet;
    use std::path::PathBuf;

    use super::*;
    use crate::spec::{LabSpec, MAX_SERVERS, MAX_SERVERS_OF_PAIR};

    fn plan(name: &str, backends: usize) -> LabPlan {
        let mut spec = LabSpec::new(name.parse().unwrap(), PathBuf::new());
        spec.backends = backends;
        spec.family = Families::Dual;
        spec.plan()
    }

    /// The address as a number, without the bits of its lab.
    fn number(address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(v4) => u128::from(v4.to_bits() & 0xff),
            IpAddr::V6(v6) => v6.to_bits() & (u128::MAX >> 48),
        }
    }

    #[test]
    fn the_largest_lab_fits_its_addresses_and_both_families_have_the_same_numbers() {
        let plan = plan("full", MAX_SERVERS - 1);
        for family in Family::ALL {
            let of = |addresses: HostAddrs| {
                let mut all = addresses.iter();
                all.find(|address| Family::of(*address) == family).unwrap()
            };
            let ends = plan
                .links
                .iter()
                .flat_map(|link| [link.address, link.gateway]);
            let addresses: BTreeSet<_> = ends.map(of).collect();
            assert_eq!(addresses.len(), 2 * (MAX_SERVERS + 1));
            let numbers: BTreeSet<_> = addresses.iter().copied().map(number).collect();
            assert!(numbers.iter().all(|number| (5..255).contains(number)));
            assert_eq!(numbers.len(), addresses.len());
            assert_eq!((number(of(plan.service)), number(of(plan.control))), (1, 2));
        }
    }

    #[test]
    fn the_links_of_a_pair_have_eight_addresses() {
        let mut spec = LabSpec::new("pair".parse().unwrap(), PathBuf::new());
        spec.switches = 2;
        spec.backends = MAX_SERVERS_OF_PAIR - 1;
        spec.check().unwrap();
        let plan = spec.plan();
        let hosts: Vec<_> = plan.hosts().take(2).collect();
        assert_eq!(hosts, ["switch0", "switch1"]);
        assert_eq!(number(first(&plan.switches[1].address)), 4);
        for link in &plan.links {
            let ends = [link.gateway, link.address, link.own[0], link.own[1]];
            let numbers = ends.map(|end| number(first(&end)));
            assert!(numbers.iter().all(|number| (9..255).contains(number)));
            assert_eq!(numbers.map(|number| number & 7), [1, 2, 3, 4]);
        }
        spec.backends += 1;
        assert!(spec.check().is_err());
    }

    #[test]
    fn every_lab_is_in_its_range_and_most_differ() {
        let bases: BTreeSet<_> = (0..100).map(|n| Base::of(&format!("lab-{n}"))).collect();
        assert!(bases.len() > 95);
        for Base { v4, v6 } in bases {
            assert_eq!(v4 >> 22, u32::from_be_bytes([10, 64, 0, 0]) >> 22);
            assert_eq!((v6 >> 112, v6 << 48), (0xfd64, 0));
        }
    }

    #[test]
    fn both_ends_of_a_link_share_their_four_addresses() {
        for link in plan("x", 5).links {
            for (address, gateway) in link.address.iter().zip(link.gateway.iter()) {
                assert_eq!(number(address) & !3, number(gateway) & !3);
                assert_eq!((number(gateway) & 3, number(address) & 3), (1, 2));
            }
        }
    }

    #[test]
    fn a_host_has_addresses_of_the_lab_s_families_alone() {
        let mut spec = LabSpec::new("one".parse().unwrap(), PathBuf::new());
        for (family, count) in [(Families::V4, 1), (Families::V6, 1), (Families::Dual, 2)] {
            spec.family = family;
            for host in spec.plan().hosts() {
                let addresses = spec.addresses(host).unwrap();
                assert_eq!(addresses.iter().count(), count, "{host}");
                assert!(
                    addresses
                        .iter()
                        .all(|address| family.has(Family::of(address)))
                );
            }
        }
    }
}
