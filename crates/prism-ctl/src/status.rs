//! `prism ctl status`: the whole cluster in one screen, and its health as exit status.

use std::fmt::Write as _;
use std::io::Write;
use std::process::ExitCode;

use prism_figures::{
    Alert, BackendState, ClusterHealth, ClusterState, Level, NodeState, State, StoreState,
    SwitchState, alerts,
};
use prism_process::printable;
use serde_json::json;

use crate::reach::{Common, print_json};
use crate::servers;
use crate::state_sources::SourceArgs;
use crate::table::{Cell, Paint, Tone, age, bytes, count, number, table, text, toned};

const DAY_S: u64 = 86_400;

/// Show the whole cluster: servers of upstreams, switch, nodes, backends, certificates and alerts.
///
/// Exits with status 0 if the cluster is healthy, 1 if it is degraded (there is an alert), and 2
/// if it is down (no frontend serves, no backend serves reads, all servers are out, or no process
/// answers).
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    source: SourceArgs,
}

/// Prints the state. An error counts as down: nothing is known of the cluster then.
pub(crate) fn run(
    args: &StatusArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<ExitCode> {
    let (state, mut document) = match ask(args, common) {
        Ok(answer) => answer,
        Err(error) => {
            let said = prism_sys::process::explained(error.as_ref());
            if common.json {
                print_json(
                    out,
                    &json!({ "health": ClusterHealth::Down, "error": said }),
                )?;
            }
            eprintln!("prism: {said}");
            return Ok(ExitCode::from(exit_status(ClusterHealth::Down)));
        }
    };
    let alerts = alerts(&state);
    let health = ClusterHealth::of(&state, &alerts);
    if common.json {
        if let Some(fields) = document.as_object_mut() {
            fields.insert("health".into(), json!(health));
            fields.insert("alerts".into(), json!(alerts));
        }
        print_json(out, &document)?;
    } else {
        out.write_all(screen(&state, &alerts, Paint::of_stdout()).as_bytes())?
    }
    Ok(ExitCode::from(exit_status(health)))
}

/// The exit status of the command.
const fn exit_status(health: ClusterHealth) -> u8 {
    match health {
        ClusterHealth::Healthy => 0,
        ClusterHealth::Degraded => 1,
        ClusterHealth::Down => 2,
    }
}

/// The health in a word, and its meaning.
const fn word(health: ClusterHealth) -> (&'static str, Tone) {
    match health {
        ClusterHealth::Healthy => ("healthy", Tone::Good),
        ClusterHealth::Degraded => ("degraded", Tone::Warning),
        ClusterHealth::Down => ("down", Tone::Critical),
    }
}

fn ask(args: &StatusArgs, common: &Common) -> anyhow::Result<(State, serde_json::Value)> {
    let ways = args.source.ways(common)?;
    prism_common::runtime()?.block_on(ways.state())
}

/// The whole screen.
pub(crate) fn screen(state: &State, alerts: &[Alert], paint: Paint) -> String {
    let mut shown = headline(state, alerts, paint);
    let mut part = |part: String| {
        if !part.is_empty() {
            shown.push('\n');
            shown.push_str(&part);
        }
    };
    part(servers::shown(state, paint));
    part(switch(state));
    part(nodes(state, paint));
    // A backend of upstreams alone has only servers.
    let objects = state.cluster.as_ref().filter(|_| state.keeps_objects());
    part(objects.map_or_else(String::new, |cluster| backends(state, cluster, paint)));
    part(certificates(state, paint));
    part(listed(alerts, paint));
    shown
}

pub(crate) fn headline(state: &State, alerts: &[Alert], paint: Paint) -> String {
    let (word, tone) = word(ClusterHealth::of(state, alerts));
    let health = paint.paint(tone, word);
    let Some(cluster) = &state.cluster else {
        return format!("{health}, as {} sees it\n", state.name);
    };
    if !state.keeps_objects() {
        return format!(
            "{}: {health}, as {} sees it\n",
            cluster.cluster, cluster.asked
        );
    }
    format!(
        "{}: {health}, as {} sees it; epoch {}, {}; replicas of each object: {} (in sync for a \
         write: {})\n",
        cluster.cluster,
        cluster.asked,
        cluster.epoch,
        crate::cluster::phase(&cluster.phase),
        cluster.replicas,
        cluster.min_replicas,
    )
}

fn switch(state: &State) -> String {
    let Some(switch) = &state.switch else {
        return String::new();
    };
    let up = switch.nodes.iter().filter(|node| node.up).count();
    match &switch.error {
        Some(error) => format!("switch: no figures: {}\n", printable(error)),
        None => format!(
            "switch{}: {} of {} flows, {up} of {} nodes with a lease\n",
            role(switch),
            switch.flows.map_or_else(|| "-".to_owned(), count),
            count(switch.max_flows),
            switch.nodes.len(),
        ),
    }
}

/// The host of a pair that has answered, and its role.
fn role(switch: &SwitchState) -> String {
    let role = if switch.active { "active" } else { "standby" };
    let host = switch.host.as_ref();
    host.map_or_else(String::new, |host| format!(" {} ({role})", printable(host)))
}

/// The work of a node, in a word.
pub(crate) fn doing(node: &NodeState) -> Cell {
    match (&node.error, &node.not_ready) {
        (Some(_), _) => toned("no answer", Tone::Critical),
        (None, Some(reason)) => toned(reason, Tone::Warning),
        (None, None) => toned("serves", Tone::Good),
    }
}

fn nodes(state: &State, paint: Paint) -> String {
    let rows = state.nodes.iter().map(|node| {
        let moved = node.handed_off.iter().map(|peer| peer.count);
        let moved = moved.fold(0, u64::saturating_add);
        let figure = |figure: String| match node.error {
            Some(_) => number("-"),
            None => number(figure),
        };
        [
            text(&node.name),
            text(node.roles.as_deref().unwrap_or_default().join(", ")),
            doing(node),
            figure(age(node.uptime_s)),
            figure(count(node.connections)),
            figure(count(moved)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let header = [
        "NODE",
        "ROLES",
        "STATE",
        "UPTIME",
        "CONNECTIONS",
        "HANDED OFF",
    ];
    if rows.is_empty() {
        String::new()
    } else {
        table(paint, header, &rows)
    }
}

fn backends(state: &State, cluster: &ClusterState, paint: Paint) -> String {
    let rows = cluster.backends.iter().map(|backend| {
        let status = backend.status.as_deref();
        let status = crate::cluster::status_word(status, backend.has_other_store);
        let mut nodes = state.nodes.iter().filter(|node| node.name == backend.name);
        let store = nodes.find_map(|node| node.store.as_ref());
        let (used, fill) = store.map_or_else(|| ("-".into(), "-".into()), fullness);
        [
            text(&backend.name),
            toned(status, crate::cluster::tone(status)),
            if backend.in_reach {
                text("in reach")
            } else {
                toned("out of reach", Tone::Critical)
            },
            text(catch_up(backend)),
            number(used),
            number(fill),
            number(backend.open_changes.map_or_else(|| "-".into(), count)),
        ]
    });
    let header = [
        "BACKEND",
        "STATUS",
        "REACH",
        "CATCH-UP",
        "USED",
        "FILL",
        "OPEN CHANGES",
    ];
    table(paint, header, &rows.collect::<Vec<_>>())
}

fn catch_up(backend: &BackendState) -> String {
    let running = backend.catching_up.as_ref();
    running.filter(|report| report.is_running).map_or_else(
        || "-".to_owned(),
        |report| {
            format!(
                "{} of {} parts, {} fetched",
                report.parts_done,
                report.parts,
                bytes(report.fetched_bytes as f64)
            )
        },
    )
}

/// The bytes of a store, and the share of its room that they take.
fn fullness(store: &StoreState) -> (String, String) {
    let all = store.used_bytes.saturating_add(store.free_bytes);
    let room = match store.quota_bytes {
        0 => all,
        quota => quota.min(all),
    };
    let share = 100.0 * store.used_bytes as f64 / (room.max(1)) as f64;
    (
        bytes(store.used_bytes as f64),
        format!("{:.0} %", share.min(100.0)),
    )
}

fn certificates(state: &State, paint: Paint) -> String {
    let now_s = state.time_ms / 1_000;
    let all = state.nodes.iter();
    let all = all.flat_map(|node| node.certificates.iter().map(move |found| (node, found)));
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|(_, found)| found.expires_s);
    let rows = all.iter().map(|(node, found)| {
        let left = found
            .expires_s
            .checked_sub(now_s)
            .filter(|left_s| *left_s > 0);
        let left = match left {
            None => toned("has ended", Tone::Critical),
            Some(left_s) => text(format!("{} days", left_s / DAY_S)),
        };
        let day = prism_pki::date(found.expires_s);
        [text(&node.name), text(day), left, text(&found.file)]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() {
        String::new()
    } else {
        table(paint, ["NODE", "CERTIFICATE ENDS", "LEFT", "FILE"], &rows)
    }
}

fn listed(alerts: &[Alert], paint: Paint) -> String {
    let mut shown = String::new();
    for alert in alerts {
        let (word, tone) = match alert.level {
            Level::Critical => ("CRITICAL", Tone::Critical),
            Level::Warning => ("warning", Tone::Warning),
        };
        let said = printable(&alert.text);
        let mark = paint.paint(tone, word);
        let _ = writeln!(shown, "{mark}  {said}. {}", alert.remedy);
    }
    shown
}
