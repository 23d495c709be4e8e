//! The switch's tables and its leases, as a configuration and etcd name the nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_config::{Config, HookMode};
use prism_membership::Directory;
use prism_proto::control::ControlKey;
use prism_switch::{
    ALL_TENANTS, Agent, Leases, NodeConfig, Roles, SenderConfig, ServiceConfig, SwitchConfig,
};
use tokio::sync::watch;

/// The tenant of the first service; the others follow.
const FIRST_TENANT: u32 = 1;
/// The tenant of hosts that are no nodes: the switch itself, and etcd.
const NO_TENANT: u32 = 0;

/// The addresses of each node.
pub(super) fn addresses(directories: &[Directory]) -> impl Iterator<Item = Vec<IpAddr>> {
    let all = directories.iter().flat_map(Directory::iter);
    all.map(|(_, host)| host.address.iter().collect())
}

/// The tables of the switch. `directories` are those of the services.
pub(super) fn switch_config(
    config: &Config,
    settings: &prism_config::Switch,
    directories: &[Directory],
) -> anyhow::Result<SwitchConfig> {
    let node = |addr, tenant, roles| NodeConfig {
        addr,
        tenant,
        roles,
        link: None,
    };
    let (mut nodes, mut services, mut senders) = (BTreeMap::new(), Vec::new(), Vec::new());
    for ((tenant, part), directory) in (FIRST_TENANT..).zip(config.parts()).zip(directories) {
        for (_, host) in directory.iter() {
            let (frontend, backend) = (host.is_frontend(), host.is_backend());
            let tenant = match frontend && config.service.are_several() {
                true => ALL_TENANTS,
                false => tenant,
            };
            // A node with an address of each family is two entries.
            let entries = host.address.iter();
            let roles = Roles { frontend, backend };
            nodes.extend(entries.map(|address| (address, node(address, tenant, roles))));
        }
        services.extend(services_of(&part, tenant, directory));
        let switch = part.switch.as_ref().unwrap_or(settings);
        let key = switch.load_key().context("the control key")?;
        senders.push(SenderConfig {
            key_id: switch.key_id,
            key: ControlKey::new(*key.bytes()),
            tenant,
        });
    }
    // The switch drops a backend's TCP to unknown hosts. Leases need the control address, and
    // backends also need etcd and answer those who read their metrics.
    let other = |addr| node(addr, NO_TENANT, Roles::default());
    let of_pair = settings.hosts.iter().flat_map(|host| host.address.iter());
    let own = settings.control.hosts.iter().chain(of_pair).map(other);
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
        services,
        nodes: others.chain(nodes.into_values()).chain(own).collect(),
        senders,
        max_flows: settings.max_flows,
        idle: Duration::from_secs(settings.idle_timeout_s.into()),
        ..SwitchConfig::default()
    })
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
pub(super) fn nodes(config: &Config, known: &[watch::Receiver<Arc<Directory>>]) -> Vec<Directory> {
    let parts = config.parts().into_iter().enumerate();
    let all = parts.map(|(index, part)| match known.get(index) {
        Some(known) => Directory::of(&part).joined_by(&known.borrow()),
        None => Directory::of(&part),
    });
    all.collect()
}

/// Leases for the nodes of all services.
pub(super) fn leases_of(
    tables: &SwitchConfig,
    config: &Config,
    directories: &[Directory],
) -> Leases {
    let keys = tables.senders.iter();
    let keys = keys.map(|sender| (sender.key_id, sender.key.clone()));
    let leases = Leases::of_keys(addresses(directories), keys);
    limit_keys(&leases, config, directories);
    leases
}

/// Each key is for leases of the nodes of its service.
pub(super) fn limit_keys(leases: &Leases, config: &Config, directories: &[Directory]) {
    for (part, directory) in config.parts().iter().zip(directories) {
        if let Some(switch) = &part.switch {
            leases.limit_key(switch.key_id, addresses(std::slice::from_ref(directory)));
        }
    }
}

/// Gives the switch these nodes. Returns whether it has them; a failure is logged.
pub(super) fn update_tables(
    agent: &mut Agent<'_>,
    config: &Config,
    directories: &[Directory],
) -> bool {
    let settings = config
        .switch
        .as_ref()
        .context("there is no section [switch]");
    let updated = settings
        .and_then(|settings| switch_config(config, settings, directories))
        .and_then(|tables| Ok(agent.update_tables(&tables)?));
    if let Err(error) = &updated {
        tracing::error!(
            error = format!("{error:#}"),
            "the switch's tables lack a change of the nodes; trying again"
        );
    }
    updated.is_ok()
}

/// The addresses of etcd's endpoints. Names that cannot be resolved are left out, with
/// a warning.
fn etcd_addresses(config: &Config) -> Vec<IpAddr> {
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
