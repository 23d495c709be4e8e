//! `prism check`: reports the faults of a configuration file, or what it describes.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use prism_config::{Config, Node, Peers};
use prism_pki::Identity;
use prism_sys::process::with_causes;

use crate::doctor::ended;
use crate::node::spans_fault;

mod summary;

/// Check a configuration file.
///
/// Prints what the file describes, or each fault in it: the field, the fault, and
/// how to fix it. It warns of fields that have no effect, and of rules of upstreams
/// that hardly any request fits. With --diff it prints the changes from an older file
/// instead, each with the processes that have to reload or restart. Exits with status
/// 1 if a file has a fault, else with 0. Opens no socket and changes nothing.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The configuration file (TOML).
    config: PathBuf,
    /// Also check that this machine has the files that the configuration names for
    /// this node. `switch` stands for the switch.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Print the changes from this older file to CONFIG, and when they take effect.
    #[arg(long, value_name = "OLD")]
    diff: Option<PathBuf>,
}

pub(crate) fn run(args: Args) -> Result<()> {
    let (config, doubtful) = Config::load_with_warnings(&args.config)?;
    if let Some(name) = &args.node {
        let mut faults = faults_of_host(&config, name)?;
        for part in config.parts() {
            faults.extend(part.node(name).iter().flat_map(|node| ended(&part, node)));
        }
        faults.sort_unstable();
        faults.dedup();
        if !faults.is_empty() {
            let count = faults.len();
            match faults.as_slice() {
                [only] => bail!("{only}"),
                _ => bail!("{count} faults for {name}:\n  {}", faults.join("\n  ")),
            }
        }
    }
    match &args.diff {
        Some(old) => {
            let old = Config::load(old).with_context(|| old.display().to_string())?;
            print!("{}", difference(&old, &config));
        }
        None => print!("{}", summary::of(&config)),
    }
    let doubtful = doubtful.iter().map(ToString::to_string);
    let others = warnings(&config).into_iter().chain(families(&config));
    for warning in doubtful.chain(others) {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// The keys that may do everything because their records say nothing, if this machine has their
/// file.
fn warnings(config: &Config) -> Vec<String> {
    let parts = config.parts().into_iter();
    let users = parts.flat_map(|part| part.s3.load_credentials().unwrap_or_default());
    let unlimited = users.filter(|user| user.is_unlimited_by_omission());
    unlimited
        .map(|user| {
            format!(
                "s3.credentials_file: the key {} may do everything, because its record says \
                 neither admin nor buckets; add `admin = true`, or `buckets` with its rights",
                user.access_key
            )
        })
        .collect()
}

/// The nodes that lack a family of the service. Without a switch no connection moves.
fn families(config: &Config) -> Vec<String> {
    let nodes = config.nodes.iter().filter(|_| config.switch.is_some());
    let lacking = nodes.flat_map(|node| {
        let missing = config.families_missing_at(node).into_iter();
        missing.map(move |family| {
            let effect = effect_of_missing(family, node);
            format!(
                "node {}: it has no {family} address: {effect}; add one to its `address`",
                node.name
            )
        })
    });
    lacking.collect()
}

/// The effect of a family of the service that `node` has no address of.
pub(crate) fn effect_of_missing(family: &str, node: &Node) -> String {
    match node.is_backend() {
        true => format!("requests of {family} clients are relayed to it"),
        false => format!("{family} clients do not reach it"),
    }
}

/// The things that the node or switch `name` lacks on this machine, for all its services.
pub(crate) fn faults_of_host(config: &Config, name: &str) -> Result<Vec<String>> {
    let parts = match config.node_or_switch(name)? {
        Some(_) => config.parts_at(name),
        None => config.parts(),
    };
    let mut all: Vec<String> = Vec::new();
    for part in parts {
        for fault in node_faults(&part, name)? {
            if !all.contains(&fault) {
                all.push(fault);
            }
        }
    }
    Ok(all)
}

/// The files that `name` lacks on this machine for the service of `config`, each with its fix.
pub(crate) fn node_faults(config: &Config, name: &str) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let node = config.node_or_switch(name)?;
    let key_fault = config.switch.as_ref().and_then(|switch| match node {
        Some(_) => switch.load_node_key(name).err(),
        None => switch.load_secrets().err(),
    });
    faults.extend(key_fault.map(|error| format!("switch.key_file: {error}")));
    let Some(node) = node else { return Ok(faults) };
    faults.extend(spans_fault(&config.trace));
    let named = !config.s3.credentials_file.as_os_str().is_empty();
    if let Some(error) = named.then(|| config.s3.load_credentials().err()).flatten() {
        faults.push(format!("s3.credentials_file: {error}"));
    }
    if config.cluster.etcd.is_some()
        && let Err(error) = prism_membership::etcd::client(config)
    {
        faults.push(with_causes(error.as_ref()));
    }
    if !config.peers.ca_file.as_os_str().is_empty() {
        faults.extend(identity_faults(&config.peers, name));
    }
    let keeps_objects = node.is_backend() && config.service.upstream.is_none();
    if keeps_objects && node.store.exists() && !node.store.is_dir() {
        let store = node.store.display();
        faults.push(format!(
            "store: {store} is not a directory; name a directory, or remove the file"
        ));
    }
    Ok(faults)
}

/// The faults of the files by which other nodes know `name`.
fn identity_faults(peers: &Peers, name: &str) -> Vec<String> {
    let (certificate, key) = (peers.cert_file(name), peers.key_file(name));
    let files = [
        ("peers.ca_file", &peers.ca_file),
        ("peers.cert_dir", &certificate),
        ("peers.cert_dir", &key),
    ];
    let absent = files.into_iter().filter_map(|(field, path)| {
        let error = std::fs::File::open(path).err()?;
        let (path, fix) = (path.display(), "make it with `prism pki`");
        Some(format!("{field}: cannot read {path}: {error}; {fix}"))
    });
    let absent: Vec<_> = absent.collect();
    if !absent.is_empty() {
        return absent;
    }
    let error = Identity::load(&peers.ca_file, &certificate, &key).err();
    error
        .map(|error| format!("peers: {error}"))
        .into_iter()
        .collect()
}

/// The changes from one configuration to another, a line each.
fn difference(old: &Config, new: &Config) -> String {
    let changes = old.changes_to(new);
    if changes.is_empty() {
        return "no changes\n".into();
    }
    let lines = changes
        .iter()
        .map(|change| format!("{change} ({})\n", change.effect()));
    lines.collect()
}
