//! Finds the outcome of changes that are open here, before their keys are read or changed, and
//! when another node waits for it.
//!
//! The present primary of a key is asked. If this node is the primary, another one was it when
//! the change began, and may be gone. Then all replicas that would have the change are asked.
//!
//! Not here: the verdict from their answers (`prism_cluster::replica`).

use std::collections::BTreeMap;
use std::time::Duration;

use prism_cluster::replica::happened;
use prism_cluster::{NodeName, View};
use prism_s3::{Code, S3Error};
use prism_service::join_all;
use prism_store::{Decided, OpenChanges, Pending, Scope, Stamp, Store};

use crate::errors::StoreResult;
use crate::question::{Question, Reply};
use crate::replication::Replication;
use crate::{Node, Replicator};

/// Time for another node to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Open changes in one question.
const CHANGES_AT_ONCE: usize = 1000;
/// Time to wait for a new epoch, if the primary is out of reach.
const EPOCH_TIMEOUT: Duration = Duration::from_millis(200);

impl Replicator {
    /// [`Self::resolve_key`], repeated once if a new epoch, and perhaps a new primary, begins.
    pub async fn resolve_key_with_retry(&self, bucket: &str, key: &str) -> Result<(), S3Error> {
        let replication = &self.node.replication;
        let epoch = replication.view().epoch();
        let resolved = self.resolve_key(bucket, key).await;
        if resolved.is_ok() || !self.node.core.cluster.is_in_etcd() {
            return resolved;
        }
        if self.node.core.view.wait_beyond(epoch, EPOCH_TIMEOUT).await {
            self.resolve_key(bucket, key).await
        } else {
            resolved
        }
    }

    /// Finds the outcome of a key's open changes. This node's copy of the key is then current.
    ///
    /// # Errors
    /// Unavailable if an outcome stays unknown.
    pub async fn resolve_key(&self, bucket: &str, key: &str) -> Result<(), S3Error> {
        let Some(here) = self.open_changes() else {
            return Ok(());
        };
        // Only the primary answers requests about uploads.
        let open = if self.node.replication.is_primary(bucket, key) {
            here.of_key(bucket, key)
        } else {
            Vec::from_iter(here.of_object(bucket, key))
        };
        if open.is_empty() {
            Ok(())
        } else {
            self.resolve_changes(without_epochs(open).collect()).await
        }
    }

    /// Finds the outcome of the open changes of a bucket's keys whose primary is this node or
    /// one of `primaries`.
    pub(crate) async fn resolve_bucket(
        &self,
        bucket: &str,
        primaries: &[String],
    ) -> Result<(), S3Error> {
        let Some(here) = self.open_changes() else {
            return Ok(());
        };
        let replication = &self.node.replication;
        let mut open = here.older_than(Duration::ZERO, Some(bucket));
        open.retain(|(scope, _)| {
            let primary = replication.primary(&scope.bucket, &scope.key);
            primary.is_some_and(|name| name == self.node.core.name || primaries.contains(&name))
        });
        self.resolve_changes(open).await
    }

    /// Finds the outcome of `open`, as far as that is possible.
    pub(crate) async fn resolve_changes(&self, open: Vec<(Scope, Stamp)>) -> Result<(), S3Error> {
        let mut by_primary: BTreeMap<String, Vec<(Scope, Stamp)>> = BTreeMap::new();
        let mut result = Ok(());
        for (scope, stamp) in open {
            match self.node.replication.primary(&scope.bucket, &scope.key) {
                Some(primary) => by_primary.entry(primary).or_default().push((scope, stamp)),
                None => result = Err(Code::ServiceUnavailable.into()),
            }
        }
        let own = by_primary.remove(&self.node.core.name).unwrap_or_default();
        let asked = by_primary
            .iter()
            .map(|(primary, open)| self.settle_by_primary(primary, open));
        let learned: Result<(), S3Error> = join_all(asked.collect()).await.into_iter().collect();
        result = result.and(learned);
        // One change at a time, because there are few of them.
        for (scope, stamp) in own {
            let resolved = self.decide_change(scope, stamp).await;
            result = result.and(resolved);
        }
        result
    }

