//! `prism ctl cluster recover`: the cluster's state made anew in etcd, where etcd has
//! lost it or has an old one. What is decided, and when, is `prism_cluster::recover`'s.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use prism_cluster::{Choice, NodeName, RecoverError, Recovery, Status, Verdict, recover};
use prism_config::Config;
use prism_etcd::{Change, Client, Condition};
use serde_json::{Value, json};

use super::run_async;
use prism_membership::Known;
use prism_membership::etcd::{Key, Keys, client, put_users};

/// Make the cluster's state anew, where etcd has lost it, from what the backends'
/// stores have noted of it. All backends have to run; none of them serves meanwhile. Does
/// nothing where writes that were answered might be lost, unless told which backend is
/// to be gone on without.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RecoverArgs {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/prism/prism.toml")]
    config: PathBuf,
    /// Go on without a backend that was in sync and whose store is lost or out of reach.
    /// WRITES THAT ONLY IT HAS ARE LOST. It is filled again when it comes back. May be
    /// given several times.
    #[arg(long, value_name = "NAME")]
    without: Vec<NodeName>,
    /// Where stores contradict each other: whose store is to be believed. WRITES THAT THE
    /// OTHERS HAVE ANSWERED ARE LOST.
    #[arg(long, value_name = "NAME")]
    of: Option<NodeName>,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: an object.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &RecoverArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    run_async(async {
        let (client, keys) = (client(&config)?, Keys::of(&config)?);
        let snapshot = client.read(keys.prefix()).await?;
        let known = Known::read(&keys, &snapshot, &Known::default());
        let present = known.state.as_ref().map(|(state, _)| state);
        let choice = Choice {
            of: args.of.clone(),
            without: args.without.iter().cloned().collect(),
            founding: fastrand::u64(1..),
        };
        let recovery = match recover(present, &known.said, &choice) {
            Ok(recovery) => recovery,
            Err(error) => return refuse(args, &error, &known, out),
        };
        let mut users = 0;
        if !args.dry_run {
            if known.users.is_empty() {
                users = put_users(&client, &keys, &config).await?;
            }
            put(&client, &keys, &known, &recovery).await?;
        }
        match args.json {
            true => writeln!(out, "{:#}", as_json(args, &recovery, users))?,
            false => print(args, &recovery, users, out)?,
        }
        Ok(())
    })
}

/// Puts the state there, if nothing has changed since it was decided.
async fn put(
    client: &Client,
    keys: &Keys,
    known: &Known,
    recovery: &Recovery,
) -> anyhow::Result<()> {
    let path = keys.path(&Key::State);
    let condition = match &known.state {
        Some((_, revision)) => Condition::At(path, *revision),
        None => Condition::Absent(path),
    };
    // A wish of before belongs to another time.
    let forget = Change::Delete(keys.path(&Key::Wish));
    let put = keys.put_state(&recovery.state)?;
    match client.change(&[condition], &[put, forget]).await?.done {
        true => Ok(()),
        false => bail!("the state has changed in etcd at this moment: nothing was done"),
    }
}

/// Says why nothing was done, and what can be.
fn refuse(
    args: &RecoverArgs,
    error: &RecoverError,
    known: &Known,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let heard: Vec<&str> = known.said.keys().map(NodeName::as_str).collect();
    if args.json {
        let doubts = match error {
            RecoverError::Unproven(doubts) => json!(doubts),
            _ => json!({}),
        };
        let said = json!({
            "recovered": false,
            "error": error.to_string(),
            "unproven": doubts,
            "heard": heard,
        });
        writeln!(out, "{said:#}")?;
        out.flush()?;
    }
    let heard = match heard.as_slice() {
        [] => "no store is heard of".to_owned(),
        heard => format!("heard of the stores of {}", heard.join(", ")),
    };
    let advice = match error {
        RecoverError::Unproven(doubts) => {
            let without = doubts.keys().map(|name| format!(" --without {name}"));
            format!(
                "start these backends, with the stores that they had, and try again. Only if their stores are lost for good: `prism ctl cluster recover{}` goes on without, and WRITES THAT ONLY THEY HAVE ARE LOST",
                without.collect::<String>()
            )
        }
        RecoverError::Foundings(_) => {
            "the cluster was founded anew meanwhile, and has gone on by that: say with `--of NAME` whose store is to be believed. WRITES THAT THE OTHERS HAVE ANSWERED ARE LOST".into()
        }
        RecoverError::NothingSaid | RecoverError::NotHeard(_) => {
            "backends say so a moment after they were started".into()
        }
        _ => return Err(error.clone().into()),
    };
    Err(error.clone()).with_context(|| format!("nothing was done ({heard}); {advice}"))
}

fn why(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::InSync => "it was in sync, and has the store that it had",
        Verdict::Behind => "it had missed writes: it is brought up to date before it is read",
        Verdict::LeftOut => {
            "gone on without, as told: it is filled from the others when it is back"
        }
    }
}

fn word(status: Option<Status>) -> &'static str {
    match status {
        Some(Status::InSync) => "in-sync",
        Some(Status::Lagging) => "lagging",
        Some(Status::Out) => "out",
        None => "-",
    }
}

fn loses(args: &RecoverArgs) -> bool {
    !args.without.is_empty() || args.of.is_some()
}

fn as_json(args: &RecoverArgs, recovery: &Recovery, users: usize) -> Value {
    let backends: BTreeMap<&str, Value> = recovery
        .verdicts
        .iter()
        .map(|(name, verdict)| {
            let status = word(recovery.state.status(name.as_str()));
            let told = json!({"status": status, "verdict": verdict, "why": why(*verdict)});
            (name.as_str(), told)
        })
        .collect();
    json!({
        "recovered": !args.dry_run,
        "noted_by": recovery.of,
        "from_epoch": recovery.from_epoch,
        "epoch": recovery.state.epoch,
        "writes_may_be_lost": loses(args),
        "users_of_the_file": users,
        "backends": backends,
    })
}

fn print(
    args: &RecoverArgs,
    recovery: &Recovery,
    users: usize,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let (of, from, epoch) = (&recovery.of, recovery.from_epoch, recovery.state.epoch);
    for (name, verdict) in &recovery.verdicts {
        let status = word(recovery.state.status(name.as_str()));
        writeln!(out, "{:<16} {status:<8} {}", name.as_str(), why(*verdict))?;
    }
    if !loses(args) {
        writeln!(out, "every write that was answered is there")?;
    }
    let goes_on = match args.dry_run {
        true => "would go on",
        false => "goes on",
    };
    writeln!(
        out,
        "the state of epoch {from}, which {of} has noted, {goes_on} in epoch {epoch}"
    )?;
    if users > 0 {
        writeln!(out, "users were written to etcd from the file: {users}")?;
    }
    Ok(())
}
