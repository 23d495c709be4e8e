//! `prism setup`: prepares a host for its role in the cluster, and undoes it again.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use prism_config::ConfigFile;
use serde::Serialize;

use crate::needs::{self, HostChange, Root};

/// Prepare this host for its role: kernel parameters, addresses, routes, conntrack.
///
/// Without --apply it prints the files and the changes of the running kernel, and changes
/// nothing. The host's own addresses and its interfaces are its operator's.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The configuration file (TOML).
    #[arg(long, value_name = "FILE", required_unless_present_any = ["remove", "restore"])]
    config: Option<PathBuf>,
    /// Name of the node that this host is; `switch` for the switch.
    #[arg(long, value_name = "NAME", required_unless_present_any = ["switch", "remove", "restore"])]
    node: Option<String>,
    /// This host is the switch.
    #[arg(long, conflicts_with = "node")]
    switch: bool,
    /// Write the files, and change the running kernel. Repeat it after each change of the
    /// configuration. It overwrites no file of others.
    #[arg(long)]
    apply: bool,
    /// Undo all that --apply has done on this host.
    #[arg(long, conflicts_with_all = ["apply", "restore"])]
    remove: bool,
    /// Make what --apply has done effective again, after a boot: the unit prism-host runs it.
    #[arg(long, conflicts_with_all = ["apply", "config", "node", "switch"])]
    restore: bool,
    /// Print a JSON array: of files and changes, or with --apply, --remove and --restore of what
    /// was done.
    #[arg(long)]
    json: bool,
    /// The directory of the files in the place of `/`, for tests.
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// The host cannot be changed.
pub fn run(args: &Args) -> Result<()> {
    let root = Root::new(&args.root);
    if args.apply || args.remove || args.restore {
        if !rustix::process::geteuid().is_root() {
            bail!("only root can change this host; run it as root, or without --apply");
        }
        let said = if args.remove {
            needs::apply::remove(&root)?
        } else if args.restore {
            needs::apply::restore(&root)?
        } else {
            let (name, changes) = wanted(args, &root)?;
            needs::apply::apply(&root, &name, &changes)?
        };
        return print_said(args.json, &said);
    }
    let (_, changes) = wanted(args, &root)?;
    if args.json {
        return print_json(&changes);
    }
    print(&changes);
    Ok(())
}

/// The name of this host in the configuration, and its changes.
fn wanted(args: &Args, root: &Root) -> Result<(String, Vec<HostChange>)> {
    let path: &Path = args.config.as_deref().context("--config is missing")?;
    let config = ConfigFile::load(path)?;
    let name = if args.switch {
        "switch"
    } else {
        args.node.as_deref().context("--node is missing")?
    };
    let node = config.node_or_switch(name)?;
    let wanted = needs::needs(&config, node);
    Ok((name.to_owned(), needs::changes(&wanted, root)?))
}

fn print(changes: &[HostChange]) {
    let mut commands = Vec::new();
    for change in changes {
        match change {
            HostChange::File { path, text } => println!("==> {}\n{text}", path.display()),
            _ => commands.extend(change.command()),
        }
    }
    println!("==> in the running kernel, and after each boot by the unit prism-host");
    for command in commands {
        println!("{command}");
    }
}

/// A change, and the command that makes it.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    change: &'a HostChange,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<String>,
}

fn print_json(changes: &[HostChange]) -> Result<()> {
    let listed = changes.iter().map(|change| Listed {
        change,
        command: change.command(),
    });
    let listed: Vec<Listed> = listed.collect();
    println!("{}", serde_json::to_string_pretty(&listed)?);
    Ok(())
}

fn print_said(json: bool, said: &[String]) -> Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(said)?);
    } else if said.is_empty() {
        println!("this host was ready already");
    } else {
        said.iter().for_each(|line| println!("{line}"));
    }
    Ok(())
}
