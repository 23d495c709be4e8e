//! Checks of the addresses: each on its own, and the families of different hosts together.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::addresses::{HostAddrs, family};
use crate::model::{Config, ConfigFile, Node};
use crate::problem::Problems;
use crate::switch::Switch;

/// Most hosts of switches: terms are odd or even.
const MAX_SWITCH_HOSTS: usize = 2;

impl Config {
    pub(crate) fn check_service_address(&self, found: &mut Problems) {
        let field = "service.address";
        let addresses = &self.service.address;
        if addresses.is_empty() {
            let what = "the address and port of clients, as in \"10.0.0.1:80\"";
            return found.missing(field, what);
        }
        let mut seen = BTreeSet::new();
        for address in addresses.iter() {
            found.host(field, address.ip());
            found.port(field, address.port());
            let port = self.peers.port;
            let fault = format!("has the port of the node protocol, {port}");
            let fix = "change one of service.address and peers.port";
            found.check(address.port() != port, field, fault, fix);
            let fault = format!("{address} is listed twice");
            found.check(seen.insert(address), field, fault, "remove one");
        }
        // The switch forwards a new connection to a frontend's own address.
        let is_whole = self.switch.is_some() && self.cluster.etcd.is_none();
        if is_whole && self.frontends().next().is_some() {
            self.check_frontends_reach(found);
        }
    }

    fn check_frontends_reach(&self, found: &mut Problems) {
        let mut families = BTreeSet::new();
        for host in self.service.address.hosts() {
            let is_reached = self
                .frontends()
                .any(|node| node.address.is_empty() || node.address.of(host).is_some());
            let family = family(host);
            if families.insert(family) {
                let fault = format!("no frontend has an {family} address, but {host} is one");
                let fix = "give the frontends an address of that family too";
                found.check(is_reached, "service.address", fault, fix);
            }
        }
    }

    pub(crate) fn check_control(&self, switch: &Switch, found: &mut Problems) {
        let field = "switch.control";
        let control = switch.control;
        if control.hosts.is_empty() {
            let what = "the switch's address and port, as in \"10.0.0.2:7300\"";
            return found.missing(field, what);
        }
        found.port(field, control.port);
        for host in control.hosts.iter() {
            found.host(field, host);
            let fix = "give the switch an address of its own";
            let is_own = !self.is_service_host(host);
            found.check(is_own, field, "is the service address", fix);
        }
    }

    pub(crate) fn check_switch_hosts(&self, switch: &Switch, found: &mut Problems) {
        let is_bounded = switch.hosts.len() <= MAX_SWITCH_HOSTS;
        let fault = format!("there are more than {MAX_SWITCH_HOSTS}");
        let fix = "name the two hosts of a pair, or none for a single switch";
        found.check(is_bounded, "switch.hosts", fault, fix);
        let mut names = BTreeSet::new();
        let mut addresses = BTreeSet::new();
        for (index, host) in switch.hosts.iter().enumerate() {
            let field = |leaf: &str| format!("switch.hosts[{index}].{leaf}");
            let leaf = field("name");
            found.name(&leaf, &host.name);
            let fault = format!("{:?} is the other host's name", host.name);
            let fix = "give each host a name of its own";
            found.check(names.insert(&host.name), &leaf, fault, fix);
            let leaf = field("address");
            if host.address.is_empty() {
                found.missing(&leaf, "the host's own address, as in \"10.0.0.3\"");
            }
            for address in host.address.iter() {
                found.host(&leaf, address);
                let fix = "name the address that stays at this host";
                let moves = switch.control.hosts.contains(address);
                let fault = "is an address of switch.control, which moves between the hosts";
                found.check(!moves, &leaf, fault, fix);
                let is_own = !self.is_service_host(address);
                found.check(is_own, &leaf, "is the service address", fix);
                let fault = format!("{address} is the other host's address");
                found.check(addresses.insert(address), &leaf, fault, fix);
            }
        }
        self.check_gateways_move(&addresses, found);
    }

    /// A node behind an address of one host would lose its way when the other takes over.
    fn check_gateways_move(&self, of_one_host: &BTreeSet<IpAddr>, found: &mut Problems) {
        for (index, node) in self.nodes.iter().enumerate() {
            let gateways = node.gateway.into_iter().flat_map(|all| all.iter());
            for gateway in gateways.filter(|gateway| of_one_host.contains(gateway)) {
                let fault = format!("{gateway} is the address of one switch host alone");
                let fix = "name the address that moves between the hosts";
                found.check(false, &format!("node[{index}].gateway"), fault, fix);
            }
        }
    }

