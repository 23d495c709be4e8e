//! `prism ctl cluster recover`: restores the cluster's state and users in etcd after etcd has lost
//! them or has an older copy, and decides about stores that are other ones now.
//! `prism_cluster::recover` decides the new state. The backends in sync put buckets back
//! afterwards.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use prism_cluster::{Choice, Lineage, NodeName, RecoverError, Recovery, Status, Verdict, recover};
use prism_config::{Config, Credential, S3};
use prism_etcd::{Change, Condition};
use prism_membership::ClusterRecords;
use prism_membership::etcd::{CHANGES_AT_ONCE, Key, users_of_file};
use serde_json::{Value, json};

use crate::reach::{Common, Etcd};
use crate::recovered_users::RecoveredUsers;

/// Restore the cluster's state and users, which etcd has lost, from the backends' stores.
///
/// All backends have to run; none of them serves meanwhile. Run it also if etcd has an older
/// copy, and to decide about backends whose stores are other ones than the cluster knows. The
/// command changes nothing if answered writes might be lost, unless --without, --accept or --of
/// allows that. It tells first what the stores know, with --dry-run only that.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RecoverArgs {
    /// Leave out a backend that was in sync and whose store is lost or out of reach.
    /// WRITES THAT ONLY IT HAS ARE LOST. The other backends fill it when it returns. May
    /// be repeated.
    #[arg(long, value_name = "NAME")]
    without: Vec<NodeName>,
    /// Take the present store of a backend as the one that was in sync, although it is another
    /// one: empty, or put back from an older copy. WRITES THAT ONLY THE FORMER ONE HAS ARE LOST.
    /// May be repeated.
    #[arg(long, value_name = "NAME")]
    accept: Vec<NodeName>,
    /// Believe this backend's store where stores contradict each other. WRITES THAT THE
    /// OTHERS HAVE ANSWERED ARE LOST.
    #[arg(long, value_name = "NAME")]
    of: Option<NodeName>,
    /// Take the secrets of keys that etcd has lost from this file, which `prism ctl backup` has
    /// written. Default: s3.credentials_file, if etcd has no keys at all.
    #[arg(long, value_name = "FILE")]
    users: Option<PathBuf>,
    /// Print the result, and change nothing.
    #[arg(long)]
    dry_run: bool,
}

pub(crate) fn run(args: &RecoverArgs, common: &Common, out: &mut impl Write) -> anyhow::Result<()> {
    common.with_etcd(async |etcd| {
        let known = etcd.known().await?;
        let living = known.living.iter();
        let stores = living.map(|(name, living)| (name.clone(), living.report.store));
        let choice = Choice {
            of: args.of.clone(),
            without: args.without.iter().cloned().collect(),
            accepted: args.accept.iter().cloned().collect(),
            founding: fastrand::u64(1..),
        };
        let recovery = match recover(&known.contents(), &stores.collect(), &choice) {
            Ok(recovery) => recovery,
            Err(error) => return refuse(common, &error, &known, out),
        };
        let users = RecoveredUsers::find(
            args.users_of(&etcd.config, &known)?,
            &known,
            args.of.as_ref(),
        );
        if !common.json {
            print_findings(args, &recovery, &users, out)?;
        }
        if !args.dry_run {
            users.put(etcd).await?;
            put(etcd, &known, &recovery).await?;
        }
        if common.json {
            writeln!(out, "{:#}", as_json(args, &recovery, &users))?
        } else {
            print_outcome(args, &recovery, out)?
        }
        Ok(())
    })
}

impl RecoverArgs {
    /// The users whose secrets a file has.
    fn users_of(&self, config: &Config, known: &ClusterRecords) -> anyhow::Result<Vec<Credential>> {
        match &self.users {
            Some(file) => {
                let file = S3 {
                    credentials_file: file.clone(),
                    ..S3::default()
                };
                file.load_credentials().context("--users")
            }
            None if known.users.is_empty() => users_of_file(config),
            None => Ok(Vec::new()),
        }
    }
}

