//! Writes services, nodes and senders of the configuration to maps that programs may be
//! reading. An entry is replaced as a whole. Entries that the configuration no longer has are
//! removed last.

use std::collections::{BTreeMap, HashSet};
use std::mem::{offset_of, size_of};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use libbpf_rs::{MapCore, MapFlags};
use prism_proto::wire::ip_bytes;
use prism_sys::clock::monotonic_ns;

use crate::config::{MAX_FRONTENDS, NodeConfig, SenderConfig, ServiceConfig, SwitchConfig};
use crate::layout::{Block, array_at, ip_at, nanos, node_roles};
use crate::skel::{SwitchMaps, types};

const SERVICE_KEY_BYTES: usize = size_of::<types::service_key>();
const SERVICE_BYTES: usize = size_of::<types::service>();
const FRONTENDS_BYTES: usize = size_of::<types::frontends>();
const ADDR_BYTES: usize = size_of::<types::ip_addr>();
const TENANT_BYTES: usize = size_of::<types::tenant>();
const NODE_BYTES: usize = size_of::<types::node>();
const SENDER_BYTES: usize = size_of::<types::sender>();
const NODE_ID_BYTES: usize = size_of::<types::node_id>();
const NODE_KEYS_BYTES: usize = size_of::<types::node_keys>();

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
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
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
            Some(value) if i < room => map.update(key, &former(value), MapFlags::EXIST)?,
            _ => map.delete(key)?,
        }
    }
    let mut wanted = wanted.iter();
    wanted.try_for_each(|(key, value)| map.update(key, value, MapFlags::ANY))
}

/// The value of a former node.
fn former(mut value: Vec<u8>) -> Vec<u8> {
    let at = offset_of!(types::node, roles);
    let roles = types::node_role::ROLE_FORMER.0.to_ne_bytes();
    if let Some(slot) = value.get_mut(at..at + roles.len()) {
        slot.copy_from_slice(&roles);
    }
    value
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
        let count = u32::try_from(services.len()).unwrap_or(0);
        let at = offset_of!(types::tenant, service_count);
        let mut value = Block::<TENANT_BYTES>::new().put_u32(at, count);
        for (i, service) in services.into_iter().enumerate() {
            let at = offset_of!(types::tenant, services) + i * SERVICE_KEY_BYTES;
            value = value.put(at, &service_key(service));
        }
        (tenant.to_ne_bytes().into(), value.bytes().into())
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
    let until_ns = monotonic_ns().saturating_add(nanos(former_for));
    let value = service_value(service, &lists.now)
        .put_u64(offset_of!(types::service, former_until_ns), until_ns)
        .put(
            offset_of!(types::service, former),
            &frontends_value(&lists.former),
        );
    let key = service_key(service.addr);
    maps.services.update(&key, &value.bytes(), MapFlags::EXIST)
}

/// The same services with only the frontends that the maps list now, so that the start of an
/// agent changes nothing. A service of which the maps list none has all.
pub(crate) fn with_present_frontends(
    maps: &SwitchMaps<'_>,
    services: &[ServiceConfig],
) -> libbpf_rs::Result<Vec<ServiceConfig>> {
    let present = |service: &ServiceConfig| {
        let value = maps
            .services
            .lookup(&service_key(service.addr), MapFlags::ANY)?;
        let listed = read_frontends(&value.unwrap_or_default());
        let mut service = service.clone();
        if service.frontends.iter().any(|ip| listed.contains(ip)) {
            service.frontends.retain(|ip| listed.contains(ip));
        }
        Ok(service)
    };
    services.iter().map(present).collect()
}

fn read_frontends(service: &[u8]) -> Vec<IpAddr> {
    let at = offset_of!(types::service, now);
    let count = u32::from_ne_bytes(array_at(service, at + offset_of!(types::frontends, count)));
    let list = at + offset_of!(types::frontends, list);
    (0..MAX_FRONTENDS.min(count as usize))
        .map(|i| ip_at(service, list + i * ADDR_BYTES))
        .collect()
}

