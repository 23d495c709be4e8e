//! The files of a lab: configuration, keys, certificates, credentials.

use std::fmt::Write;
use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use prism_config::{
    ConfigFile, Credential, Durability, Etcd, HookMode, KernelTls, Node, Role, Switch, SwitchHost,
    with_name,
};

use crate::error::LabError;
use crate::family::Family;
use crate::name::LabName;
use crate::plan::{HostKind, HostLink, LabPlan, first, url};
use crate::rate::Rate;
use crate::state::{create_private_dir, write_private};
use crate::tool::{in_namespace, run};

/// Ports of etcd.
pub(crate) const ETCD_PORT: u16 = 2379;
pub(crate) const ETCD_PEER_PORT: u16 = 2380;
/// The port of each node's metrics.
pub(crate) const METRICS_PORT: u16 = 9464;
/// The port of the same pages of the agent of the switch.
pub(crate) const SWITCH_METRICS_PORT: u16 = 9465;
/// The longest IP packet of a veth interface.
const MTU_BYTES: u32 = 1_500;
/// The speed of a link without a limit: more than processors can send.
const UNSHAPED_MBIT_S: u32 = 1_000_000;

/// The configuration of lab `name`.
pub(crate) fn config_path(name: &LabName) -> PathBuf {
    name.state_dir().join("prism.toml")
}

/// The configuration of the nodes of lab `name`, where it differs.
pub(crate) fn nodes_config_path(name: &LabName) -> PathBuf {
    name.state_dir().join("nodes.toml")
}

/// The configuration of a switch. Each host of a pair, and each agent on a node's host, pins in a
/// directory of its own, because all share this machine's.
pub(crate) fn switch_config_path(name: &LabName, switch: &str) -> PathBuf {
    match switch {
        "switch" => config_path(name),
        of_pair => name.state_dir().join(format!("{of_pair}.toml")),
    }
}

/// The configuration of nodes that join lab `name` later.
pub(crate) fn joining_config_path(name: &LabName) -> PathBuf {
    name.state_dir().join("joining.toml")
}

/// The file of the output of the process of `host`.
pub(crate) fn log_path(name: &LabName, host: &str) -> PathBuf {
    name.state_dir().join("log").join(format!("{host}.log"))
}

/// New credentials from the kernel's random numbers.
pub(crate) fn new_credential() -> Result<Credential, LabError> {
    Ok(Credential {
        access_key: format!("PRISM{}", random_hex(8)?.to_ascii_uppercase()),
        secret_key: random_hex(20)?,
        admin: Some(true),
        buckets: None,
    })
}

/// Whole megabits; a slower link counts as one.
fn mbit_s(rate: Rate) -> u32 {
    u32::try_from(rate.bits_per_s() / 1_000_000)
        .unwrap_or(u32::MAX)
        .max(1)
}

/// The configuration by the plan, before the caller's changes.
pub(crate) fn config(plan: &LabPlan, store_dir: &Path) -> ConfigFile {
    let directory = plan.name.state_dir();
    let mut config = ConfigFile::default();
    config.cluster.name = plan.name.directory_name();
    config.service.first_mut().address = plan.services().collect();
    config.switch = Some(Switch {
        control: plan.controls(),
        key_file: directory.join("switch.key"),
        hosts: pair(plan),
        pin_dir: plan.name.directory_name(),
        interfaces: if plan.is_host_mode() {
            ["lo", "eth0"].map(str::to_owned).into()
        } else {
            plan.links.iter().map(|link| link.host.clone()).collect()
        },
        mode: if plan.is_host_mode() {
            HookMode::Host
        } else {
            HookMode::default()
        },
        tunnel_mtu_bytes: if plan.is_routed() { MTU_BYTES } else { 0 },
        ..Switch::default()
    });
    config.nodes = plan
        .servers()
        .map(|link| Node {
            name: link.host.clone(),
            address: link.address,
            gateway: (!plan.is_host_mode()).then_some(link.gateway),
            roles: match link.kind {
                HostKind::Backend => vec![Role::Backend],
                HostKind::Client | HostKind::Frontend | HostKind::Etcd => vec![Role::Frontend],
            },
            store: store_dir.join(&link.host),
            upstream: None,
            // All hosts share this machine's cores.
            workers: 1,
            durability: Durability::default(),
            kernel_tls: KernelTls::default(),
            link_mbit_s: link.rate.map_or(UNSHAPED_MBIT_S, mbit_s),
        })
        .collect();
    if plan.etcd().next().is_some() {
        config.cluster.etcd = Some(Etcd {
            endpoints: plan
                .etcd()
                .flat_map(|link| endpoint(link, ETCD_PORT).try_into())
                .collect(),
            ..Etcd::default()
        });
    }
    config.peers.ca_file = directory.join("pki/ca.crt");
    config.peers.cert_dir = directory.join("pki");
    config.s3.credentials_file = directory.join("credentials.toml");
    config.admin.socket_dir = directory.join("admin");
    let any: IpAddr = if plan.family.has(Family::V4) {
        Ipv4Addr::UNSPECIFIED.into()
    } else {
        Ipv6Addr::UNSPECIFIED.into()
    };
    config.admin.listen = Some((any, METRICS_PORT).into());
    // The switches' hosts may read all metrics.
    config.admin.switch_listen = Some((any, SWITCH_METRICS_PORT).into());
    let ends = plan.servers();
    let ends = ends.flat_map(|link| std::iter::once(&link.gateway).chain(&link.own));
    config.admin.scrapers = ends.flat_map(|end| end.iter()).collect();
    config.limits.drain_timeout_s = 1;
    config.limits.connections = 10_000;
    config
}

