//! The switch's tables and its leases, as a configuration and etcd name the nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_config::{Config, ConfigFile, ControlSecret, HookMode, MAX_SERVICE_ADDRESSES, seconds};
use prism_membership::Directory;
use prism_proto::control::ControlKey;
use prism_switch::{
    ALL_TENANTS, Agent, LeaseKey, Leases, MAX_TENANT_SERVICES, NodeConfig, Roles, SenderConfig,
    ServiceConfig, SwitchConfig,
};
use tokio::sync::watch;

use crate::interfaces::Interfaces;
use crate::role;
use crate::secrets::Secrets;

/// The tenant of the first service; the others follow.
const FIRST_TENANT: u32 = 1;
/// The tenant of hosts that are no nodes: the switch itself, and etcd.
const NO_TENANT: u32 = 0;
/// A service has addresses for HTTP and for HTTPS.
const _: () = assert!(2 * MAX_SERVICE_ADDRESSES <= MAX_TENANT_SERVICES);
/// The longest wait for the addresses of a host that starts. IPv6 checks a new one for some
/// seconds.
const ADDRESS_WAIT: Duration = Duration::from_secs(10);
/// The pause between two looks for them.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The addresses of each node.
pub(crate) fn addresses(directories: &[Directory]) -> impl Iterator<Item = Vec<IpAddr>> {
    let all = directories.iter().flat_map(Directory::iter);
    all.map(|(_, host)| host.address.iter().collect())
}

/// The tables of the switch. `directories` are those of the services, and `interfaces` lead to
/// nodes.
pub(crate) fn switch_config(
    config: &ConfigFile,
    settings: &prism_config::Switch,
    directories: &[Directory],
    secrets: &Secrets,
    interfaces: &Interfaces,
) -> anyhow::Result<SwitchConfig> {
    let node = |addr, tenant, roles| NodeConfig {
        addr,
        tenant,
        roles,
        link: None,
    };
    let mut nodes = BTreeMap::new();
    let mut services = Vec::new();
    let mut senders = Vec::new();
    let parts = (FIRST_TENANT..).zip(config.parts()).zip(directories);
    for (((tenant, part), directory), secrets) in parts.zip(secrets) {
        for (_, host) in directory.iter() {
            let frontend = host.is_frontend();
            let backend = host.is_backend();
            let tenant = if frontend && config.service.are_several() {
                ALL_TENANTS
            } else {
                tenant
            };
            // A node with an address of each family is two entries.
            let entries = host.address.iter();
            let roles = Roles { frontend, backend };
            nodes.extend(entries.map(|address| (address, node(address, tenant, roles))));
        }
        services.extend(services_of(&part, tenant, directory));
        let switch = part.switch.as_ref().unwrap_or(settings);
        senders.extend(senders_of(secrets, switch.key_id, tenant, directory));
    }
    // The switch drops a backend's TCP to unknown hosts. Leases need the control address, and
    // backends also need etcd and answer those who read their metrics.
    let other = |addr| node(addr, NO_TENANT, Roles::default());
    let of_pair = settings.hosts.iter().flat_map(|host| host.address.iter());
    // In host mode the hosts of a pair are frontends.
    let of_pair = of_pair.filter(|address| !nodes.contains_key(address));
    let own: Vec<_> = settings
        .control
        .hosts
        .iter()
        .chain(of_pair)
        .map(other)
        .collect();
    let scrapers = config.admin.scrapers.iter().copied();
    let others = etcd_addresses(config)
        .into_iter()
        .chain(scrapers)
        .map(other);
    Ok(SwitchConfig {
        pin_dir: settings.pin_dir.clone(),
        interfaces: settings.interfaces.clone(),
        xdp: settings.mode == HookMode::Xdp,
        control: settings.control.iter().collect(),
        control_interfaces: interfaces.clone().unwrap_or_default(),
        services,
        nodes: others.chain(nodes.into_values()).chain(own).collect(),
        senders,
        host_mode: (settings.mode == HookMode::Host).then(|| here(directories)),
        tunnel_mtu_bytes: settings.tunnel_mtu_bytes,
        max_flows: settings.max_flows,
        idle: seconds(settings.idle_timeout_s),
        ..SwitchConfig::default()
    })
}

