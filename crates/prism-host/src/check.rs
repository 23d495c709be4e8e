//! `prism check`: reports the faults of a configuration file, or what it describes.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use prism_config::ConfigFile;

use crate::doctor::ended;
use crate::faults::{effect_of_missing, faults_of_host};

mod summary;

/// Check a configuration file.
///
/// Prints what the file describes, or each fault in it: the field, the fault, and
/// how to fix it. The files of `servers_file` are checked too, if this machine has them.
/// It warns of fields that have no effect, and of rules of upstreams
/// that hardly any request fits. With --diff it prints the changes from an older file
/// instead, each with the processes that have to reload or restart. Exits with status
/// 1 if a file has a fault, else with 0. Opens no socket and changes nothing.
#[derive(clap::Args, Debug)]
pub struct Args {
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

/// Runs the command.
///
/// # Errors
/// The configuration has a fault.
pub fn run(args: Args) -> Result<()> {
    let (config, doubtful) = ConfigFile::load_with_warnings(&args.config)?;
    if let Some(name) = &args.node {
        let mut faults = faults_of_host(&config, name)?;
        for part in config.parts() {
            faults.extend(part.node(name).iter().flat_map(|node| ended(&part, node)));
        }
        faults.sort_unstable();
        faults.dedup();
        if !faults.is_empty() {
            let count = faults.len();
            if let [only] = faults.as_slice() {
                bail!("{only}");
            }
            bail!("{count} faults for {name}:\n  {}", faults.join("\n  "));
        }
    }
    let (faults, lines) = servers_files(&config);
    if !faults.is_empty() {
        bail!("{}", faults.join("\n"));
    }
    match &args.diff {
        Some(old) => {
            let old = ConfigFile::load(old).with_context(|| old.display().to_string())?;
            print!("{}", difference(&old, &config));
        }
        None => print!("{}", summary::of(&config)),
    }
    let doubtful = doubtful.iter().map(ToString::to_string);
    let others = warnings(&config).into_iter().chain(families(&config));
    for warning in doubtful.chain(others).chain(lines) {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// The keys that may do everything because their records say nothing, if this machine has their
/// file.
fn warnings(config: &ConfigFile) -> Vec<String> {
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

/// The faults of the files of servers that this machine has, and warnings of their lines.
fn servers_files(config: &ConfigFile) -> (Vec<String>, Vec<String>) {
    let (mut faults, mut warnings) = (Vec::new(), Vec::new());
    for part in config.parts() {
        let upstreams = part.service.upstream.iter().flat_map(|all| all.iter());
        for upstream in upstreams {
            let Some(file) = &upstream.servers_file else {
                continue;
            };
            match part.read_servers(file) {
                Ok(list) => {
                    let doubts = part.doubts_of_servers(upstream, &list).into_iter();
                    warnings.extend(doubts.map(|doubt| format!("{}, {doubt}", file.display())));
                }
                // The file is for another machine, or for another user.
                Err(error) if error.read_error() == Some(ErrorKind::NotFound) => {}
                Err(error) if error.read_error() == Some(ErrorKind::PermissionDenied) => {
                    warnings.push(error.to_string());
                }
                Err(error) => faults.push(format!("servers_file: {error}")),
            }
        }
    }
    (faults, warnings)
}

/// The nodes that lack a family of the service. Without a switch no connection moves.
fn families(config: &ConfigFile) -> Vec<String> {
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

/// The changes from one configuration to another, a line each.
fn difference(old: &ConfigFile, new: &ConfigFile) -> String {
    let changes = old.changes_to(new);
    if changes.is_empty() {
        return "no changes\n".into();
    }
    let lines = changes
        .iter()
        .map(|change| format!("{change} ({})\n", change.effect()));
    lines.collect()
}