    /// Settles open changes by the answers of their keys' primary.
    async fn settle_by_primary(
        &self,
        primary: &str,
        open: &[(Scope, Stamp)],
    ) -> Result<(), S3Error> {
        for open in open.chunks(CHANGES_AT_ONCE) {
            let question = Question::Standing {
                changes: open.to_vec(),
                epoch: self.node.replication.view().epoch(),
            };
            let reply = self.ask_within(ANSWER_TIMEOUT, primary, &question).await;
            let reply = reply.map_err(|_| {
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
            let settle =
                move |_: &Node, store: &Store| store.open_changes().settle(items, epoch).in_s3();
            self.node.on_store(settle).await?;
        }
        Ok(())
    }

    /// As the key's primary, decides a change that an earlier primary has left open.
    async fn decide_change(&self, scope: Scope, stamp: Stamp) -> Result<(), S3Error> {
        let store = self.node.store()?;
        let view = self.node.replication.view();
        let is_this = |(s, open): &(Scope, Pending)| *s == scope && open.stamp == stamp;
        let open = store.open_changes().of_key(&scope.bucket, &scope.key);
        let Some((_, open)) = open.into_iter().find(is_this) else {
            return Ok(());
        };
        let epoch = view.epoch();
        let happened = self.ask_witnesses(&view, &scope, open).await?;
        let items = vec![(scope.clone(), stamp, happened)];
        let resolve =
            move |_: &Node, store: &Store| store.open_changes().resolve(items, epoch).in_s3();
        self.node.on_store(resolve).await?;
        let bucket = &scope.bucket;
        let key = &scope.key;
        tracing::info!(
            bucket,
            key,
            happened,
            "decided a change that another primary left open"
        );
        let others = self.node.replication.other_writers(bucket, key);
        let decided = Decided {
            scopes: vec![scope],
            stamp,
            committed: happened,
            epoch,
        };
        self.announce_outcome(&others, decided).await;
        Ok(())
    }

    /// Whether a change has happened, by the answers of the replicas that would have it.
    async fn ask_witnesses(
        &self,
        view: &View,
        scope: &Scope,
        open: Pending,
    ) -> Result<bool, S3Error> {
        let witnesses = view.witnesses(&scope.bucket, &scope.key, open.epoch);
        let others = witnesses.into_iter().map(NodeName::as_str);
        let others: Vec<&str> = others.filter(|name| *name != self.node.core.name).collect();
        let question = Question::HasChange {
            scope: scope.clone(),
            open,
            epoch: view.epoch(),
        };
        let asked = others
            .iter()
            .map(|name| self.ask_within(ANSWER_TIMEOUT, name, &question));
        let replies = join_all(asked.collect()).await;
        let answers = replies.into_iter().map(|reply| match reply {
            Ok(Reply::Has(has)) => Some(has),
            _ => None,
        });
        happened(answers).ok_or_else(|| {
            Code::ServiceUnavailable.with_message(
                "The outcome of an earlier change is unknown while its replicas are out of reach.",
            )
        })
    }

    /// As the primary of some of these keys, finds the outcome of all their open changes.
    pub(crate) async fn resolve_own_keys(&self, changes: &[(Scope, Stamp)]) -> Result<(), S3Error> {
        let Some(here) = self.open_changes() else {
            return Ok(());
        };
        let mut open = Vec::new();
        let replication = &self.node.replication;
        let is_own = |scope: &Scope| replication.is_primary(&scope.bucket, &scope.key);
        for (scope, _) in changes.iter().filter(|(scope, _)| is_own(scope)) {
            open.extend(without_epochs(here.of_key(&scope.bucket, &scope.key)));
        }
        self.resolve_changes(open).await
    }

    /// The open changes of this node's store, if there are any.
    fn open_changes(&self) -> Option<OpenChanges<'_>> {
        let open_changes = self.node.store.as_ref()?.open_changes();
        (!open_changes.is_empty()).then_some(open_changes)
    }
}

/// The outcomes of changes whose primary is this node. `asker_epoch` is the epoch of the node
/// that asks; this node has to be in that epoch or a later one.
pub(crate) fn standings(
    store: &Store,
    replication: &Replication,
    changes: &[(Scope, Stamp)],
    asker_epoch: u64,
) -> Result<Reply, S3Error> {
    // Read first, so that the outcomes are of this epoch or a later one.
    let epoch = store.epoch();
    let open_changes = store.open_changes();
    let mut standings = Vec::new();
    if epoch < asker_epoch {
        return Err(Code::ServiceUnavailable.into());
    }
    for (scope, stamp) in changes {
        let is_primary = replication.is_primary(&scope.bucket, &scope.key);
        if !is_primary || open_changes.contains(scope) {
            return Err(Code::ServiceUnavailable.into());
        }
        standings.push(open_changes.standing(scope, *stamp).in_s3()?);
    }
    Ok(Reply::Standings { standings, epoch })
}

pub(crate) fn without_epochs(open: Vec<(Scope, Pending)>) -> impl Iterator<Item = (Scope, Stamp)> {
    open.into_iter().map(|(scope, open)| (scope, open.stamp))
}
