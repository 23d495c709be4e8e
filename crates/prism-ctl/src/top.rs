//! `prism ctl top`: the servers of upstreams and the rates of each node, shown again each second.

use std::collections::{BTreeMap, HashMap};
use std::io::{IsTerminal, Write};
use std::time::Duration;

use prism_figures::{ClusterHealth, NodeState, RequestTally, State, alerts};
use prism_process::Stops;
use rustix::termios::tcgetwinsize;
use serde::Serialize;

use crate::reach::Common;
use crate::servers;
use crate::state_sources::SourceArgs;
use crate::status::{doing, headline};
use crate::table::{Cell, Paint, Tone, bytes, count, number, table, text, toned};

/// Time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// Clears the terminal's other screen and hides the cursor; and the way back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// Show the servers of upstreams and the rates of each node each second, until Ctrl-C.
///
/// With --json it prints one document in each line.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    source: SourceArgs,
    /// End after this number of tables. The first one comes after a second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Show one table, as --count 1.
    #[arg(long, conflicts_with = "count")]
    once: bool,
}

/// The counters of a node that rates are made of: totals since the start of its process.
#[derive(Clone, Copy)]
struct Counters {
    time_ms: u64,
    uptime_s: u64,
    /// Each with its name in JSON.
    counts: [(&'static str, u64); 6],
}

/// Events and bytes in a second, by the names of their counters.
type Rates = BTreeMap<&'static str, f64>;

/// A row of the table.
#[derive(Serialize)]
struct RateRow<'s> {
    name: &'s str,
    error: Option<&'s str>,
    connections: u64,
    /// In a second; `None` if they are not known yet.
    rates: Option<Rates>,
}

impl Counters {
    fn of(node: &NodeState) -> Self {
        let sum = |count: fn(&RequestTally) -> u64| {
            let counts = node.requests.iter().map(count);
            counts.fold(0, u64::saturating_add)
        };
        let errors = sum(|kind| if kind.code >= 500 { kind.count } else { 0 });
        let handed_off = node.handed_off.iter().map(|peer| peer.count);
        Self {
            time_ms: node.time_ms,
            uptime_s: node.uptime_s,
            counts: [
                ("accepted", node.accepted),
                ("requests", sum(|kind| kind.count)),
                ("errors", errors),
                ("sent_bytes", sum(|kind| kind.sent_bytes)),
                ("received_bytes", sum(|kind| kind.received_bytes)),
                ("handed_off", handed_off.fold(0, u64::saturating_add)),
            ],
        }
    }

    /// The rates since an earlier look; `None` if the process was started meanwhile, or the same
    /// figures were seen.
    fn rates_since(&self, before: &Self) -> Option<Rates> {
        let passed_ms = self
            .time_ms
            .checked_sub(before.time_ms)
            .filter(|ms| *ms > 0)?;
        if self.uptime_s < before.uptime_s {
            return None;
        }
        let mut rates = Rates::new();
        for ((name, now), (_, then)) in self.counts.into_iter().zip(before.counts) {
            let difference = now.checked_sub(then)?;
            rates.insert(name, difference as f64 * 1_000.0 / passed_ms as f64);
        }
        Some(rates)
    }
}

/// The terminal, which shows another screen until this is dropped.
struct Screen {
    is_terminal: bool,
}

impl Screen {
    fn enter() -> Self {
        let is_terminal = std::io::stdout().is_terminal();
        if is_terminal {
            print!("{ENTER}");
        }
        Self { is_terminal }
    }

    /// Shows a text in place of the last one. A terminal shows as many lines as it has.
    fn show(&self, shown: &str) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        match self.is_terminal {
            // Each line clears its rest, and the end all below, so that nothing flickers.
            true => {
                let rows = tcgetwinsize(&out).map(|size| usize::from(size.ws_row));
                // A terminal that does not know its size has 0 rows.
                let rows = rows.ok().filter(|rows| *rows > 0).unwrap_or(usize::MAX);
                let lines: Vec<_> = shown.lines().take(rows).collect();
                write!(out, "\x1b[H{}\x1b[K\x1b[J", lines.join("\x1b[K\n"))?;
            }
            false => write!(out, "{shown}")?,
        }
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.is_terminal {
            print!("{LEAVE}");
            let _ = std::io::stdout().flush();
        }
    }
}

pub(crate) fn run(args: &TopArgs, common: &Common) -> anyhow::Result<()> {
    let most = if args.once { Some(1) } else { args.count };
    let ways = args.source.ways(common)?;
    let runtime = prism_common::runtime()?;
    runtime.block_on(async {
        let mut stops = Stops::follow()?;
        // The first look fails before the terminal is changed.
        let (first, _) = ways.state().await?;
        let showing = async {
            let mut last = Looks::default();
            last.rows(&first);
            let screen = if common.json {
                Screen { is_terminal: false }
            } else {
                Screen::enter()
            };
            let mut shown = 0;
            while most.is_none_or(|most| shown < most) {
                tokio::time::sleep(EVERY).await;
                let text = match ways.state().await {
                    Ok((state, _)) => last.shown(&state, common.json)?,
                    // A node that restarts comes back.
                    Err(error) if screen.is_terminal => {
                        format!("{}\n", prism_sys::process::explained(error.as_ref()))
                    }
                    Err(error) => return Err(error),
                };
                screen.show(&text)?;
                shown += 1;
            }
            Ok(())
        };
        // Dropping `showing` restores the terminal.
        tokio::select! {
            shown = showing => shown,
            () = stops.asked() => Ok(()),
        }
    })
}

