//! `prism doctor`: reports what this host lacks to run Prism, each with its remedy.
//!
//! It changes nothing. Without privilege it reports some subjects as unknown.

mod certificates;
mod etcd;
mod families;
mod finding;
mod kernel;
mod keys;
mod needs;
mod network;
mod path;
mod policies;
mod records;
mod servers;
mod system;

use std::path::{Path, PathBuf};

use anyhow::Result;
use prism_config::ConfigFile;

pub(crate) use self::certificates::ended;
use self::finding::{Finding, HostPart, State, Subject};
use crate::faults::faults_of_host;

/// Report what this host lacks to run Prism, and how to fix it.
///
/// Exits with status 1 if something necessary is missing. Changes nothing. Without
/// root it reports some subjects as unknown, and without --config what all hosts need.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Check only the needs of one node of this configuration.
    #[arg(long, value_name = "FILE", requires = "node")]
    config: Option<PathBuf>,
    /// Name of the node that this host is; `switch` for the switch.
    #[arg(long, value_name = "NAME", requires = "config")]
    node: Option<String>,
    /// Print a JSON array of {subject, state, found, mend}; `mend` is the remedy.
    #[arg(long)]
    json: bool,
}

/// Runs the command, and ends the process if something is missing.
///
/// # Errors
/// The configuration cannot be read.
pub fn run(args: Args) -> Result<()> {
    let mut findings = Vec::new();
    let part = match (&args.config, &args.node) {
        (Some(path), Some(name)) => part_of(path, name, &mut findings)?,
        _ => HostPart {
            is_switch: true,
            is_node: true,
            interfaces: Vec::new(),
            connections: prism_config::Limits::default().connections.into(),
            has_objects: true,
        },
    };
    findings.extend(kernel::examine(&part));
    findings.extend(network::examine(&part));
    findings.extend(system::examine(&part));
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print(&findings);
    }
    let is_missing = |finding: &Finding| finding.state == State::Missing;
    if findings.iter().any(is_missing) {
        std::process::exit(1);
    }
    Ok(())
}

fn part_of(path: &Path, name: &str, findings: &mut Vec<Finding>) -> Result<HostPart> {
    let config = ConfigFile::load(path)?;
    let node = config.node_or_switch(name)?;
    let faults = faults_of_host(&config, name)?;
    let subject = Subject("configuration");
    let missing = |fault| subject.missing(fault, "see docs/install.md");
    findings.extend(faults.into_iter().map(missing));
    let is_switch = node.is_none();
    findings.extend(needs::examine(&config, node, path));
    for found in keys::examine(&config, node) {
        if !findings.contains(&found) {
            findings.push(found);
        }
    }
    findings.extend(families::examine(&config, node));
    findings.extend(path::examine(&config, node));
    if let Some(node) = node {
        for part in config.parts_at(&node.name) {
            let mut all = certificates::examine(&part, node);
            all.extend(etcd::examine(&part));
            for found in all {
                if !findings.contains(&found) {
                    findings.push(found);
                }
            }
            findings.extend(servers::examine(&part, node));
            findings.extend(policies::examine(&part));
        }
    }
    let interfaces = match &config.switch {
        Some(switch) if is_switch => switch.interfaces.clone(),
        _ => Vec::new(),
    };
    // Each service has connections of its own.
    let parts = config.parts_at(name);
    let connections = parts.iter().map(|part| u64::from(part.limits.connections));
    let connections = connections.sum();
    // The switch is for all services.
    let mut served = if is_switch { config.parts() } else { parts }.into_iter();
    let has_objects = served.any(|part| part.service.keeps_objects());
    Ok(HostPart {
        is_switch,
        is_node: !is_switch,
        interfaces,
        connections,
        has_objects,
    })
}

fn print(findings: &[Finding]) {
    for finding in findings {
        let mark = match finding.state {
            State::Good => "ok     ",
            State::Advice => "advice ",
            State::Unknown => "unknown",
            State::Missing => "MISSING",
        };
        println!("{mark}  {:<14} {}", finding.subject, finding.found);
        if !finding.mend.is_empty() {
            println!("{:25}fix: {}", "", finding.mend);
        }
    }
    let count = |state| findings.iter().filter(|f| f.state == state).count();
    println!(
        "\n{} missing, {} to consider, {} unknown, {} ok",
        count(State::Missing),
        count(State::Advice),
        count(State::Unknown),
        count(State::Good)
    );
}
