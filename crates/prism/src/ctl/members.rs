//! `prism ctl drain` and `prism ctl rebalance`: set the backends that hold keys. The command
//! writes the wish to etcd, and the backends reach it step by step.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_cluster::{NodeName, Phase, Placing, State, Status};
use prism_membership::Known;
use prism_membership::etcd::Key;
use serde_json::json;

use super::reach::{Common, Etcd, print_json};

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
    wish((common, args.waiting.wait), out, |known, state| {
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
    wish((common, args.waiting.wait), out, |known, state| {
        let members = known.living.keys().cloned().collect();
        Ok(Placing {
            members,
            replicas: args.replicas.unwrap_or(state.placing.replicas),
        })
    })
}

fn wish(
    (common, waits): (&Common, bool),
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
    let mut printed = String::new();
    loop {
        let known = etcd.known().await?;
        let state = known.state.as_ref().map(|(state, _)| state);
        let state = state.context("etcd has lost the state of this cluster")?;
        if known.wish.as_ref() != Some(wish) {
            bail!("another drain or rebalance has replaced this one");
        }
        let text = progress(&known, state);
        if text != printed {
            eprintln!("epoch {}: {text}", state.epoch);
            printed = text;
        }
        if state.phase == Phase::Settled && state.placing == *wish {
            return Ok(state.epoch);
        }
        tokio::time::sleep(POLL).await;
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