fn frontends_value(frontends: &[IpAddr]) -> [u8; FRONTENDS_BYTES] {
    let count = u32::try_from(frontends.len()).unwrap_or(0);
    let at = offset_of!(types::frontends, count);
    let mut value = Block::new().put_u32(at, count);
    for (i, ip) in frontends.iter().enumerate() {
        let at = offset_of!(types::frontends, list) + i * ADDR_BYTES;
        value = value.put_ip(at, *ip);
    }
    value.bytes()
}

fn service_value(service: &ServiceConfig, frontends: &[IpAddr]) -> Block<SERVICE_BYTES> {
    Block::new()
        .put_u32(offset_of!(types::service, tenant), service.tenant)
        .put(offset_of!(types::service, now), &frontends_value(frontends))
}

/// The entry of the service, and the mark of its address (for fragments).
fn service_entries(service: &ServiceConfig) -> [Entry; 2] {
    let mark = SocketAddr::new(service.addr.ip(), 0);
    let value = service_value(service, &service.frontends);
    [
        (service_key(service.addr), value.bytes().into()),
        (service_key(mark), vec![0; SERVICE_BYTES]),
    ]
}

fn service_key(addr: SocketAddr) -> Vec<u8> {
    Block::<SERVICE_KEY_BYTES>::new()
        .put_ip(offset_of!(types::service_key, addr), addr.ip())
        .put_port(offset_of!(types::service_key, port), addr.port())
        .bytes()
        .into()
}

fn node_entry(node: &NodeConfig, is_here: bool) -> Entry {
    let roles = node_roles(node.roles.frontend, node.roles.backend, is_here);
    let mut value = Block::<NODE_BYTES>::new()
        .put_u32(offset_of!(types::node, tenant), node.tenant)
        .put_u32(offset_of!(types::node, roles), roles);
    if let Some(link) = node.link {
        value = value
            .put_u32(offset_of!(types::node, ifindex), link.ifindex)
            .put_u32(offset_of!(types::node, mtu_bytes), link.mtu_bytes)
            .put(offset_of!(types::node, node_mac), &link.node_mac)
            .put(offset_of!(types::node, own_mac), &link.own_mac);
    }
    (ip_bytes(node.addr).into(), value.bytes().into())
}

/// The program reads the key as two little-endian words, in its own byte order.
fn sender_entry(sender: &SenderConfig) -> Entry {
    let key = u128::from_le_bytes(*sender.key.expose_secret());
    let low = key as u64;
    let high = (key >> 64) as u64;
    let at = offset_of!(types::sender, key);
    let value = Block::<SENDER_BYTES>::new()
        .put_u64(at, low)
        .put_u64(at + 8, high)
        .put_u32(offset_of!(types::sender, tenant), sender.tenant);
    let value = sender.node.iter().fold(value, |value, node| {
        let family = usize::from(node.is_ipv6());
        value.put_ip(
            offset_of!(types::sender, addrs) + family * ADDR_BYTES,
            *node,
        )
    });
    (sender.key_id.to_ne_bytes().into(), value.bytes().into())
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
        let id = Block::<NODE_ID_BYTES>::new()
            .put_ip(offset_of!(types::node_id, addr), node)
            .put_u32(offset_of!(types::node_id, tenant), tenant);
        let value = Block::<NODE_KEYS_BYTES>::new();
        let value = (0..).zip(keys).fold(value, |value, (i, key_id)| {
            value.put_u32(offset_of!(types::node_keys, key_id) + i * 4, key_id)
        });
        (id.bytes().into(), value.bytes().into())
    })
}

/// The interfaces that lead to nodes. If there are any, an entry 0 behind them says that they are
/// known.
fn interfaces(config: &SwitchConfig) -> impl Iterator<Item = Entry> {
    let known = config.control_interfaces.iter().copied();
    let mark = known.clone().next().map(|_| 0);
    let all = known.chain(mark);
    all.map(|index| (index.to_ne_bytes().into(), vec![0; 4]))
}