    /// Checks of host mode, where one of the frontends has the control address beside its own.
    pub(crate) fn check_host_mode(&self, switch: &Switch, found: &mut Problems) {
        let field = "switch.control";
        let control = switch.control.hosts;
        for host in control.iter() {
            let node = self.nodes.iter().find(|node| node.address.contains(host));
            let name = node.map_or("", |node| node.name.as_str());
            let fault = format!("{host} is the address of node {name:?}");
            let fix = "give the frontend a further address for it";
            found.check(node.is_none(), field, fault, fix);
        }
        if self.frontends().nth(1).is_none() {
            return;
        }
        // Hosts that are in no pair make the same terms.
        let is_pair = switch.hosts.len() >= MAX_SWITCH_HOSTS;
        let fault = "does not name two hosts, but there are several frontends";
        let fix = "name the two frontends that may have the address of switch.control";
        found.check(is_pair, "switch.hosts", fault, fix);
        // Frontends send the arbiter what is not theirs, in a tunnel of the packet's family.
        let hosts = self.service.address.hosts().into_iter();
        let services = hosts.filter(|_| switch.tunnel_mtu_bytes > 0);
        let families: BTreeSet<_> = services
            .filter(|service| control.of(*service).is_none())
            .map(family)
            .collect();
        for family in families {
            let fault = format!("has no {family} address, but a service has one");
            let fix = "give it one too: frontends send such packets of moved connections there";
            found.check(false, field, fault, fix);
        }
    }

    pub(crate) fn check_node_address(
        &self,
        node: &Node,
        field: &dyn Fn(&str) -> String,
        found: &mut Problems,
    ) {
        let leaf = field("address");
        let own = node.address;
        if own.is_empty() {
            found.missing(&leaf, "the host's own address, as in \"10.0.0.11\"");
        }
        for address in own.iter() {
            found.host(&leaf, address);
            let is_own = !self.is_service_host(address);
            let fix = "name the host's own address; the service address is shared";
            found.check(is_own, &leaf, "is the service address", fix);
        }
        self.check_common_family(node, &leaf, found);
        let gateway = node.gateway.unwrap_or_default();
        for address in gateway.iter() {
            let leaf = field("gateway");
            found.host(&leaf, address);
            let fix = "name the switch's address on the node's network";
            let fault = "is the node's own address";
            found.check(!own.contains(address), &leaf, fault, fix);
            let fault = format!("the node has no {} address", family(address));
            let fix = "name a gateway of a family of node.address";
            let has_family = own.is_empty() || own.of(address).is_some();
            found.check(has_family, &leaf, fault, fix);
        }
    }

    /// Hosts talk to each other in a family that both have.
    fn check_common_family(&self, node: &Node, leaf: &str, found: &mut Problems) {
        let own = node.address;
        let is_apart = |other: &HostAddrs| {
            !own.is_empty() && !other.is_empty() && own.towards(other).is_none()
        };
        let fix = "give both an address of one family";
        if let Some(switch) = &self.switch {
            let control = switch.control;
            let fault = format!("{own} cannot reach switch.control, {control}");
            found.check(!is_apart(&control.hosts), leaf, fault, fix);
        }
        let mut before = self
            .nodes
            .iter()
            .take_while(|other| other.name != node.name);
        if let Some(other) = before.find(|other| is_apart(&other.address)) {
            let fault = format!("{own} cannot reach {}, {}", other.name, other.address);
            found.check(false, leaf, fault, fix);
        }
    }

    fn is_service_host(&self, host: IpAddr) -> bool {
        let mut addresses = self.service.address.iter();
        addresses.any(|address| address.ip() == host)
    }
}

impl ConfigFile {
    /// The families of the service that `node` cannot serve: it has no address of them.
    /// Requests of such clients are relayed to it.
    pub fn families_missing_at<'c>(&'c self, node: &'c Node) -> Vec<&'static str> {
        let services = self.service.iter().filter(|service| service.has_node(node));
        let hosts = services.flat_map(|service| service.address.hosts());
        let missing = hosts.filter(|host| node.address.of(*host).is_none());
        missing
            .map(family)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .collect()
    }
}
