//! `prism ctl cluster recover`: restores the cluster's state in etcd after etcd has lost it
//! or has an old one. `prism_cluster::recover` decides the new state.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::{Context, bail};
use prism_cluster::{Choice, NodeName, RecoverError, Recovery, Status, Verdict, recover};
use prism_etcd::{Change, Condition};
use prism_membership::Known;
use prism_membership::etcd::{Key, put_users};
use serde_json::{Value, json};

use super::reach::{Common, Etcd};

/// Restore the cluster's state, which etcd has lost, from the backends' stores.
///
/// All backends have to run; none of them serves meanwhile. The command changes nothing
/// if answered writes might be lost, unless --without or --of allows that.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RecoverArgs {
    /// Leave out a backend that was in sync and whose store is lost or out of reach.
    /// WRITES THAT ONLY IT HAS ARE LOST. The other backends fill it when it returns. May
    /// be repeated.
    #[arg(long, value_name = "NAME")]
    without: Vec<NodeName>,
    /// Believe this backend's store where stores contradict each other. WRITES THAT THE
    /// OTHERS HAVE ANSWERED ARE LOST.
    #[arg(long, value_name = "NAME")]
    of: Option<NodeName>,
    /// Print the result, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(args: &RecoverArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    common.with_etcd(async |etcd| {
        let known = etcd.known().await?;
        let present = known.state.as_ref().map(|(state, _)| state);
        let choice = Choice {
            of: args.of.clone(),
            without: args.without.iter().cloned().collect(),
            founding: fastrand::u64(1..),
        };
        let recovery = match recover(present, &known.testimonies, &choice) {
            Ok(recovery) => recovery,
            Err(error) => return refuse(common, &error, &known, out),
        };
        let mut users = 0;
        if !args.dry_run {
            if known.users.is_empty() {
                users = put_users(&etcd.client, &etcd.keys, &etcd.config).await?;
            }
            put(etcd, &known, &recovery).await?;
        }
        match common.json {
            true => writeln!(out, "{:#}", as_json(args, &recovery, users))?,
            false => print(args, &recovery, users, out)?,
        }
        Ok(())
    })
}

/// Writes the state to etcd, unless the state there has changed since the decision.
async fn put(etcd: &Etcd, known: &Known, recovery: &Recovery) -> anyhow::Result<()> {
    let keys = &etcd.keys;
    let path = keys.path(&Key::State);
    let condition = match &known.state {
        Some((_, revision)) => Condition::At(path, *revision),
        None => Condition::Absent(path),
    };
    // A wish from before the recovery does not count.
    let forget = Change::Delete(keys.path(&Key::Wish));
    let put = keys.put(&Key::State, &recovery.state)?;
    let subject = format!("epoch {}", recovery.state.epoch);
    let made = etcd
        .change("recover", &subject, &[condition], &[put, forget])
        .await?;
    match made {
        true => Ok(()),
        false => bail!("the state in etcd has just changed, and nothing was done; try again"),
    }
}

/// Reports why nothing was done, and the way out.
fn refuse(
    common: &Common,
    error: &RecoverError,
    known: &Known,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let heard: Vec<&str> = known.testimonies.keys().map(NodeName::as_str).collect();
    if common.json {
        let unproven = match error {
            RecoverError::Unproven(doubts) => json!(doubts),
            _ => json!({}),
        };
        let error = error.to_string();
        let answer =
            json!({"recovered": false, "error": error, "unproven": unproven, "heard": heard});
        writeln!(out, "{answer:#}")?;
    }
    let heard = match heard.as_slice() {
        [] => "no store has reported".to_owned(),
        heard => format!("the stores of {} have reported", heard.join(", ")),
    };
    let advice = match error {
        RecoverError::Unproven(doubts) => {
            let without = doubts.keys().map(|name| format!(" --without {name}"));
            format!(
                "start these backends with the stores that they had, and try again. If their stores are lost for good, `prism ctl cluster recover{}` leaves them out, and WRITES THAT ONLY THEY HAVE ARE LOST",
                without.collect::<String>()
            )
        }
        RecoverError::Foundings(_) => {
            "the cluster was founded again meanwhile, and some backends have acted by that; name the backend whose store counts with `--of NAME`. WRITES THAT THE OTHERS HAVE ANSWERED ARE LOST".into()
        }
        RecoverError::NoTestimony | RecoverError::NotHeard(_) => {
            "stores report a moment after their backends have started; try again".into()
        }
        _ => return Err(error.clone().into()),
    };
    Err(error.clone()).with_context(|| format!("nothing was done ({heard}); {advice}"))
}

fn why(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::InSync => "it was in sync, and has the same store",
        Verdict::Behind => "it had missed writes, and catches up before it serves reads",
        Verdict::LeftOut => "it is left out, as told; the others fill it when it returns",
    }
}

/// The status of a backend in the recovered state.
fn word(recovery: &Recovery, name: &NodeName) -> &'static str {
    match recovery.state.status(name.as_str()) {
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
    let verdicts = recovery.verdicts.iter().map(|(name, verdict)| {
        let status = word(recovery, name);
        let told = json!({"status": status, "verdict": verdict, "why": why(*verdict)});
        (name.as_str(), told)
    });
    let backends: BTreeMap<&str, Value> = verdicts.collect();
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
        let status = word(recovery, name);
        writeln!(out, "{:<16} {status:<8} {}", name.as_str(), why(*verdict))?;
    }
    if !loses(args) {
        writeln!(out, "no answered write is lost")?;
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
        writeln!(out, "users written to etcd from the file: {users}")?;
    }
    Ok(())
}
