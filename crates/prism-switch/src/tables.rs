//! Writes services, nodes and senders of the configuration to maps that programs may be
//! reading. An entry is replaced as a whole. Entries that the configuration no longer has are
//! removed last.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use prism_sys::clock::monotonic_ns;
use zerocopy::{Immutable, IntoBytes, transmute};

use crate::config::{NodeConfig, SenderConfig, ServiceConfig, SwitchConfig};
use crate::layout::{address, from_bytes, ip_addr, nanos, node_roles};
use crate::skel::{SwitchMaps, types};

const PORT_WORDS: usize = size_of::<types::service_ports>() / 8;
/// The key of the only entry of an array.
const ZERO: [u8; 4] = [0; 4];

type Entry = (Vec<u8>, Vec<u8>);

/// Makes the maps agree with `config`.
pub(crate) fn sync(maps: &SwitchMaps<'_>, config: &SwitchConfig) -> libbpf_rs::Result<()> {
    let services = config.services.iter().flat_map(service_entries);
    let ports = service_ports(config);
    replace_nodes(&maps.nodes, config)?;
    // Programs look at the port's bit first, so a bit is cleared after its service is removed.
    add_ports(&maps.service_ports, &ports)?;
    replace(&maps.tenants, tenant_entries(config))?;
    replace(&maps.services, services)?;
    maps.service_ports.update(&ZERO, &ports, MapFlags::ANY)?;
    replace(&maps.control_interfaces, interfaces(config))?;
    replace(&maps.node_keys, node_keys(&config.senders))?;
    replace(&maps.senders, config.senders.iter().map(sender_entry))
}

/// The bits of `struct service_ports`.
fn service_ports(config: &SwitchConfig) -> Vec<u8> {
    let mut words = [0u64; PORT_WORDS];
    for service in &config.services {
        // In network byte order, as the program sees it in the packet.
        let port = service.addr.port().to_be();
        if let Some(word) = words.get_mut(usize::from(port >> 6)) {
            *word |= 1 << (port & 63);
        }
    }
    words.as_bytes().into()
}

fn add_ports(map: &impl MapCore, ports: &[u8]) -> libbpf_rs::Result<()> {
    let now = map.lookup(&ZERO, MapFlags::ANY)?.unwrap_or_default();
    let both: Vec<u8> = ports.iter().zip(now).map(|(a, b)| a | b).collect();
    map.update(&ZERO, &both, MapFlags::ANY)
}

fn replace(map: &impl MapCore, wanted: impl Iterator<Item = Entry>) -> libbpf_rs::Result<()> {
    let mut written = HashSet::new();
    for (key, value) in wanted {
        map.update(&key, &value, MapFlags::ANY)?;
        written.insert(key);
    }
    let stale: Vec<_> = map.keys().filter(|key| !written.contains(key)).collect();
    stale.iter().try_for_each(|key| map.delete(key))
}

/// Makes the map agree with the configuration. Nodes that it no longer has stay as former
/// ones, so that their flows go on, but get no new flow. They are removed only for want of room.
fn replace_nodes(map: &impl MapCore, config: &SwitchConfig) -> libbpf_rs::Result<()> {
    let nodes = config.nodes.iter();
    let wanted: Vec<Entry> = nodes
        .map(|node| node_entry(node, config.is_here(node)))
        .collect();
    let keys: HashSet<&[u8]> = wanted.iter().map(|(key, _)| key.as_slice()).collect();
    let room = (map.max_entries() as usize).saturating_sub(keys.len());
    let gone = map.keys().filter(|key| !keys.contains(key.as_slice()));
    for (i, key) in gone.collect::<Vec<_>>().iter().enumerate() {
        match map.lookup(key, MapFlags::ANY)? {
            Some(value) if i < room => {
                map.update(key, former(&value).as_bytes(), MapFlags::EXIST)?
            }
            _ => map.delete(key)?,
        }
    }
    let mut wanted = wanted.iter();
    wanted.try_for_each(|(key, value)| map.update(key, value, MapFlags::ANY))
}

/// The value of a former node.
fn former(value: &[u8]) -> types::node {
    types::node {
        roles: types::node_role::ROLE_FORMER.0,
        ..from_bytes(value)
    }
}

/// The services of each tenant.
fn tenant_entries(config: &SwitchConfig) -> impl Iterator<Item = Entry> {
    let mut tenants = BTreeMap::<u32, Vec<SocketAddr>>::new();
    for service in &config.services {
        tenants
            .entry(service.tenant)
            .or_default()
            .push(service.addr);
    }
    tenants.into_iter().map(|(tenant, services)| {
        let mut value = types::tenant {
            service_count: u32::try_from(services.len()).unwrap_or(0),
            ..Default::default()
        };
        for (slot, service) in value.services.iter_mut().zip(services) {
            *slot = service_key(service);
        }
        entry(tenant, value)
    })
}

/// The frontends of a service while they change.
#[derive(Debug)]
pub(crate) struct Lists {
    /// For new connections.
    pub(crate) now: Vec<IpAddr>,
    /// For older connections that no frontend has claimed.
    pub(crate) former: Vec<IpAddr>,
}

