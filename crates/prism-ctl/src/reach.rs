//! The ways from the configuration file to the cluster: the admin sockets of this host's
//! nodes, and etcd.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use prism_config::{Config, ConfigFile};
use prism_etcd::{Change, Condition, Snapshot};
use prism_membership::etcd::{Key, Keys, client};
use prism_membership::{ClusterRecords, Ledger};
use prism_service::{Action, Actor, AuditLog};
use serde::Serialize;

/// The configuration file, if no other one is named.
const DEFAULT_FILE: &str = "/etc/prism/prism.toml";

/// The options of every command of `prism ctl`. They may stand at any place behind `ctl`.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Common {
    /// The cluster's configuration file [default: /etc/prism/prism.toml].
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The service of the cluster that is meant, if it has several.
    #[arg(long, global = true, value_name = "NAME")]
    service: Option<String>,
    /// Print JSON in place of text.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

impl Common {
    /// The part of the configuration for the service that is meant.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        match self.parts()?.as_mut_slice() {
            [one] => Ok(std::mem::take(one)),
            several => bail!(
                "the cluster has the services {}; name one with --service NAME",
                service_names(several)
            ),
        }
    }

    /// The same, for a command of the object store.
    pub(crate) fn load_objects(&self) -> anyhow::Result<Config> {
        let config = self.load()?;
        if !config.service.keeps_objects() {
            bail!(
                "the service of {} has an upstream and stores nothing, so this command does not \
                 apply to it; `prism ctl status` shows its servers",
                config.shown_file()
            );
        }
        Ok(config)
    }

    /// The parts of the configuration for the service that is meant, or else for all.
    pub(crate) fn parts(&self) -> anyhow::Result<Vec<Config>> {
        let config = self.load_file()?;
        let Some(name) = &self.service else {
            return Ok(config.parts());
        };
        let part = config.part(name).with_context(|| {
            format!(
                "{} has no service {name:?}; its services are {}",
                config.shown_file(),
                service_names(&config.parts())
            )
        })?;
        Ok(vec![part])
    }

    fn load_file(&self) -> anyhow::Result<ConfigFile> {
        let file = match &self.config {
            Some(named) => named,
            None if Path::new(DEFAULT_FILE).exists() => Path::new(DEFAULT_FILE),
            None => bail!(
                "there is no {DEFAULT_FILE}; name the configuration file of the cluster with \
                 --config FILE"
            ),
        };
        Ok(ConfigFile::load(file)?)
    }

    /// The admin socket of the node `name`, or of the first one that runs on this host.
    pub(crate) fn admin_socket(&self, name: Option<&str>) -> anyhow::Result<PathBuf> {
        let config = self.load()?;
        if let Some(name) = name {
            return Ok(config.admin_socket(&config.known_node(name)?.name));
        }
        let here = config.sockets_here().next();
        here.with_context(|| {
            format!(
                "no node of {} runs on this host; run this on the host of one, or start it",
                config.shown_file()
            )
        })
    }

    /// Whether the user has named a configuration file.
    pub(crate) fn names_file(&self) -> bool {
        self.config.is_some()
    }

    /// Does `work` with the cluster's etcd.
    pub(crate) fn with_etcd<T>(
        &self,
        work: impl AsyncFnOnce(&Etcd) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        with_etcd_of(self.load_objects()?, work)
    }
}

/// Does `work` with the etcd of the service of `config`.
pub(crate) fn with_etcd_of<T>(
    config: Config,
    work: impl AsyncFnOnce(&Etcd) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let runtime = prism_common::runtime()?;
    runtime.block_on(async {
        let ledger = Ledger::new(client(&config)?, Keys::of(&config)?);
        let file = config.shown_file();
        let etcd = Etcd { config, ledger };
        work(&etcd)
            .await
            .map_err(|error| match error.downcast_ref() {
                Some(prism_etcd::Error::Unreachable { .. }) => {
                    anyhow!("{error}; start it, or correct cluster.etcd.endpoints in {file}")
                }
                _ => error,
            })
    })
}

fn service_names(parts: &[Config]) -> String {
    let names = parts.iter().map(|part| part.service.name.as_str());
    names.collect::<Vec<_>>().join(", ")
}

/// The etcd with a cluster's state.
pub(crate) struct Etcd {
    pub(crate) config: Config,
    pub(crate) ledger: Ledger,
}

impl Etcd {
    /// Makes changes, if all conditions hold, and records that in the audit log. Returns whether
    /// they hold. Refuses to change contents that the nodes do not act by.
    pub(crate) async fn change(
        &self,
        action: &str,
        subject: &str,
        conditions: &[Condition],
        changes: &[Change],
    ) -> anyhow::Result<bool> {
        if let Some(fault) = self.known().await?.contents().fault(None) {
            bail!("nothing was done: {fault}");
        }
        let made = self.ledger.change(conditions, changes).await;
        self.record(action, subject, &made);
        made
    }

    /// The same with contents that no node acts by. The lineage is not raised.
    pub(crate) async fn change_in_doubt(
        &self,
        action: &str,
        subject: &str,
        conditions: &[Condition],
        changes: &[Change],
    ) -> anyhow::Result<bool> {
        let made = self.ledger.client.change(conditions, changes).await;
        let made = made.map_err(anyhow::Error::from);
        self.record(action, subject, &made);
        made
    }

    fn record(&self, action: &str, subject: &str, made: &anyhow::Result<bool>) {
        let outcome = match made {
            Ok(true) => "done".to_owned(),
            Ok(false) => "refused: etcd has another state than expected".to_owned(),
            Err(error) => format!("unknown: {error:#}"),
        };
        AuditLog::new(&self.config.log.audit).record(&Action {
            actor: Actor::Local {
                uid: rustix::process::getuid().as_raw(),
            },
            at: "prism ctl",
            action,
            subject: Some(subject),
            outcome: &outcome,
        });
    }

    /// Everything that etcd has of the cluster.
    pub(crate) async fn known(&self) -> anyhow::Result<ClusterRecords> {
        Ok(self.known_with_revisions().await?.0)
    }

    /// The same, with the revisions of all keys.
    pub(crate) async fn known_with_revisions(&self) -> anyhow::Result<(ClusterRecords, Snapshot)> {
        let snapshot = self.ledger.client.read(self.ledger.keys.prefix()).await?;
        let known = ClusterRecords::read(&self.ledger.keys, &snapshot, &ClusterRecords::default());
        Ok((known, snapshot))
    }

    /// The condition that a key is as it was in `snapshot`.
    pub(crate) fn unchanged(&self, snapshot: &Snapshot, key: &Key<'_>) -> Condition {
        let path = self.ledger.keys.path(key);
        let found = snapshot.entries.iter().find(|entry| entry.key == path);
        Condition::unchanged(path, found.map(|entry| entry.mod_revision))
    }
}

/// Prints a document in JSON.
pub(crate) fn print_json(out: &mut impl Write, document: &impl Serialize) -> anyhow::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(document)?)?;
    Ok(())
}