/// Writes the state to etcd, unless the state or the lineage there has changed since the
/// decision. The contents then descend from all that nodes have acted by.
async fn put(etcd: &Etcd, known: &ClusterRecords, recovery: &Recovery) -> anyhow::Result<()> {
    let keys = &etcd.ledger.keys;
    let unchanged = |key: Key<'_>, revision| Condition::unchanged(keys.path(&key), revision);
    let conditions = [
        unchanged(Key::State, known.state.as_ref().map(|(_, at)| *at)),
        unchanged(Key::Lineage, known.lineage.as_ref().map(|(_, at)| *at)),
    ];
    let lineage = known.lineage.as_ref().map(|(lineage, _)| lineage);
    let marks = known.claims.values().map(|claim| claim.mark);
    let lineage = Lineage::recovered(lineage, marks, fastrand::u64(1..));
    let mut changes = vec![
        keys.put(&Key::State, &recovery.state)?,
        keys.put(&Key::Lineage, &lineage)?,
        // A wish from before the recovery does not count.
        Change::Delete(keys.path(&Key::Wish)),
    ];
    // These put back the buckets, before any node reads the registry.
    let verdicts = recovery.verdicts.iter();
    let in_sync = verdicts.filter(|(_, verdict)| **verdict == Verdict::InSync);
    for (name, _) in in_sync.take(CHANGES_AT_ONCE) {
        changes.push(keys.put(&Key::Doubt(name.as_str()), &recovery.state.founding)?);
    }
    let subject = format!("epoch {}", recovery.state.epoch);
    let made = etcd
        .change_in_doubt("recover", &subject, &conditions, &changes)
        .await?;
    if made {
        Ok(())
    } else {
        bail!("the state in etcd has just changed, and nothing was done; try again")
    }
}

/// Reports why nothing was done, and the way out.
fn refuse(
    common: &Common,
    error: &RecoverError,
    known: &ClusterRecords,
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
                "start these backends with the stores that they had, and try again. If their stores are lost for good, `prism ctl cluster recover{}` leaves them out until the others have filled them, and WRITES THAT ONLY THEY HAVE ARE LOST. `--accept NAME` in place of `--without NAME` takes the present store of a backend as it is",
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
        Verdict::Accepted => "its present store counts as in sync, as told",
    }
}

/// The status of a backend in the recovered state.
fn word(recovery: &Recovery, name: &NodeName) -> &'static str {
    let status = recovery.state.status(name.as_str());
    let named = Status::ALL
        .into_iter()
        .find(|(one, _)| Some(*one) == status);
    named.map_or("-", |(_, word)| word)
}

fn loses(args: &RecoverArgs) -> bool {
    !args.without.is_empty() || !args.accept.is_empty() || args.of.is_some()
}

fn as_json(args: &RecoverArgs, recovery: &Recovery, users: &RecoveredUsers) -> Value {
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
        "users": users.as_json(),
        "backends": backends,
    })
}

/// Prints the findings, and the next steps.
fn print_findings(
    args: &RecoverArgs,
    recovery: &Recovery,
    users: &RecoveredUsers,
    out: &mut impl Write,
) -> std::io::Result<()> {
    for (name, verdict) in &recovery.verdicts {
        let status = word(recovery, name);
        writeln!(out, "{:<16} {status:<8} {}", name.as_str(), why(*verdict))?;
    }
    users.print(out)?;
    if !loses(args) {
        writeln!(out, "no answered write is lost")?;
    }
    out.flush()
}

fn print_outcome(
    args: &RecoverArgs,
    recovery: &Recovery,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let of = &recovery.of;
    let from = recovery.from_epoch;
    let epoch = recovery.state.epoch;
    let goes_on = if args.dry_run {
        "would go on"
    } else {
        "goes on"
    };
    writeln!(
        out,
        "the state of epoch {from}, which {of} has noted, {goes_on} in epoch {epoch}"
    )
}
