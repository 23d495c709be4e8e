//! `prism ctl drain` and `prism ctl rebalance`: set the backends that hold keys. The command
//! writes the wish to etcd, and the backends reach it step by step. `placings` has the rules by
//! which a command derives its wish.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_cluster::{NodeName, Phase, Placing, State, Status};
use prism_figures::ClusterState;
use prism_membership::ClusterRecords;
use prism_membership::etcd::Key;
use prism_process::ask;
use serde_json::json;

use crate::placings::{self, names};
use crate::progress::{Pace, Progress};
use crate::reach::{Common, Etcd, print_json};
use crate::table::bytes;

/// Most tries to write a wish while the cluster's steps change its state.
const MAX_TRIES: u32 = 5;
/// Time between two looks at the progress.
const POLL: Duration = Duration::from_millis(500);
/// The longest silence of etcd that a waiting command outlasts.
const MAX_SILENCE: Duration = Duration::from_secs(30);

/// Move all data off a backend so that it can be shut down.
///
/// Reads and writes go on while its keys are copied to other backends. A drain or rebalance
/// that is under way goes on as well, with this backend drained. It needs a cluster whose
/// state is in etcd.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct DrainArgs {
    /// Name of the backend.
    name: String,
    #[command(flatten)]
    waiting: Waiting,
}

/// Give every backend that runs its share of the keys.
///
/// Run it after a backend was added, or to change the number of replicas. A backend that
/// does not run stays a member; `prism ctl drain` moves its keys to others. A drain under
/// way ends if its backend still runs. It needs a cluster whose state is in etcd.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RebalanceArgs {
    /// New number of replicas of each object. Default: as many as before.
    #[arg(long, value_name = "N")]
    replicas: Option<u16>,
    #[command(flatten)]
    waiting: Waiting,
}

#[derive(clap::Args, Clone, Debug)]
struct Waiting {
    /// Wait until all keys are copied, and print the progress. Fails if another drain or
    /// rebalance replaces this one meanwhile.
    #[arg(long)]
    wait: bool,
}

pub(crate) fn drain(args: &DrainArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    let name = NodeName::new(&args.name)?;
    wish(common, args.waiting.wait, out, |known, state| {
        placings::without(&name, known, state)
    })
}

pub(crate) fn rebalance(
    args: &RebalanceArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    wish(common, args.waiting.wait, out, |known, state| {
        placings::with_all(args.replicas, known, state)
    })
}

fn wish(
    common: &Common,
    waits: bool,
    out: &mut impl Write,
    make: impl Fn(&ClusterRecords, &State) -> anyhow::Result<Placing>,
) -> anyhow::Result<()> {
    common.with_etcd(async |etcd| {
        let Written { wish, away } = write(etcd, make).await?;
        if !common.json {
            print(&wish, &away, out)?;
            out.flush()?;
        }
        let epoch = if waits {
            Some(wait(etcd, &wish).await?)
        } else {
            None
        };
        let Placing { members, replicas } = wish;
        match (common.json, epoch) {
            (true, _) => print_json(
                out,
                &json!({
                    "members": members,
                    "replicas": replicas,
                    "not_running": away,
                    "reached_in_epoch": epoch,
                }),
            ),
            (false, Some(epoch)) => Ok(writeln!(out, "epoch {epoch}: nothing moves")?),
            (false, None) => Ok(()),
        }
    })
}

/// A wish that is in etcd.
struct Written {
    wish: Placing,
    /// The members that do not run.
    away: Vec<NodeName>,
}

/// Writes the wish that `make` derives from the state and the wish in etcd, if both are unchanged.
/// After a step of the cluster, which changes the state, the wish is derived again. After a change
/// of the wish by another command it is not, because the two operators may not agree.
async fn write(
    etcd: &Etcd,
    make: impl Fn(&ClusterRecords, &State) -> anyhow::Result<Placing>,
) -> anyhow::Result<Written> {
    let mut last: Option<(Placing, Placing)> = None;
    for _ in 0..MAX_TRIES {
        let (known, snapshot) = etcd.known_with_revisions().await?;
        let state = known.state.as_ref().map(|(state, _)| state);
        let state = state.context("etcd has no state of this cluster")?;
        let found = placings::target(&known, state);
        if let Some((target, wish)) = &last
            && target != found
            && wish != found
        {
            bail!(
                "another command came first: {} ({}). Nothing was done; run this again if it is \
                 still right",
                placings::difference(target, found),
                summary(found),
            );
        }
        let wish = make(&known, state)?;
        let unchanged = [Key::Wish, Key::State].map(|key| etcd.unchanged(&snapshot, &key));
        let put = etcd.ledger.keys.put(&Key::Wish, &wish)?;
        let subject = summary(&wish);
        let change = etcd.change("placing", &subject, &unchanged, std::slice::from_ref(&put));
        if change.await? {
            let away = placings::away(&wish, &known).into_iter().cloned().collect();
            return Ok(Written { wish, away });
        }
        last = Some((found.clone(), wish));
    }
    bail!(
        "the state in etcd has changed {MAX_TRIES} times meanwhile, and nothing was done; try again"
    )
}

