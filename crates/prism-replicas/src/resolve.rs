//! Finding out what became of changes that are open here: before what this node holds
//! of their keys is read or changed, and when another node waits for it.
//!
//! The present primary of a key is asked. Where that is this node, another one was it
//! when the change was begun, and may be gone: then all that would have it are asked.
//! What follows from their answers is decided by `prism-replica`.

use std::collections::BTreeMap;
use std::time::Duration;

use prism_cluster::{NodeName, View};
use prism_replica::{Resolve, Verdict};
use prism_s3::{Code, Principal, S3Error};
use prism_service::join_all;
use prism_store::{Decided, Pending, Scope, Stamp, Standing, Store};

use crate::Replicator;
use crate::errors::store_error;
use crate::question::{Question, Reply};
use crate::replication::Replication;

/// Another node answers within this time, or nothing is known.
const PATIENCE: Duration = Duration::from_secs(10);
/// Open changes asked about at once.
const ASKED_AT_ONCE: usize = 1000;

/// The primary may have changed: time to wait for the new epoch.
const NEWS_IN: Duration = Duration::from_millis(200);

impl Replicator {
    /// [`Self::make_certain`], repeated once if the epoch has just changed, and with it the
    /// primary.
    pub async fn make_certain_soon(&self, bucket: &str, key: &str) -> Result<(), S3Error> {
        let replication = &self.node.replication;
        let epoch = replication.view().epoch();
        let certain = self.make_certain(bucket, key).await;
        if certain.is_ok() || !self.node.cluster.is_in_etcd() {
            return certain;
        }
        match replication.wait_beyond(epoch, NEWS_IN).await {
            true => self.make_certain(bucket, key).await,
            false => certain,
        }
    }

    /// Finds out the outcome of this key's open changes: this node's copy of it is current
    /// then.
    pub async fn make_certain(&self, bucket: &str, key: &str) -> Result<(), S3Error> {
        let Some(store) = self
            .node
            .store
            .as_ref()
            .filter(|s| !s.open_changes().is_empty())
        else {
            return Ok(());
        };
        // A primary also looks at uploads, which only it is asked for.
        let open: Vec<_> = match self.node.replication.is_primary(bucket, key) {
            true => store.open_changes().of_key(bucket, key),
            false => store
                .open_changes()
                .of_object(bucket, key)
                .into_iter()
                .collect(),
        };
        match open.is_empty() {
            true => Ok(()),
            false => self.find_out(without_epochs(open)).await,
        }
    }

    /// The same of a whole bucket: of what was left open by others, and of keys of
    /// these primaries.
    pub(crate) async fn make_bucket_certain(
        &self,
        bucket: &str,
        primaries: &[String],
    ) -> Result<(), S3Error> {
        let Some(store) = self
            .node
            .store
            .as_ref()
            .filter(|s| !s.open_changes().is_empty())
        else {
            return Ok(());
        };
        let replication = &self.node.replication;
        let mut open = store
            .open_changes()
            .older_than(Duration::ZERO, Some(bucket));
        open.retain(|(scope, _)| {
            let primary = replication.primary(&scope.bucket, &scope.key);
            primary.is_some_and(|name| name == self.node.name || primaries.contains(&name))
        });
        self.find_out(open).await
    }

    /// Finds out what became of these, as far as that is possible.
    pub(crate) async fn find_out(&self, open: Vec<(Scope, Stamp)>) -> Result<(), S3Error> {
        let mut by_primary: BTreeMap<String, Vec<(Scope, Stamp)>> = BTreeMap::new();
        let mut result = Ok(());
        for (scope, stamp) in open {
            match self.node.replication.primary(&scope.bucket, &scope.key) {
                Some(primary) => by_primary.entry(primary).or_default().push((scope, stamp)),
                None => result = Err(Code::ServiceUnavailable.into()),
            }
        }
        let own = by_primary.remove(&self.node.name).unwrap_or_default();
        let asked = by_primary
            .iter()
            .map(|(primary, open)| self.learn_from(primary, open));
        let learned: Result<(), S3Error> = join_all(asked.collect()).await.into_iter().collect();
        result = result.and(learned);
        // A change at a time: there are few of them.
        for (scope, stamp) in own {
            let resolved = self.resolve(scope, stamp).await;
            result = result.and(resolved);
        }
        result
    }

    async fn learn_from(&self, primary: &str, open: &[(Scope, Stamp)]) -> Result<(), S3Error> {
        let nobody = Principal::Anonymous;
        for open in open.chunks(ASKED_AT_ONCE) {
            let question = Question::Standing {
                changes: open.to_vec(),
                epoch: self.node.replication.view().epoch(),
            };
            let reply = self.ask_as(primary, &nobody, &question);
            let reply = tokio::time::timeout(PATIENCE, reply).await;
            let reply = reply.ok().and_then(Result::ok).ok_or_else(|| {
                Code::ServiceUnavailable.with_message(format!(
                    "A change was under way when node {primary} went out of reach."
                ))
            })?;
            let Reply::Standings { standings, epoch } = reply else {
                return Err(Code::InternalError.into());
            };
            let items = open.iter().cloned().zip(standings);
            let items = items.map(|((scope, stamp), standing)| (scope, stamp, standing));
            let items = items.collect();
            self.node
                .on_store(move |_, store| {
                    store
                        .open_changes()
                        .settle(items, epoch)
                        .map_err(|e| store_error(&e))
                })
                .await?;
        }
        Ok(())
    }