/// The hosts of a pair of switches, or of two frontends in host mode.
fn pair(plan: &LabPlan) -> Vec<SwitchHost> {
    let hosts = plan.movers().into_iter();
    hosts
        .map(|host| SwitchHost {
            name: host.to_owned(),
            address: plan.addresses(host).unwrap_or_default(),
        })
        .collect()
}

/// Writes all files that the processes read.
pub(crate) fn write(
    plan: &LabPlan,
    config: &ConfigFile,
    credential: &Credential,
    prism: Option<&Path>,
    store_dir: &Path,
) -> Result<(), LabError> {
    let directory = plan.name.state_dir();
    for name in ["admin", "log", "pki"] {
        create_private_dir(&directory.join(name))?;
    }
    for link in plan.servers().filter(|link| link.kind == HostKind::Backend) {
        create_private_dir(&store_dir.join(&link.host))?;
    }
    write_config(plan, config)?;
    let credentials = format!(
        "[[credential]]\naccess_key = \"{}\"\nsecret_key = \"{}\"\nadmin = true\n",
        credential.access_key, credential.secret_key
    );
    write_private(&directory.join("credentials.toml"), credentials.as_bytes())?;
    if let Some(prism) = prism {
        let names: Vec<&str> = plan.servers().map(|link| link.host.as_str()).collect();
        // It needs no network, but in a namespace of the lab a sweep finds it.
        let mut command = in_namespace(&plan.name.namespace_path("client"), prism);
        command
            .args(["pki", "init", "--dir"])
            .arg(directory.join("pki"));
        run(command.args(["--nodes", &names.join(",")]))?;
    }
    Ok(())
}

/// Writes the secret of the switch, and the key of each node; or one key that all share.
pub(crate) fn write_keys(
    plan: &LabPlan,
    config: &ConfigFile,
    is_shared: bool,
) -> Result<(), LabError> {
    let Some(switch) = &config.switch else {
        return Ok(());
    };
    let failed = |error: &dyn std::fmt::Display| LabError::Config(error.to_string());
    let secret = if is_shared {
        random_hex(16)? + "\n"
    } else {
        format!("secret {}\n", random_hex(32)?)
    };
    write_private(&switch.key_file, secret.as_bytes())?;
    for part in config.parts() {
        let Some(switch) = &part.switch else { continue };
        let secrets = switch.load_secrets().map_err(|error| failed(&error))?;
        let newest = secrets.first();
        // A node that joins later is not in the file.
        let is_of_service = |host: &str| config.node(host).is_none() || part.node(host).is_some();
        for link in plan.servers().filter(|link| is_of_service(&link.host)) {
            let key = newest.map(|secret| secret.key_of(&link.host, switch.key_id));
            if let Some(key) = key.filter(|key| key.is_own) {
                let path = with_name(&switch.key_file, &link.host);
                write_private(&path, key.file(&link.host).as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Writes the common configuration of all processes.
pub(crate) fn write_config(plan: &LabPlan, config: &ConfigFile) -> Result<(), LabError> {
    let name = &plan.name;
    write_private(&config_path(name), checked_toml(config)?.as_bytes())?;
    let of_pair = plan.switches.iter().filter(|_| plan.is_pair());
    for switch in of_pair
        .map(|switch| switch.name.clone())
        .chain(plan.agents())
    {
        let mut config = config.clone();
        if let Some(settings) = &mut config.switch {
            settings.pin_dir = name.pin_dir(&switch);
        }
        let path = switch_config_path(name, &switch);
        write_private(&path, checked_toml(&config)?.as_bytes())?;
    }
    Ok(())
}

/// Writes the configuration that the nodes read instead of the common one.
pub(crate) fn write_nodes_config(name: &LabName, config: &ConfigFile) -> Result<(), LabError> {
    write_private(&nodes_config_path(name), checked_toml(config)?.as_bytes())
}

/// Writes the configuration of nodes that join later.
pub(crate) fn write_joining_config(name: &LabName, config: &ConfigFile) -> Result<(), LabError> {
    write_private(&joining_config_path(name), checked_toml(config)?.as_bytes())
}

/// The configuration as text. Checks that a program will accept it.
fn checked_toml(config: &ConfigFile) -> Result<String, LabError> {
    let text =
        toml::to_string_pretty(config).map_err(|error| LabError::Config(error.to_string()))?;
    // The previous release does not know this field, and 0 is its default.
    let text = text.replace("tunnel_mtu_bytes = 0\n", "");
    ConfigFile::from_toml(&text).map_err(|error| LabError::Config(error.to_string()))?;
    Ok(text)
}

/// The URL of a port of a member of etcd.
pub(crate) fn endpoint(link: &HostLink, port: u16) -> String {
    url("http", (first(&link.address), port).into())
}

/// The last `lines` lines of the log of `host`.
pub(crate) fn log_tail(name: &LabName, host: &str, lines: usize) -> String {
    let Ok(bytes) = std::fs::read(log_path(name, host)) else {
        return "(no output)".into();
    };
    let text = String::from_utf8_lossy(&bytes);
    let mut last: Vec<&str> = text.lines().rev().take(lines).collect();
    last.reverse();
    if last.is_empty() {
        "(no output)".into()
    } else {
        last.join("\n")
    }
}

pub(crate) fn random_hex(bytes: usize) -> Result<String, LabError> {
    let mut buffer = vec![0; bytes];
    File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut buffer))
        .map_err(LabError::io("reading /dev/urandom"))?;
    Ok(buffer.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    }))
}