/// Changes the frontends of an existing service in one step. The former list counts for
/// `former_for`.
pub(crate) fn write_frontends(
    maps: &SwitchMaps<'_>,
    service: &ServiceConfig,
    lists: &Lists,
    former_for: Duration,
) -> libbpf_rs::Result<()> {
    let value = types::service {
        former_until_ns: monotonic_ns().saturating_add(nanos(former_for)),
        former: frontends_value(&lists.former),
        ..service_value(service, &lists.now)
    };
    let key = service_key(service.addr);
    (maps.services).update(key.as_bytes(), value.as_bytes(), MapFlags::EXIST)
}

/// The same services with only the frontends that the maps list now, so that the start of an
/// agent changes nothing. A service of which the maps list none has all.
pub(crate) fn with_present_frontends(
    maps: &SwitchMaps<'_>,
    services: &[ServiceConfig],
) -> libbpf_rs::Result<Vec<ServiceConfig>> {
    let present = |service: &ServiceConfig| {
        let key = service_key(service.addr);
        let value = maps.services.lookup(key.as_bytes(), MapFlags::ANY)?;
        let value: types::service = from_bytes(&value.unwrap_or_default());
        let listed = value.now.list.iter().take(value.now.count as usize);
        let listed: Vec<IpAddr> = listed.map(|ip| address(*ip)).collect();
        let mut service = service.clone();
        if service.frontends.iter().any(|ip| listed.contains(ip)) {
            service.frontends.retain(|ip| listed.contains(ip));
        }
        Ok(service)
    };
    services.iter().map(present).collect()
}

fn frontends_value(frontends: &[IpAddr]) -> types::frontends {
    let mut value = types::frontends {
        count: u32::try_from(frontends.len()).unwrap_or(0),
        ..Default::default()
    };
    for (slot, ip) in value.list.iter_mut().zip(frontends) {
        *slot = ip_addr(*ip);
    }
    value
}

fn service_value(service: &ServiceConfig, frontends: &[IpAddr]) -> types::service {
    types::service {
        tenant: service.tenant,
        now: frontends_value(frontends),
        ..Default::default()
    }
}

/// The entry of the service, and the mark of its address (for fragments).
fn service_entries(service: &ServiceConfig) -> [Entry; 2] {
    let mark = SocketAddr::new(service.addr.ip(), 0);
    let value = service_value(service, &service.frontends);
    [
        entry(service_key(service.addr), value),
        entry(service_key(mark), types::service::default()),
    ]
}

fn service_key(addr: SocketAddr) -> types::service_key {
    types::service_key {
        addr: ip_addr(addr.ip()),
        port: addr.port().to_be(),
        ..Default::default()
    }
}

fn node_entry(node: &NodeConfig, is_here: bool) -> Entry {
    let mut value = types::node {
        tenant: node.tenant,
        roles: node_roles(node.roles.frontend, node.roles.backend, is_here),
        ..Default::default()
    };
    if let Some(link) = node.link {
        value.ifindex = link.ifindex;
        value.mtu_bytes = link.mtu_bytes;
        value.node_mac = transmute!(link.node_mac);
        value.own_mac = transmute!(link.own_mac);
    }
    entry(ip_addr(node.addr), value)
}

/// The program reads the key as two little-endian words, in its own byte order.
fn sender_entry(sender: &SenderConfig) -> Entry {
    let key = u128::from_le_bytes(*sender.key.expose_secret());
    let mut value = types::sender {
        key: [key as u64, (key >> 64) as u64],
        tenant: sender.tenant,
        ..Default::default()
    };
    let [v4, v6] = &mut value.addrs;
    for node in &sender.node {
        let slot = if node.is_ipv6() { &mut *v6 } else { &mut *v4 };
        *slot = ip_addr(*node);
    }
    entry(sender.key_id, value)
}

/// The keys of each node, by its addresses.
fn node_keys(senders: &[SenderConfig]) -> impl Iterator<Item = Entry> {
    let mut all = BTreeMap::<(IpAddr, u32), Vec<u32>>::new();
    for sender in senders {
        for node in &sender.node {
            all.entry((*node, sender.tenant))
                .or_default()
                .push(sender.key_id);
        }
    }
    all.into_iter().map(|((node, tenant), keys)| {
        let id = types::node_id {
            addr: ip_addr(node),
            tenant,
            ..Default::default()
        };
        let mut value = types::node_keys::default();
        for (slot, key_id) in value.key_id.iter_mut().zip(keys) {
            *slot = key_id;
        }
        entry(id, value)
    })
}

/// The interfaces that lead to nodes. If there are any, an entry 0 behind them says that they are
/// known.
fn interfaces(config: &SwitchConfig) -> impl Iterator<Item = Entry> {
    let known = config.control_interfaces.iter().copied();
    let mark = known.clone().next().map(|_| 0);
    let all = known.chain(mark);
    all.map(|index| entry(index, 0u32))
}

fn entry(key: impl IntoBytes + Immutable, value: impl IntoBytes + Immutable) -> Entry {
    (key.as_bytes().into(), value.as_bytes().into())
}