    /// Decides about a change that another primary has left open.
    async fn resolve(&self, scope: Scope, stamp: Stamp) -> Result<(), S3Error> {
        let Some(store) = &self.node.store else {
            return Err(Code::InternalError.into());
        };
        let view = self.node.replication.view();
        let is_this = |(s, open): &(Scope, Pending)| *s == scope && open.stamp == stamp;
        let open = store.open_changes().of_key(&scope.bucket, &scope.key);
        let Some((_, open)) = open.into_iter().find(is_this) else {
            return Ok(());
        };
        let epoch = view.epoch();
        let happened = self.ask_witnesses(&view, &scope, open).await?;
        let item = (scope.clone(), stamp, happened);
        self.node
            .on_store(move |_, store| {
                store
                    .open_changes()
                    .resolve(vec![item], epoch)
                    .map_err(|e| store_error(&e))
            })
            .await?;
        tracing::info!(
            bucket = scope.bucket,
            key = scope.key,
            happened,
            "decided what another primary has left open"
        );
        let others = self
            .node
            .replication
            .other_writers(&scope.bucket, &scope.key);
        let decided = Decided {
            scopes: vec![scope],
            stamp,
            committed: happened,
            epoch,
        };
        self.tell(&others, decided).await;
        Ok(())
    }

    /// Whether a change has happened, as those say that would have it.
    async fn ask_witnesses(
        &self,
        view: &View,
        scope: &Scope,
        open: Pending,
    ) -> Result<bool, S3Error> {
        let witnesses = view.witnesses(&scope.bucket, &scope.key, open.epoch);
        let others = witnesses.into_iter().map(NodeName::as_str);
        let others: Vec<&str> = others.filter(|name| *name != self.node.name).collect();
        let mut resolve = Resolve::new(others.iter().copied());
        let question = Question::HasChange {
            scope: scope.clone(),
            open,
            epoch: view.epoch(),
        };
        let nobody = Principal::Anonymous;
        let asked = others.iter().map(|name| {
            let reply = self.ask_as(name, &nobody, &question);
            tokio::time::timeout(PATIENCE, reply)
        });
        let replies = join_all(asked.collect()).await;
        for (name, reply) in others.iter().zip(replies) {
            if let Ok(Ok(Reply::Has(has))) = reply {
                let _ = resolve.heard(name, has);
            }
        }
        match resolve.verdict() {
            Verdict::Apply => Ok(true),
            Verdict::Drop => Ok(false),
            Verdict::Wait => Err(Code::ServiceUnavailable
                .with_message("Not all can be asked what became of an earlier change.")),
        }
    }

    /// As the primary of keys, knows what became of all their changes before it is
    /// asked about some.
    pub(crate) async fn make_all_certain(&self, changes: &[(Scope, Stamp)]) -> Result<(), S3Error> {
        let Some(store) = self
            .node
            .store
            .as_ref()
            .filter(|s| !s.open_changes().is_empty())
        else {
            return Ok(());
        };
        let mut open = Vec::new();
        let replication = &self.node.replication;
        let is_own = |scope: &Scope| replication.is_primary(&scope.bucket, &scope.key);
        for (scope, _) in changes.iter().filter(|(scope, _)| is_own(scope)) {
            let left = store.open_changes().of_key(&scope.bucket, &scope.key);
            open.extend(without_epochs(left));
        }
        self.find_out(open).await
    }
}

/// What became of changes of which this node is the primary, by its own view, which
/// has to be that of whoever asks, or a later one.
pub(crate) fn standings(
    store: &Store,
    replication: &Replication,
    (changes, asker): (&[(Scope, Stamp)], u64),
) -> Result<Reply, S3Error> {
    // First: what follows is of this epoch or of a later one.
    let epoch = store.epoch();
    let is_primary =
        |(scope, _): &(Scope, Stamp)| replication.is_primary(&scope.bucket, &scope.key);
    if epoch < asker || !changes.iter().all(is_primary) {
        return Err(Code::ServiceUnavailable.into());
    }
    let standing = |(scope, stamp): &(Scope, Stamp)| -> Result<Standing, S3Error> {
        match store.open_changes().contains(scope) {
            true => Err(Code::ServiceUnavailable.into()),
            false => store
                .open_changes()
                .standing(scope, *stamp)
                .map_err(|e| store_error(&e)),
        }
    };
    let standings = changes.iter().map(standing).collect::<Result<_, _>>()?;
    Ok(Reply::Standings { standings, epoch })
}

fn without_epochs(open: Vec<(Scope, Pending)>) -> Vec<(Scope, Stamp)> {
    let open = open.into_iter();
    open.map(|(scope, open)| (scope, open.stamp)).collect()
}
