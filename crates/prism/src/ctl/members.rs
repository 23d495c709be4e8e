//! `prism ctl drain` and `prism ctl rebalance`: set the backends that hold keys. The command
//! writes the wish to etcd, and the backends reach it step by step.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_cluster::{NodeName, Phase, Placing, State, Status};
use prism_membership::Known;
use prism_membership::etcd::Key;
use prism_replicas::ProgressReport;
use serde::Deserialize;
use serde_json::json;

use super::progress::{Pace, Progress};
use super::reach::{Common, Etcd, ask, print_json};
use super::table::bytes;

/// Time between two looks at the progress.
const POLL: Duration = Duration::from_millis(500);

/// Move all data off a backend so that it can be shut down.
///
/// Reads and writes go on while its keys are copied to other backends. It needs a cluster
/// whose state is in etcd.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainArgs {
    /// Name of the backend.
    name: String,
    #[command(flatten)]
    waiting: Waiting,
}

/// Give every backend that runs its share of the keys.
///
/// Run it after a backend was added, or to change the number of replicas. It needs a
/// cluster whose state is in etcd.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RebalanceArgs {
    /// New number of replicas of each object. Default: as many as now.
    #[arg(long, value_name = "N")]
    replicas: Option<u16>,
    #[command(flatten)]
    waiting: Waiting,
}

#[derive(clap::Args, Clone, Debug)]
struct Waiting {
    /// Wait until all keys are copied, and print the progress.
    #[arg(long)]
    wait: bool,
}

pub(super) fn drain(args: &DrainArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let name = NodeName::new(&args.name)?;
    wish(common, args.waiting.wait, out, |known, state| {
        let mut wish = known.wish.clone().unwrap_or_else(|| state.placing.clone());
        if !wish.members.remove(&name) && !state.placing.members.contains(&name) {
            let members = names(state.placing.members.iter());
            bail!("{name} holds no keys; the backends with keys are {members}");
        }
        Ok(wish)
    })
}

pub(super) fn rebalance(
    args: &RebalanceArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    wish(common, args.waiting.wait, out, |known, state| {
        let members = known.living.keys().cloned().collect();
        Ok(Placing {
            members,
            replicas: args.replicas.unwrap_or(state.placing.replicas),
        })
    })
}

fn wish(
    common: &Common,
    waits: bool,
    out: &mut impl Write,
    make: impl Fn(&Known, &State) -> anyhow::Result<Placing>,
) -> anyhow::Result<()> {
    common.with_etcd(async |etcd| {
        let known = etcd.known().await?;
        let state = known.state.as_ref().map(|(state, _)| state);
        let state = state.context("etcd has no state of this cluster")?;
        let wish = make(&known, state)?;
        let wish = Placing::new(wish.members, wish.replicas)?;
        let put = etcd.keys.put(&Key::Wish, &wish)?;
        let members = names(wish.members.iter());
        let replicas = wish.replicas;
        let subject = format!("members {members}; replicas {replicas}");
        etcd.change("placing", &subject, &[], &[put]).await?;
        if !common.json {
            writeln!(
                out,
                "to hold keys: {members}; replicas of each object: {replicas}"
            )?;
            out.flush()?;
        }
        let epoch = match waits {
            true => Some(wait(etcd, &wish).await?),
            false => None,
        };
        match (common.json, epoch) {
            (true, _) => print_json(
                out,
                &json!({ "members": wish.members, "replicas": replicas, "reached_in_epoch": epoch }),
            ),
            (false, Some(epoch)) => Ok(writeln!(out, "epoch {epoch}: nothing moves")?),
            (false, None) => Ok(()),
        }
    })
}

/// Prints each change of the progress, until the cluster has reached the wish. Returns the epoch.
async fn wait(etcd: &Etcd, wish: &Placing) -> anyhow::Result<u64> {
    let (mut shown, mut copying) = (Progress::new(), Copying::default());
    loop {
        let known = etcd.known().await?;
        let state = known.state.as_ref().map(|(state, _)| state);
        let state = state.context("etcd has lost the state of this cluster")?;
        if known.wish.as_ref() != Some(wish) {
            bail!("another drain or rebalance has replaced this one");
        }
        let phase = format!("epoch {}: {}", state.epoch, progress(&known, state));
        let details = match state.phase {
            Phase::Filling { .. } => copying.details(etcd),
            _ => String::new(),
        };
        shown.show(&phase, &details);
        if state.phase == Phase::Settled && state.placing == *wish {
            return Ok(state.epoch);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The work of backends that catch up, as a node of this host sees it.
#[derive(Default)]
struct Copying {
    parts: Pace,
    bytes: Pace,
}

/// The fields of a node's survey that are looked at.
#[derive(Deserialize)]
struct Survey {
    backends: Vec<Copier>,
}

#[derive(Deserialize)]
struct Copier {
    catching_up: Option<ProgressReport>,
}

impl Copying {
    /// The parts that are done, the rate and the time left; empty where no node runs on this host.
    fn details(&mut self, etcd: &Etcd) -> String {
        let nodes = etcd.config.nodes.iter();
        let sockets = nodes.map(|node| etcd.config.admin_socket(&node.name));
        let here = sockets.filter(|socket| socket.exists());
        let mut answers = here.filter_map(|socket| ask::<Survey>(&socket, "cluster").ok());
        let Some((survey, _)) = answers.next() else {
            return String::new();
        };
        let reports = survey.backends.into_iter();
        let reports = reports.filter_map(|backend| backend.catching_up);
        let (mut all, mut done, mut fetched) = (0, 0, 0);
        for report in reports {
            fetched = report.fetched_bytes.saturating_add(fetched);
            if report.is_running {
                all = report.parts.saturating_add(all);
                done = report.parts_done.saturating_add(done);
            }
        }
        if all == 0 {
            return String::new();
        }
        let now = Instant::now();
        self.parts.note(now, done);
        self.bytes.note(now, fetched);
        let rate = self.bytes.rate().unwrap_or_default();
        let left = self.parts.left(all);
        format!("; {done} of {all} parts, {}/s{left}", bytes(rate))
    }
}

fn progress(known: &Known, state: &State) -> String {
    match &state.phase {
        Phase::Settled => "nothing moves".into(),
        Phase::Moved { .. } => "all keys are copied".into(),
        Phase::Filling { to, since } => {
            let waits = to.members.iter().filter(|name| {
                let living = known.living.get(*name);
                living.is_none_or(|living| living.report.caught_up < *since)
                    || state.status(name.as_str()) != Some(Status::InSync)
            });
            format!(
                "keys are being copied; these backends are not complete: {}",
                names(waits)
            )
        }
    }
}

fn names<'a>(names: impl Iterator<Item = &'a NodeName>) -> String {
    let names: Vec<&str> = names.map(NodeName::as_str).collect();
    match names.as_slice() {
        [] => "none".into(),
        names => names.join(", "),
    }
}
