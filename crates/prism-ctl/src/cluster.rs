//! `prism ctl cluster`: the cluster as a node of this host sees it.

use std::io::Write;

use anyhow::bail;
use prism_cluster::ProgressReport;
use prism_figures::{BackendState, ClusterState, OTHER_STORE};
use prism_process::ask;

use crate::reach::{Common, print_json};
use crate::recover;
use crate::table::{Cell, Paint, Tone, count, number, table, text, toned};

/// Show the backends of the cluster as a node of this host sees them.
///
/// Exits with status 1 if the node does not reach one of them.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    command: Option<ClusterCommand>,
    /// Ask this node. Default: the first node that runs on this host.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum ClusterCommand {
    Recover(recover::RecoverArgs),
}

pub(crate) fn run(args: &ClusterArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    if let Some(ClusterCommand::Recover(recovery)) = &args.command {
        if args.node.is_some() {
            bail!("`recover` asks no node; remove --node");
        }
        return recover::run(recovery, common, out);
    }
    let socket = common.admin_socket(args.node.as_deref())?;
    let (survey, document): (ClusterState, _) = ask(&socket, "cluster")?;
    let keeps_objects = common.load()?.service.keeps_objects();
    match (common.json, keeps_objects) {
        (true, _) => print_json(out, &document)?,
        (false, true) => print(&survey, out)?,
        (false, false) => print_reach(&survey, out)?,
    }
    let away = survey.backends.iter().filter(|backend| !backend.in_reach);
    let away: Vec<&str> = away.map(|backend| backend.name.as_str()).collect();
    match away.as_slice() {
        [] => Ok(()),
        away => bail!("{} does not reach {}", survey.asked, away.join(", ")),
    }
}

/// The backends of a service with an upstream, which store nothing.
fn print_reach(survey: &ClusterState, out: &mut impl Write) -> std::io::Result<()> {
    let ClusterState { cluster, asked, .. } = survey;
    let count = survey.backends.len();
    writeln!(out, "{cluster}, as {asked} sees it: {count} backends")?;
    if let Some(fault) = &survey.fault {
        writeln!(out, "{fault}")?;
    }
    let rows = survey.backends.iter();
    let rows: Vec<_> = rows
        .map(|backend| [text(&backend.name), reach(backend)])
        .collect();
    write!(
        out,
        "{}",
        table(Paint::of_stdout(), ["BACKEND", "REACH"], &rows)
    )
}

fn reach(backend: &BackendState) -> Cell {
    if backend.in_reach {
        text("in reach")
    } else {
        toned("out of reach", Tone::Critical)
    }
}

fn print(survey: &ClusterState, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(
        out,
        "{}, as {} sees it: {} backends, replicas of each object: {} (in sync for a write: {}), \
         epoch {}, {}",
        survey.cluster,
        survey.asked,
        survey.backends.len(),
        survey.replicas,
        survey.min_replicas,
        survey.epoch,
        phase(&survey.phase),
    )?;
    if let Some(fault) = &survey.fault {
        writeln!(out, "{fault}")?;
    }
    if survey.kept_in_etcd
        && let Some(left) = survey.lease_ms
    {
        writeln!(out, "{} has a lease for {left} ms", survey.asked)?;
    }
    let rows = survey.backends.iter().map(|backend| {
        let status = status_word(backend.status.as_deref(), backend.has_other_store);
        let figure = |figure: Option<u64>| number(figure.map_or_else(|| "-".into(), count));
        [
            text(&backend.name),
            toned(status, tone(status)),
            reach(backend),
            figure(backend.open_changes),
            figure(backend.bytes_used),
        ]
    });
    let header = ["BACKEND", "STATUS", "REACH", "OPEN CHANGES", "BYTES"];
    let rows: Vec<_> = rows.collect();
    write!(out, "{}", table(Paint::of_stdout(), header, &rows))?;
    for backend in &survey.backends {
        let status = status_word(backend.status.as_deref(), backend.has_other_store);
        if status == "another store" {
            let name = &backend.name;
            writeln!(
                out,
                "{name} has {status} than the cluster knows for it. {OTHER_STORE}"
            )?;
        }
    }
    for backend in &survey.backends {
        if let Some(progress) = backend.catching_up.as_ref().filter(|p| p.is_running) {
            write!(out, "{}", backend.name)?;
            print_progress(progress, out)?;
        }
    }
    Ok(())
}

/// The status of a backend, for people.
pub(crate) fn status_word(status: Option<&str>, has_other_store: bool) -> &str {
    match status {
        Some("in-sync" | "lagging") if has_other_store => "another store",
        status => status.unwrap_or("-"),
    }
}

/// The meaning of a backend's status.
pub(crate) fn tone(status: &str) -> Tone {
    match status {
        "in-sync" => Tone::Good,
        "lagging" => Tone::Warning,
        "out" | "another store" => Tone::Critical,
        _ => Tone::Plain,
    }
}

/// The phase of a cluster's state, for people.
pub(crate) fn phase(phase: &str) -> &'static str {
    match phase {
        "filling" => "keys are being copied to their new backends",
        "moved" => "keys are copied",
        _ => "nothing moves",
    }
}

fn print_progress(progress: &ProgressReport, out: &mut impl Write) -> std::io::Result<()> {
    let fetched = progress.fetched;
    let bytes = progress.fetched_bytes;
    write!(
        out,
        " is catching up, {} of {} parts done: {} compared, {fetched} fetched ({bytes} bytes), {} removed",
        progress.parts_done, progress.parts, progress.compared, progress.removed
    )?;
    match progress.hindrance.as_str() {
        "" => writeln!(out),
        hindrance => writeln!(out, ". {hindrance}"),
    }
}