/// The last look at each node.
#[derive(Default)]
struct Looks {
    last: HashMap<String, (Counters, Option<Rates>)>,
}

impl Looks {
    fn rows<'s>(&mut self, state: &'s State) -> Vec<RateRow<'s>> {
        let mut last = HashMap::new();
        let rows = state.nodes.iter().map(|node| {
            let now = Counters::of(node);
            let before = self.last.get(&node.name);
            let rates = before.filter(|_| node.error.is_none());
            let rates = rates.and_then(|(before, rates)| match before.time_ms == now.time_ms {
                // The answer is an old one, seen again.
                true => rates.clone(),
                false => now.rates_since(before),
            });
            if node.error.is_none() {
                last.insert(node.name.clone(), (now, rates.clone()));
            }
            RateRow {
                name: &node.name,
                error: node.error.as_deref(),
                connections: node.connections,
                rates,
            }
        });
        let rows = rows.collect();
        // Nodes that left the cluster are forgotten.
        self.last = last;
        rows
    }

    fn shown(&mut self, state: &State, json: bool) -> anyhow::Result<String> {
        let rows = self.rows(state);
        let alerts = alerts(state);
        if json {
            let document = serde_json::json!({
                "time_ms": state.time_ms,
                "health": ClusterHealth::of(state, &alerts),
                "servers": state.servers,
                "nodes": rows,
            });
            return Ok(format!("{document}\n"));
        }
        let paint = Paint::of_stdout();
        let nodes = state.nodes.iter().zip(&rows);
        let each = nodes
            .map(|(node, row)| cells(text(row.name), doing(node), row.connections, &row.rates));
        let mut all: Vec<_> = each.collect();
        let connections = rows.iter().map(|row| row.connections);
        let connections = connections.fold(0, u64::saturating_add);
        let known = rows.iter().filter_map(|row| row.rates.clone());
        let total = known.reduce(sum);
        all.push(cells(
            toned("all", Tone::Header),
            text(""),
            connections,
            &total,
        ));
        let header = [
            "NODE",
            "STATE",
            "CONNECTIONS",
            "ACCEPTED/s",
            "REQUESTS/s",
            "ERRORS/s",
            "SENT/s",
            "RECEIVED/s",
            "HANDED OFF/s",
        ];
        let named = match alerts.len() {
            0 => String::new(),
            n => format!("alerts: {n}; `prism ctl status` lists them\n"),
        };
        let head = headline(state, &alerts, paint);
        let table = table(paint, header, &all);
        let servers = match servers::shown(state, paint) {
            servers if servers.is_empty() => servers,
            servers => format!("{servers}\n"),
        };
        Ok(format!("{head}{named}\n{servers}{table}\n"))
    }
}

fn sum(mut all: Rates, node: Rates) -> Rates {
    for (name, rate) in node {
        *all.entry(name).or_default() += rate;
    }
    all
}

fn cells(name: Cell, state: Cell, connections: u64, rates: &Option<Rates>) -> [Cell; 9] {
    let shown = |of: &str, as_text: fn(f64) -> String| {
        let rate = rates.as_ref().and_then(|rates| rates.get(of).copied());
        number(rate.map_or_else(|| "-".into(), as_text))
    };
    [
        name,
        state,
        number(count(connections)),
        shown("accepted", rate),
        shown("requests", rate),
        shown("errors", rate),
        shown("sent_bytes", bytes),
        shown("received_bytes", bytes),
        shown("handed_off", rate),
    ]
}

/// Events in a second; the few with a digit behind the point.
fn rate(rate: f64) -> String {
    match rate {
        0.0 => "0".to_owned(),
        ..9.95 => format!("{rate:.1}"),
        _ => count(rate.round() as u64),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use super::*;

    #[test]
    fn a_process_that_was_started_meanwhile_has_no_rates() {
        let look = |time_ms, uptime_s, requests| Counters {
            time_ms,
            uptime_s,
            counts: [("requests", requests); 6],
        };
        let before = look(1_000, 10, 100);
        let rates = look(3_000, 12, 150).rates_since(&before).unwrap();
        assert!((rates["requests"] - 25.0).abs() < 1e-9, "{rates:?}");
        for now in [
            look(3_000, 1, 150),
            look(3_000, 12, 99),
            look(1_000, 10, 100),
        ] {
            assert!(now.rates_since(&before).is_none());
        }
    }
}