/// The addresses of nodes that are this host's.
fn here(directories: &[Directory]) -> BTreeSet<IpAddr> {
    let all = addresses(directories).flatten();
    all.filter(|address| role::is_here(*address)).collect()
}

/// The nodes of the file. In host mode it waits until this host has all addresses of its node,
/// because the programs have them as constants.
///
/// # Errors
/// An address that this host still lacks after 10 s.
pub(crate) fn nodes_at_start(
    config: &ConfigFile,
    mode: HookMode,
) -> anyhow::Result<Vec<Directory>> {
    let directories = nodes(config, &[]);
    let until = Instant::now() + ADDRESS_WAIT;
    while mode == HookMode::Host
        && let Err(error) = check_addresses(&directories, role::is_here)
    {
        if Instant::now() >= until {
            return Err(error);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(directories)
}

fn check_addresses(
    directories: &[Directory],
    is_here: impl Fn(IpAddr) -> bool,
) -> anyhow::Result<()> {
    let mut is_node = false;
    for (name, host) in directories.iter().flat_map(Directory::iter) {
        let addresses = host.address.iter();
        let (here, absent): (Vec<_>, Vec<_>) = addresses.partition(|address| is_here(*address));
        is_node |= !here.is_empty();
        if let ([_, ..], [address, ..]) = (here.as_slice(), absent.as_slice()) {
            bail!(
                "this host is node {name}, and lacks its address {address}; give an interface \
                 that address, or correct node.address"
            );
        }
    }
    if !is_node {
        bail!(
            "in host mode the agent runs on hosts of nodes, and this host has no node's address; \
             give an interface that address, or correct node.address"
        );
    }
    Ok(())
}

/// The keys of a service's nodes. While a key that all share is valid, no node is held to its own
/// flows.
fn senders_of(
    secrets: &[ControlSecret],
    shared_id: u32,
    tenant: u32,
    directory: &Directory,
) -> Vec<SenderConfig> {
    let is_shared = |secret: &ControlSecret| matches!(secret, ControlSecret::Shared(_));
    let has_shared = secrets.iter().any(is_shared);
    let mut senders = Vec::new();
    for secret in secrets {
        let sender = |name: &str, node| {
            let key = secret.key_of(name, shared_id);
            SenderConfig {
                key_id: key.key_id,
                key: ControlKey::new(*key.key.bytes()),
                tenant,
                node,
            }
        };
        if is_shared(secret) {
            senders.push(sender("", Vec::new()));
            continue;
        }
        senders.extend(directory.iter().map(|(name, host)| {
            let node = host.address.iter().filter(|_| !has_shared);
            sender(name, node.collect())
        }));
    }
    senders
}

/// The addresses of the service of `part`, each with its frontends.
fn services_of(part: &Config, tenant: u32, directory: &Directory) -> Vec<ServiceConfig> {
    let https = part.tls_address().unwrap_or_default();
    let addresses = part.service.address.iter().chain(https.iter());
    let services = addresses.map(|address| {
        let frontends = directory.iter().filter(|(_, host)| host.is_frontend());
        let frontends = frontends.filter_map(|(_, host)| host.address.of(address.ip()));
        ServiceConfig {
            addr: address,
            tenant,
            frontends: frontends.collect(),
        }
    });
    services.collect()
}

/// The nodes of each service: those of the file, and those that etcd knows.
pub(crate) fn nodes(
    config: &ConfigFile,
    known: &[watch::Receiver<Arc<Directory>>],
) -> Vec<Directory> {
    let parts = config.parts().into_iter().enumerate();
    let all = parts.map(|(index, part)| match known.get(index) {
        Some(known) => Directory::of(&part).joined_by(&known.borrow()),
        None => Directory::of(&part),
    });
    all.collect()
}

/// Leases for the nodes of all services.
pub(crate) fn leases_of(tables: &SwitchConfig, directories: &[Directory]) -> Leases {
    Leases::new(addresses(directories), lease_keys(tables, directories))
}

/// The keys for leases: of one node, or of the nodes of one service.
pub(crate) fn lease_keys(tables: &SwitchConfig, directories: &[Directory]) -> Vec<LeaseKey> {
    let keys = tables.senders.iter().map(|sender| {
        let directory = (FIRST_TENANT..).zip(directories);
        let of_tenant = directory.filter(|(tenant, _)| *tenant == sender.tenant);
        let of_tenant = of_tenant.flat_map(|(_, directory)| directory.iter());
        let all = of_tenant.flat_map(|(_, host)| host.address.iter());
        let nodes = if sender.node.is_empty() {
            all.collect()
        } else {
            sender.node.iter().copied().collect()
        };
        LeaseKey {
            key_id: sender.key_id,
            key: sender.key.clone(),
            nodes,
        }
    });
    keys.collect()
}

/// Gives the switch these nodes and their keys. Returns its tables; a failure is logged.
pub(crate) fn update_tables(
    agent: &mut Agent<'_>,
    config: &ConfigFile,
    directories: &[Directory],
    secrets: &Secrets,
    interfaces: &Interfaces,
) -> Option<SwitchConfig> {
    let settings = config
        .switch
        .as_ref()
        .context("there is no section [switch]");
    let updated = settings
        .and_then(|settings| switch_config(config, settings, directories, secrets, interfaces))
        .and_then(|tables| {
            agent.update_tables(&tables)?;
            Ok(tables)
        });
    if let Err(error) = &updated {
        tracing::error!(
            error = format!("{error:#}"),
            "the switch's tables lack a change of the nodes; trying again"
        );
    }
    updated.ok()
}

/// The addresses of etcd's endpoints. Names that cannot be resolved are left out, with
/// a warning.
fn etcd_addresses(config: &ConfigFile) -> Vec<IpAddr> {
    let endpoints = config.cluster.etcd.iter().flat_map(|etcd| &etcd.endpoints);
    let resolved = endpoints.flat_map(|endpoint| {
        let found = (endpoint.host(), endpoint.port()).to_socket_addrs();
        found.unwrap_or_else(|error| {
            tracing::warn!(%endpoint, %error, "cannot resolve an endpoint of etcd; backends behind this switch do not reach it");
            Vec::new().into_iter()
        })
    });
    resolved
        .map(|address| address.ip().to_canonical())
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use prism_config::{HostAddrs, Node};

    use super::*;

    #[test]
    fn a_host_that_lacks_an_address_of_its_node_is_told_which() {
        let node = |name: &str, last: u8| Node {
            name: name.into(),
            address: HostAddrs {
                v4: Some([10, 0, 0, last].into()),
                v6: Some([0xfd77, 0, 0, 0, 0, 0, 0, last.into()].into()),
            },
            ..Node::default()
        };
        let config = Config {
            nodes: vec![node("be0", 1), node("be1", 2)],
            ..Config::default()
        };
        let directories = [Directory::of(&config)];
        let check = |here: &[&str]| {
            let here = here.iter().map(|address| address.parse().unwrap());
            let here: Vec<IpAddr> = here.collect();
            check_addresses(&directories, |address| here.contains(&address))
        };
        check(&["10.0.0.2", "fd77::2", "10.9.9.9"]).unwrap();
        for (here, fault) in [
            (
                &["10.0.0.2", "10.9.9.9"][..],
                "node be1, and lacks its address fd77::2",
            ),
            (&["fd77::1"][..], "node be0, and lacks its address 10.0.0.1"),
            (&["10.9.9.9"][..], "no node's address"),
        ] {
            let told = check(here).unwrap_err().to_string();
            assert!(told.contains(fault), "{told}");
        }
    }
}
