//! `prism ctl switch`: the switches of a cluster, each as its own agent sees it.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, bail};
use prism_config::Config;
use prism_figures::{State, SwitchState};
use prism_process::fetch;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::reach::{Common, print_json};
use crate::state_sources::StateSources;
use crate::switch_keys::{self, NodeKeyArgs, RotateArgs};
use crate::table::{Cell, Paint, Tone, count, number, table, text, toned};

/// Show the switch, or both of a pair.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct SwitchArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Command {
    /// Show each switch: its role, its term, flows, and the nodes with a lease.
    ///
    /// LAG is the number of flows that the standby of a pair is not known to have, by the nodes
    /// that answer at their admin socket or at `admin.listen`.
    ///
    /// The agents are asked at `admin.switch_listen`; one on loopback answers on its own host
    /// only. Exits with status 1 unless one switch is active and knows all flows.
    Status,
    /// Replace the secret of the nodes' keys, without a failed hand-off.
    ///
    /// Run it on the host of the switch. The first call adds a secret, which the agent takes at
    /// once, and writes the nodes' new keys to --out. Install each beside `switch.key_file` of its
    /// node; nodes read it within a second. The second call, with --finish, removes the old secret.
    RotateKey(RotateArgs),
    /// Write the key files of nodes, as a first installation and new nodes need them.
    NodeKey(NodeKeyArgs),
}

/// A switch, and the addresses at which its agent may answer.
struct AskedSwitch {
    name: String,
    at: Vec<SocketAddr>,
}

/// The answer of an agent, or the reason why there is none.
pub(crate) type Answer = anyhow::Result<(SwitchState, Value)>;

/// The switches, and the flows that the standby is not known to have.
struct SwitchReport {
    answers: Vec<(String, Answer)>,
    lag: Option<u64>,
}

pub(crate) fn run(args: &SwitchArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    match &args.command {
        Command::Status => status(common, out),
        Command::RotateKey(args) => switch_keys::rotate(args, common, out),
        Command::NodeKey(args) => switch_keys::issue(args, common, out),
    }
}

/// The answers of all switches that may answer here.
pub(crate) fn ask_all(config: &Config) -> anyhow::Result<Vec<(String, Answer)>> {
    let runtime = prism_common::runtime()?;
    let asked = hosts(config)?.into_iter().map(|host| {
        let answer = runtime.block_on(ask(&host.at));
        (host.name, answer)
    });
    Ok(asked.collect())
}

/// The switches that have answered.
pub(crate) fn known(answers: &[(String, Answer)]) -> impl Iterator<Item = &SwitchState> {
    let known = answers
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().ok());
    known.map(|(switch, _)| switch)
}

fn status(common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let config = common.load()?;
    let answers = ask_all(&config)?;
    let is_pair = config.switch.as_ref().is_some_and(|s| !s.hosts.is_empty());
    let lag = if is_pair {
        prism_common::runtime()?.block_on(lag(&config))
    } else {
        None
    };
    let report = SwitchReport { answers, lag };
    if common.json {
        print_json(out, &document(&report))?
    } else {
        out.write_all(shown(&report, Paint::of_stdout()).as_bytes())?
    }
    let known = known(&report.answers);
    let active: Vec<&SwitchState> = known.filter(|switch| switch.active).collect();
    match active.as_slice() {
        [switch] if switch.nodes_awaited == 0 => Ok(()),
        [switch] => bail!(
            "the flows of {} nodes are not known yet",
            switch.nodes_awaited
        ),
        [] => bail!("no active switch answers"),
        _ => bail!("two switches are active: look at their links and at keepalived"),
    }
}

/// The switches that may answer here.
fn hosts(config: &Config) -> anyhow::Result<Vec<AskedSwitch>> {
    let file = config.shown_file();
    let switch = config.switch.as_ref();
    let switch = switch.with_context(|| format!("{file} has no section [switch]; add it"))?;
    let listen = config.admin.switch_listen;
    let listen = listen.with_context(|| format!("admin.switch_listen is off in {file}; set it"))?;
    let at = |ip: IpAddr| SocketAddr::new(ip, listen.port());
    let pair = switch.hosts.iter().map(|host| AskedSwitch {
        name: host.name.clone(),
        at: host.address.iter().map(at).collect(),
    });
    let name = match listen.ip().is_unspecified() {
        true if !switch.hosts.is_empty() => return Ok(pair.collect()),
        true => "switch".into(),
        false => "this host".into(),
    };
    let at = config.switch_pages();
    Ok(vec![AskedSwitch { name, at }])
}

async fn ask(addresses: &[SocketAddr]) -> Answer {
    let mut fault = None;
    for address in addresses {
        match fetch(*address, "/state").await {
            Ok(document) => {
                let switch = State::deserialize(&document)?.switch;
                let switch = switch.with_context(|| format!("{address} is no switch"))?;
                return Ok((switch, document.get("switch").cloned().unwrap_or_default()));
            }
            Err(error) => fault = Some(error),
        }
    }
    Err(fault.context("it has no address")?.into())
}

/// The flows that the standby is not known to have; `None` if no node answers.
async fn lag(config: &Config) -> Option<u64> {
    let (state, _) = StateSources::of(config).state().await.ok()?;
    let known = state.nodes.iter().filter(|node| node.error.is_none());
    known.map(|node| node.flows_uncopied).reduce(|a, b| a + b)
}

impl SwitchReport {
    /// The lag of this switch, if it is a standby.
    fn lag_of(&self, switch: &SwitchState) -> Option<u64> {
        self.lag.filter(|_| !switch.active)
    }
}

fn document(report: &SwitchReport) -> Value {
    let all = report.answers.iter().map(|(name, answer)| match answer {
        Ok((switch, figures)) => {
            let lag = report.lag_of(switch);
            json!({ "name": name, "switch": figures, "lag": lag, "error": null })
        }
        Err(error) => json!({ "name": name, "switch": null, "error": format!("{error:#}") }),
    });
    all.collect()
}

fn shown(report: &SwitchReport, paint: Paint) -> String {
    let header = [
        "SWITCH", "ROLE", "TERM", "FLOWS", "LAG", "LEASES", "AWAITED",
    ];
    let rows = report.answers.iter().map(|(name, answer)| match answer {
        Ok((switch, _)) => {
            let name = switch.host.as_ref().unwrap_or(name);
            row(name, switch, report.lag_of(switch))
        }
        Err(error) => {
            let none = || number("-");
            let fault = toned(format!("no answer: {error:#}"), Tone::Critical);
            [text(name), fault, none(), none(), none(), none(), none()]
        }
    });
    let rows: Vec<_> = rows.collect();
    table(paint, header, &rows) + &switch_keys::during_rotation(&report.answers)
}

fn row(name: &str, switch: &SwitchState, lag: Option<u64>) -> [Cell; 7] {
    let shown = |figure: Option<u64>| number(figure.map_or_else(|| "-".to_owned(), count));
    let role = match (switch.active, switch.nodes_awaited) {
        (true, 0) => toned("active", Tone::Good),
        (true, _) => toned("active, learns its flows", Tone::Warning),
        (false, _) => text("standby"),
    };
    let up = switch.nodes.iter().filter(|node| node.up).count();
    [
        text(name),
        role,
        number(switch.term.to_string()),
        shown(switch.flows),
        shown(lag),
        number(format!("{up} of {}", switch.nodes.len())),
        number(switch.nodes_awaited.to_string()),
    ]
}
