//! `prism ctl switch rotate-key` and `node-key`: the secret of the nodes' keys, and the files of
//! those keys.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use prism_config::{Config, ControlSecret, MAX_SECRETS, with_name, write_private};
use prism_figures::{SecretInUse, ServiceKeys};

use crate::reach::Common;
use crate::switch::{Answer, ask_all, known};

/// The longest wait for the agent to take a secret.
const AGENT_WITHIN: Duration = Duration::from_secs(5);
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The options of `rotate-key`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct RotateArgs {
    /// Directory for the nodes' new key files; it is made if it is not there.
    #[arg(long, value_name = "DIR", required_unless_present = "finish")]
    out: Option<PathBuf>,
    /// Remove the old secret. Refused while a node uses a key of it.
    #[arg(long, conflicts_with = "out")]
    finish: bool,
    /// Finish although nodes use keys of the old secret. Their commands are refused from then on.
    #[arg(long, requires = "finish")]
    force: bool,
}

/// The options of `node-key`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct NodeKeyArgs {
    /// Directory for the files; it is made if it is not there.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Names of the nodes [default: all nodes of the configuration]
    #[arg(value_name = "NODE")]
    nodes: Vec<String>,
}

/// A service, and its secrets.
struct OfService {
    part: Config,
    switch: prism_config::Switch,
    secrets: Vec<ControlSecret>,
}

impl OfService {
    fn all(common: &Common) -> anyhow::Result<Vec<Self>> {
        let parts = common.parts()?.into_iter();
        let all = parts.map(|part| {
            let switch = part.switch.clone();
            let switch = switch.with_context(|| {
                format!("{} has no section [switch]; add it", part.shown_file())
            })?;
            let secrets = switch.load_secrets()?;
            anyhow::Ok(Self {
                part,
                switch,
                secrets,
            })
        });
        all.collect()
    }

    fn store(&self) -> anyhow::Result<()> {
        let file = self.switch.key_file.display();
        let stored = self.switch.store_secrets(&self.secrets);
        stored.with_context(|| format!("cannot write {file}"))
    }

    fn newest(&self) -> anyhow::Result<&ControlSecret> {
        let newest = self.secrets.first().context("there is no secret")?;
        if matches!(newest, ControlSecret::Shared(_)) {
            bail!(
                "{} has a key that all nodes share; make a secret with \
                 `prism ctl switch rotate-key`",
                self.switch.key_file.display()
            );
        }
        Ok(newest)
    }

    /// Writes the files of these nodes, and returns how many.
    fn write_files(&self, dir: &Path, nodes: &BTreeSet<String>) -> anyhow::Result<usize> {
        let newest = self.newest()?;
        let dir = if self.part.is_of_several() {
            dir.join(&self.part.service.name)
        } else {
            dir.to_owned()
        };
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir);
        made.with_context(|| format!("cannot make {}", dir.display()))?;
        let base = self.switch.key_file.file_name().unwrap_or_default();
        let is_of_service = |name: &&String| {
            let node = self.part.node_of_file(name);
            node.is_none() || self.part.node(name).is_some()
        };
        let mut count = 0;
        for name in nodes.iter().filter(is_of_service) {
            if name.contains('/') {
                bail!("{name:?} is no name of a node");
            }
            let file = with_name(&dir.join(base), name);
            let text = newest.key_of(name, self.switch.key_id).file(name);
            let written = write_private(&file, &text);
            written.with_context(|| format!("cannot write {}", file.display()))?;
            count += 1;
        }
        Ok(count)
    }
}

pub(crate) fn issue(
    args: &NodeKeyArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    for service in OfService::all(common)? {
        let of_file = service.part.nodes.iter().map(|node| node.name.clone());
        let nodes = if args.nodes.is_empty() {
            of_file.collect()
        } else {
            args.nodes.iter().cloned().collect()
        };
        let count = service.write_files(&args.out, &nodes)?;
        told(out, &args.out, count)?;
    }
    Ok(())
}

fn told(out: &mut impl Write, dir: &Path, count: usize) -> anyhow::Result<()> {
    let dir = dir.display();
    writeln!(
        out,
        "{dir}: the keys of {count} nodes; install each on its node beside switch.key_file, and \
         remove {dir}"
    )?;
    Ok(())
}

pub(crate) fn rotate(
    args: &RotateArgs,
    common: &Common,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let services = OfService::all(common)?;
    match &args.out {
        Some(dir) => begin(services, dir, out),
        None => finish(services, args.force, out),
    }
}

