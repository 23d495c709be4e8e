//! `prism ctl reload`: the nodes of this host read their configuration file again.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use prism_config::{Config, admin_sockets};
use prism_process::ask;
use serde::Deserialize;
use serde_json::Value;

use crate::reach::{Common, print_json};

/// Have the nodes on this host read their files again, as on SIGHUP.
///
/// Prints the changes of the configuration: those that a node acts by from now on, those
/// that need its restart, and those of fields that only other processes use. Exits with
/// status 1 if a file has a fault. The node then goes on as before. With --json it prints an
/// array of the outcomes at the nodes.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ReloadArgs {
    /// Name of a node; may be repeated [default: all nodes that run on this host].
    #[arg(long, value_name = "NAME")]
    node: Vec<String>,
}

/// The outcome at a node.
#[derive(Deserialize)]
struct ReloadOutcome {
    node: String,
    now: Vec<Changed>,
    restart: Vec<Changed>,
    elsewhere: Vec<Changed>,
    faults: Vec<String>,
}

#[derive(Deserialize)]
struct Changed {
    field: String,
    old: Option<String>,
    new: Option<String>,
    /// The field with what has changed in it. The former release does not say it.
    change: Option<String>,
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(change) = &self.change {
            return f.write_str(change);
        }
        let shown = |value: &Option<String>| value.as_deref().unwrap_or("none").to_owned();
        let old = shown(&self.old);
        let new = shown(&self.new);
        write!(f, "{}: {old} -> {new}", self.field)
    }
}

pub(crate) fn run(args: &ReloadArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let sockets = sockets(args, common)?;
    let answers = sockets.iter().map(|socket| ask(socket, "reload"));
    let answers: anyhow::Result<Vec<(ReloadOutcome, Value)>> = answers.collect();
    let (told, documents): (Vec<_>, Vec<_>) = answers?.into_iter().unzip();
    if common.json {
        print_json(out, &documents)?;
    } else {
        for told in &told {
            print(told, out)?;
        }
    }
    out.flush()?;
    match told.iter().map(|told| told.faults.len()).sum() {
        0_usize => Ok(()),
        faults => bail!("{faults} fault(s)"),
    }
}

fn sockets(args: &ReloadArgs, common: &Common) -> anyhow::Result<Vec<PathBuf>> {
    let parts = common.parts()?;
    let mut sockets = Vec::new();
    for name in &args.node {
        sockets.extend(admin_sockets(&parts, name)?);
    }
    if sockets.is_empty() {
        sockets.extend(parts.iter().flat_map(Config::sockets_here));
    }
    if sockets.is_empty() {
        bail!("no node of the configuration runs on this host; start one");
    }
    Ok(sockets)
}

fn print(told: &ReloadOutcome, out: &mut impl Write) -> std::io::Result<()> {
    let name = &told.node;
    let all = [
        ("changed now", &told.now),
        ("needs a restart", &told.restart),
        ("of other processes", &told.elsewhere),
    ];
    for (effect, changes) in all {
        for change in changes {
            writeln!(out, "{name}: {effect}: {change}")?;
        }
    }
    for fault in &told.faults {
        writeln!(out, "{name}: fault: {fault}")?;
    }
    if all.iter().all(|(_, changes)| changes.is_empty()) && told.faults.is_empty() {
        writeln!(out, "{name}: no changes")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_change_has_the_nodes_words_or_those_for_the_former_release() {
        for (change, expected) in [
            (
                r#", "change": "service.upstream.address: added \"b\"""#,
                "n0: changed now: service.upstream.address: added \"b\"\n",
            ),
            (
                "",
                "n0: changed now: service.upstream.address: none -> [\"a\", \"b\"]\n",
            ),
        ] {
            let changed = format!(
                r#"{{"field": "service.upstream.address", "old": null,
                    "new": "[\"a\", \"b\"]"{change}}}"#
            );
            let document = format!(
                r#"{{"node": "n0", "now": [{changed}], "restart": [], "elsewhere": [],
                    "faults": []}}"#
            );
            let mut out = Vec::new();
            print(&serde_json::from_str(&document).unwrap(), &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }
}
