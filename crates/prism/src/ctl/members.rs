//! `prism ctl drain` and `prism ctl rebalance`: which backends are to hold keys. The
//! wish is written to etcd, and the backends see to it.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use prism_cluster::{NodeName, Phase, Placing, State, Status};
use prism_config::Config;
use prism_etcd::Client;

use super::run_async;
use prism_membership::Known;
use prism_membership::etcd::{Keys, client};

/// How often it is looked how far things are.
const POLL: Duration = Duration::from_millis(500);

/// Have a backend hold nothing any more, so that it can be switched off. Its keys
/// are copied to others first, while all of them are read and written.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct DrainArgs {
    /// Which backend.
    name: String,
    #[command(flatten)]
    common: Common,
}

/// Have all backends that run hold keys, each its share: after one was added, or to
/// change how many replicas there are.
#[derive(clap::Args, Clone, Debug)]
pub(super) struct RebalanceArgs {
    /// How many backends have each object from then on. Without: as many as now.
    #[arg(long, value_name = "N")]
    replicas: Option<u16>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args, Clone, Debug)]
struct Common {
    /// The cluster's configuration file.
    #[arg(long, value_name = "FILE", default_value = "/etc/prism/prism.toml")]
    config: PathBuf,
    /// Wait until it is done, and say how far it is.
    #[arg(long)]
    wait: bool,
}

pub(super) fn drain(args: &DrainArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let name = NodeName::new(&args.name)?;
    wish(&args.common, out, |known, state| {
        let mut wish = known.wish.clone().unwrap_or_else(|| state.placing.clone());
        if !wish.members.remove(&name) && !state.placing.members.contains(&name) {
            let members = names(state.placing.members.iter());
            bail!("{name} holds no keys; these do: {members}");
        }
        Ok(wish)
    })
}

pub(super) fn rebalance(args: &RebalanceArgs, out: &mut impl Write) -> anyhow::Result<()> {
    wish(&args.common, out, |known, state| {
        let members = known.living.keys().cloned().collect();
        Ok(Placing {
            members,
            replicas: args.replicas.unwrap_or(state.placing.replicas),
        })
    })
}

fn wish(
    args: &Common,
    out: &mut impl Write,
    make: impl Fn(&Known, &State) -> anyhow::Result<Placing>,
) -> anyhow::Result<()> {
    let config = Config::load(&args.config)?;
    run_async(async {
        let (client, keys) = (client(&config)?, Keys::of(&config)?);
        let known = look(&client, &keys).await?;
        let (state, _) = known
            .state
            .as_ref()
            .context("there is no such cluster in etcd")?;
        let wish = make(&known, state)?;
        let wish = Placing::new(wish.members, wish.replicas)?;
        client.change(&[], &[keys.put_wish(&wish)?]).await?;
        let members = names(wish.members.iter());
        let replicas = wish.replicas;
        writeln!(
            out,
            "to hold keys: {members}; replicas of each object: {replicas}"
        )?;
        out.flush()?;
        match args.wait {
            true => wait(&client, &keys, &wish, out).await,
            false => Ok(()),
        }
    })
}

/// Says what changes, until the wish has come true.
async fn wait(
    client: &Client,
    keys: &Keys,
    wish: &Placing,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let mut said = String::new();
    loop {
        let known = look(client, keys).await?;
        let (state, _) = known
            .state
            .as_ref()
            .context("the cluster's state is gone")?;
        if known.wish.as_ref() != Some(wish) {
            bail!("somebody wants something else by now");
        }
        let text = progress(&known, state);
        if text != said {
            writeln!(out, "epoch {}: {text}", state.epoch)?;
            out.flush()?;
            said = text;
        }
        if state.phase == Phase::Settled && state.placing == *wish {
            return Ok(());
        }
        tokio::time::sleep(POLL).await;
    }
}

fn progress(known: &Known, state: &State) -> String {
    match &state.phase {
        Phase::Settled => "nothing moves".into(),
        Phase::Moved { .. } => "all is where it is to be".into(),
        Phase::Filling { to, since } => {
            let waits = to.members.iter().filter(|name| {
                let living = known.living.get(*name);
                living.is_none_or(|living| living.report.caught_up < *since)
                    || state.status(name.as_str()) != Some(Status::InSync)
            });
            format!("being copied; not there yet: {}", names(waits))
        }
    }
}

async fn look(client: &Client, keys: &Keys) -> anyhow::Result<Known> {
    let snapshot = client.read(keys.prefix()).await?;
    Ok(Known::read(keys, &snapshot, &Known::default()))
}

fn names<'a>(names: impl Iterator<Item = &'a NodeName>) -> String {
    let names: Vec<&str> = names.map(NodeName::as_str).collect();
    match names.as_slice() {
        [] => "nobody".into(),
        names => names.join(", "),
    }
}