fn begin(mut services: Vec<OfService>, dir: &Path, out: &mut impl Write) -> anyhow::Result<()> {
    for service in &services {
        if service.secrets.len() >= MAX_SECRETS {
            let file = service.switch.key_file.display();
            bail!("{file} has two secrets already; run `rotate-key --finish` first");
        }
    }
    for service in &mut services {
        let new = ControlSecret::random().context("the kernel gives no random numbers")?;
        service.secrets.insert(0, new);
        service.store()?;
    }
    let mut nodes = BTreeSet::new();
    for service in &services {
        let of_file = service.part.nodes.iter().map(|node| node.name.clone());
        nodes.extend(of_file);
    }
    if let Some(first) = services.first() {
        nodes.extend(await_agent(&first.part, &services)?);
    }
    let mut count = 0;
    for service in &services {
        count += service.write_files(dir, &nodes)?;
    }
    told(out, dir, count)?;
    if services
        .iter()
        .any(|service| !service.switch.hosts.is_empty())
    {
        writeln!(
            out,
            "before that, copy switch.key_file to the other switch of the pair"
        )?;
    }
    writeln!(out, "then run `prism ctl switch rotate-key --finish`")?;
    Ok(())
}

/// Waits until an agent uses the newest secret of each service. Returns the nodes that it knows.
fn await_agent(config: &Config, services: &[OfService]) -> anyhow::Result<Vec<String>> {
    let deadline = Instant::now() + AGENT_WITHIN;
    let newest = services.iter().map(|service| {
        let id = service.secrets.first().map(ControlSecret::fingerprint);
        (service.part.service.name.clone(), id.unwrap_or_default())
    });
    let newest: Vec<_> = newest.collect();
    loop {
        let answers = ask_all(config)?;
        for switch in known(&answers) {
            let uses = |(service, id): &(String, String)| {
                let keys = switch.keys.iter().find(|keys| keys.service == *service);
                let first = keys.and_then(|keys| keys.secrets.first());
                first.is_some_and(|first| first.id == *id)
            };
            if newest.iter().all(uses) {
                return Ok(switch.nodes.iter().map(|node| node.name.clone()).collect());
            }
        }
        if Instant::now() > deadline {
            bail!(
                "the secret is written, but no agent of the switch has taken it; look at its log, \
                 and then write the nodes' keys with `prism ctl switch node-key`"
            );
        }
        std::thread::sleep(ASK_EVERY);
    }
}

fn finish(mut services: Vec<OfService>, force: bool, out: &mut impl Write) -> anyhow::Result<()> {
    if services.iter().all(|service| service.secrets.len() < 2) {
        bail!("there is one secret only; `rotate-key --out DIR` adds another one");
    }
    if !force {
        let answers = match services.first() {
            Some(first) => ask_all(&first.part)?,
            None => Vec::new(),
        };
        let left = left_behind(&answers)?;
        if !left.is_empty() {
            bail!(
                "{} still use a key of the old secret; install their new ones, or use --force",
                left.into_iter().collect::<Vec<_>>().join(", ")
            );
        }
    }
    for service in &mut services {
        service.secrets.truncate(1);
        service.store()?;
        let file = service.switch.key_file.display();
        writeln!(out, "{file}: without the old secret")?;
    }
    Ok(())
}

/// The nodes whose lease is by a key of an old secret.
fn left_behind(answers: &[(String, Answer)]) -> anyhow::Result<BTreeSet<String>> {
    let active: Vec<_> = known(answers).filter(|switch| switch.active).collect();
    if active.is_empty() {
        bail!("no active switch answers, so it is not known which keys are in use; use --force");
    }
    let keys = active.iter().flat_map(|switch| &switch.keys);
    let old = keys.flat_map(|keys| keys.secrets.iter().skip(1));
    Ok(old.flat_map(|old| old.nodes.iter().cloned()).collect())
}

/// The lines of `status` about secrets that are being replaced.
pub(crate) fn during_rotation(answers: &[(String, Answer)]) -> String {
    let mut lines = String::new();
    for (name, answer) in answers {
        let Ok((switch, _)) = answer else { continue };
        for ServiceKeys { service, secrets } in &switch.keys {
            let [new, old] = secrets.as_slice() else {
                continue;
            };
            let uses = |secret: &SecretInUse| (secret.nodes.len(), secret.id.clone());
            let ((new, new_id), (old, old_id)) = (uses(new), uses(old));
            // Writing to a String cannot fail.
            let _ = writeln!(
                lines,
                "{name} {service}: two secrets; {new} nodes use {new_id}, {old} nodes {old_id}"
            );
        }
    }
    lines
}