fn print(wish: &Placing, away: &[NodeName], out: &mut impl Write) -> std::io::Result<()> {
    let members = names(&wish.members);
    let replicas = wish.replicas;
    writeln!(
        out,
        "to hold keys: {members}; replicas of each object: {replicas}"
    )?;
    if !away.is_empty() {
        writeln!(
            out,
            "not running now: {}; `prism ctl drain NAME` moves the keys of one that does not return",
            names(away)
        )?;
    }
    Ok(())
}

fn summary(placing: &Placing) -> String {
    let members = names(&placing.members);
    format!("members {members}; replicas {}", placing.replicas)
}

/// Prints each change of the progress, until the cluster has reached the wish. Returns the epoch.
/// A silence of etcd of at most [`MAX_SILENCE`] is no error: the cluster goes on by itself.
async fn wait(etcd: &Etcd, wish: &Placing) -> anyhow::Result<u64> {
    let mut shown = Progress::new();
    let mut copying = Copying::default();
    let mut heard = Instant::now();
    loop {
        let known = match etcd.known().await {
            Ok(known) => known,
            Err(error) if heard.elapsed() < MAX_SILENCE => {
                shown.show(&format!("etcd does not answer: {error:#}"), "");
                tokio::time::sleep(POLL).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        heard = Instant::now();
        let state = known.state.as_ref().map(|(state, _)| state);
        let state = state.context("etcd has lost the state of this cluster")?;
        check_wish(wish, known.wish.as_ref())?;
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

/// Checks that the wish in etcd is still this command's.
fn check_wish(own: &Placing, found: Option<&Placing>) -> anyhow::Result<()> {
    match found {
        Some(found) if found == own => Ok(()),
        Some(found) => bail!(
            "another command has replaced this change: {} ({})",
            placings::difference(own, found),
            summary(found),
        ),
        None => bail!("the cluster was recovered meanwhile, which has ended this change"),
    }
}

/// The work of backends that catch up, as a node of this host sees it.
#[derive(Default)]
struct Copying {
    parts: Pace,
    bytes: Pace,
}

impl Copying {
    /// The parts that are done, the rate and the time left; empty where no node runs on this host.
    fn details(&mut self, etcd: &Etcd) -> String {
        let here = etcd.config.sockets_here();
        let mut answers = here.filter_map(|socket| ask::<ClusterState>(&socket, "cluster").ok());
        let Some((cluster, _)) = answers.next() else {
            return String::new();
        };
        let reports = cluster.backends.into_iter();
        let reports = reports.filter_map(|backend| backend.catching_up);
        let mut all = 0;
        let mut done = 0;
        let mut fetched = 0;
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

fn progress(known: &ClusterRecords, state: &State) -> String {
    match &state.phase {
        Phase::Settled => {
            let new = known
                .wish
                .iter()
                .flat_map(|wish| placings::away(wish, known));
            let new: Vec<_> = new
                .filter(|name| !state.backends.contains_key(*name))
                .collect();
            match new.as_slice() {
                [] => "nothing moves".into(),
                new => format!(
                    "these new backends do not run: {}",
                    names(new.iter().copied())
                ),
            }
        }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn a_command_that_waits_fails_when_its_wish_is_replaced_and_names_the_other_one() {
        let placing = |members: &[&str]| {
            let members = members.iter().map(|name| name.parse().unwrap());
            Placing::new(members, 1).unwrap()
        };
        let own = placing(&["b", "c"]);
        assert!(check_wish(&own, Some(&own)).is_ok());
        let replaced = check_wish(&own, Some(&placing(&["c"])));
        assert_eq!(
            replaced.unwrap_err().to_string(),
            "another command has replaced this change: it drains b (members c; replicas 1)"
        );
        let taken_back = check_wish(&own, Some(&placing(&["a", "b", "c"])));
        let error = taken_back.unwrap_err().to_string();
        assert!(error.contains("it gives keys to a"), "{error}");
        let recovered = check_wish(&own, None).unwrap_err().to_string();
        assert!(recovered.contains("was recovered"), "{recovered}");
    }
}
