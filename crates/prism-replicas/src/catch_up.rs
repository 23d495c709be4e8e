//! Getting hold of what this node has missed, or is to have from now on, and throwing
//! away what is no longer its own. What is missed, and whether something may be taken
//! in, is decided by `prism-replica` and the store; here others are asked.
//!
//! It is done in one epoch, from the beginning whenever that changes: what is here
//! already is then only compared. First all others have to be in that epoch and have
//! nothing open of before it. Then, bucket by bucket, the primary of each key is
//! asked what it holds, page by page, and what differs is fetched, a few things at
//! once.

use std::rc::Rc;
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, Phase, Status, View};
use prism_membership::Buckets;
use prism_replica::Phase as BucketPhase;
use prism_s3::{Code, Principal, S3Error};
use prism_service::{Stage, join_all};
use prism_store::{Missing, PageRequest, Scope, ScopePage, Store};

use crate::blocking::{blocking, joined};
use crate::errors::store_error;
use crate::question::{CatchUpPageWanted, Question, Reply};
use crate::registry::not_yet;
use crate::{Node, Replicator};

/// How often the cluster's view is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// After a failure it is tried again so much later.
const REST: Duration = Duration::from_secs(1);
/// Another node answers within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Things fetched at once, each with two pieces of its bytes in memory.
const AT_ONCE: usize = 4;

/// The one task of a node that catches up.
pub(crate) struct CatchUp {
    replicator: Rc<Replicator>,
}

impl CatchUp {
    pub(crate) fn new(replicator: Rc<Replicator>) -> Self {
        Self { replicator }
    }

    /// Catches up whenever that is needed, until the node stops.
    pub(crate) async fn run(&self) {
        let Some(store) = &self.replicator.node.store else {
            return;
        };
        // After a start nobody knows what was left undone.
        let mut may_have_extra = true;
        // Who was never one of this cluster has nothing of which that could judge.
        let mut was_member = false;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.replicator.node.orders.reached(Stage::Leaving) => return,
            }
            let view = self.replicator.node.replication.view();
            let progress = &self.replicator.node.progress;
            let wanted = view.state().fetches_since(&self.replicator.node.name);
            let is_settled = view.state().phase == Phase::Settled;
            may_have_extra |= !is_settled;
            was_member |= view
                .state()
                .is_store_of(&self.replicator.node.name, store.identity());
            let result = match wanted {
                Some(wanted) if progress.caught_up() < wanted => {
                    progress.running(true);
                    self.fetch_missing(&view).await
                }
                None if is_settled && may_have_extra && was_member => {
                    let trimmed = self.trim(&view).await;
                    may_have_extra &= trimmed.is_err();
                    trimmed
                }
                _ => Ok(()),
            };
            if let Err(error) = result {
                tracing::debug!(%error, "not caught up yet");
                progress.hindered(error.message().to_owned());
                tokio::time::sleep(REST).await;
            }
        }
    }

    /// Fetches all that is missing as of the view's epoch.
    async fn fetch_missing(&self, view: &View) -> Result<(), S3Error> {
        let begun = Instant::now();
        self.wait_until_settled(view).await?;
        self.replicator.node.progress.all_settled(view.epoch());
        // As of now: nobody was told of what was agreed while nothing was told here.
        let agreed = self.replicator.all_agreed().await?;
        self.replicator.take_all(&agreed).await?;
        self.compare_buckets(view, &agreed).await?;
        let existing = agreed.iter().filter(|(_, b)| b.phase != BucketPhase::Gone);
        for (bucket, _) in existing {
            for source in sources(view, &self.replicator.node.name) {
                for uploads in [false, true] {
                    self.catch_up_with(view, &source, bucket, uploads).await?;
                }
            }
        }
        self.still_in(view)?;
        let own = self.store()?.open_changes().begun_before(view.epoch());
        if !own.is_empty() {
            return Err(not_yet("Changes of before are open here."));
        }
        self.replicator.node.progress.done(view.epoch());
        self.replicator.node.cluster.caught_up(view.epoch());
        tracing::info!(
            epoch = view.epoch(),
            seconds = begun.elapsed().as_secs_f64(),
            "everything that this node is to have is here"
        );
        Ok(())
    }

    fn store(&self) -> Result<&Store, S3Error> {
        self.replicator
            .node
            .store
            .as_ref()
            .ok_or(Code::InternalError.into())
    }

    /// The cluster has not changed: pages of one view do not fit another.
    fn still_in(&self, view: &View) -> Result<(), S3Error> {
        let epoch = view.epoch();
        let is_still = self.replicator.node.replication.view().epoch() == epoch;
        match is_still && self.store()?.epoch() == epoch {
            true => Ok(()),
            false => Err(not_yet("The cluster has changed.")),
        }
    }

    /// All others are in this epoch, and have nothing open of before it.
    async fn wait_until_settled(&self, view: &View) -> Result<(), S3Error> {
        self.still_in(view)?;
        let others = view.state().backends.iter().filter(|(name, backend)| {
            name.as_str() != self.replicator.node.name && backend.status != Status::Out
        });
        let question = Question::Settled {
            epoch: view.epoch(),
        };
        let asked = others.map(|(name, _)| self.ask_other(name.as_str(), &question));
        for answer in join_all(asked.collect()).await {
            answer?;
        }
        Ok(())
    }

    async fn ask_other(&self, name: &str, question: &Question) -> Result<Reply, S3Error> {
        let nobody = Principal::Anonymous;
        let reply = self.replicator.ask_as(name, &nobody, question);
        let reply = tokio::time::timeout(PATIENCE, reply).await;
        reply.unwrap_or_else(|_| Err(not_yet("Another node takes too long to answer.")))
    }

    /// All that the sources have is agreed on: a registry that has lost its data does not
    /// mean that there are no buckets.
    async fn compare_buckets(&self, view: &View, agreed: &Buckets) -> Result<(), S3Error> {
        for source in sources(view, &self.replicator.node.name) {
            let (_, theirs) = self.replicator.buckets_of(&source, None).await?;
            let mut existing = theirs.iter().filter(|(_, b)| b.phase != BucketPhase::Gone);
            if existing.any(|(name, _)| !agreed.contains_key(name)) {
                return Err(not_yet(
                    "Another node has a bucket that is not agreed on yet.",
                ));
            }
        }
        Ok(())
    }

    /// Has what one other node is the primary of, in one bucket.
    async fn catch_up_with(
        &self,
        view: &View,
        source: &str,
        bucket: &str,
        uploads: bool,
    ) -> Result<(), S3Error> {
        let mut after: Option<Scope> = None;
        loop {
            self.still_in(view)?;
            let question = Question::CatchUpPage(CatchUpPageWanted {
                bucket: bucket.to_owned(),
                uploads,
                after: after.clone(),
                source: source.to_owned(),
                by: self.replicator.node.name.clone(),
                epoch: view.epoch(),
            });
            let page = match self.ask_other(source, &question).await {
                Ok(Reply::CatchUpPage(page)) => page,
                Ok(_) => return Err(Code::InternalError.into()),
                // If the bucket's deletion is agreed, there is nothing to copy.
                Err(error) if error.code() == Code::NoSuchBucket => {
                    return self
                        .is_gone(bucket)
                        .await
                        .and_then(|is_gone| match is_gone {
                            true => Ok(()),
                            false => Err(error),
                        });
                }
                Err(error) => return Err(error),
            };
            let end = page.end.clone();
            let place = (bucket.to_owned(), uploads, after);
            let missing = self.compare(view, source, place, page).await?;
            self.fetch_all(view, source, missing.take).await?;
            match end {
                Some(end) => after = Some(end),
                None => return Ok(()),
            }
        }
    }

    async fn is_gone(&self, bucket: &str) -> Result<bool, S3Error> {
        let agreed = self.replicator.agreed(bucket).await?;
        Ok(agreed.is_none_or(|agreed| agreed.phase == BucketPhase::Gone))
    }

    /// What is missing of a page; what others do not have is removed.
    async fn compare(
        &self,
        view: &View,
        source: &str,
        (bucket, uploads, after): (String, bool, Option<Scope>),
        page: ScopePage,
    ) -> Result<Missing, S3Error> {
        let (view, source) = (view.clone(), source.to_owned());
        self.replicator
            .node
            .on_store(move |node, store| {
                let wanted = |key: &str| is_of(&view, &source, &node.name, &bucket, key);
                let since = view.epoch();
                let request = PageRequest {
                    bucket: &bucket,
                    uploads,
                    after: after.as_ref(),
                };
                let found = store.catch_up().compare(request, &page, since, wanted);
                let mut found = found.map_err(|e| store_error(&e))?;
                let remove = std::mem::take(&mut found.remove);
                node.progress.add_compared(page.items.len());
                node.progress.add_removed(remove.len());
                let removed = store.catch_up().remove_missing(remove, since);
                removed.map_err(|e| store_error(&e))?;
                Ok(found)
            })
            .await
    }

    /// Uploads come before their parts.
    async fn fetch_all(
        &self,
        view: &View,
        source: &str,
        scopes: Vec<Scope>,
    ) -> Result<(), S3Error> {
        let is_part = |scope: &Scope| matches!(scope.upload, Some((_, Some(_))));
        let (parts, first): (Vec<_>, Vec<_>) = scopes.into_iter().partition(is_part);
        for scopes in first.chunks(AT_ONCE).chain(parts.chunks(AT_ONCE)) {
            self.still_in(view)?;
            let fetched = scopes
                .iter()
                .map(|scope| self.replicator.fetch(source, scope, view.epoch()));
            for fetched in join_all(fetched.collect()).await {
                fetched?;
            }
        }
        Ok(())
    }

    /// Throws away what this node has no place for, once all others know that.
    async fn trim(&self, view: &View) -> Result<(), S3Error> {
        self.wait_until_settled(view).await?;
        for bucket in self.replicator.names_of_buckets().await? {
            for uploads in [false, true] {
                self.trim_bucket(view, &bucket, uploads).await?;
            }
        }
        Ok(())
    }

    async fn trim_bucket(&self, view: &View, bucket: &str, uploads: bool) -> Result<(), S3Error> {
        let mut after = None;
        loop {
            self.still_in(view)?;
            let (view, bucket, begin) = (view.clone(), bucket.to_owned(), after);
            after = joined(blocking(&self.replicator.node, move |node| {
                trim_page(node, &view, &bucket, uploads, begin)
            }))
            .await?;
            if after.is_none() {
                return Ok(());
            }
        }
    }
}

fn trim_page(
    node: &Node,
    view: &View,
    bucket: &str,
    uploads: bool,
    after: Option<Scope>,
) -> Result<Option<Scope>, S3Error> {
    let store = node.store.as_ref().ok_or(Code::InternalError)?;
    let has_place = |key: &str| view.has_place(&node.name, bucket, key);
    let request = PageRequest {
        bucket,
        uploads,
        after: after.as_ref(),
    };
    let page = match store.catch_up().without_place(request, has_place) {
        Ok(page) => page,
        // It has just gone.
        Err(prism_store::Error::NoSuchBucket) => return Ok(None),
        Err(error) => return Err(store_error(&error)),
    };
    node.progress.add_trimmed(page.items.len());
    let scopes = page.items.into_iter().map(|(scope, _)| scope).collect();
    let removed = store.catch_up().remove_without_place(scopes, view.epoch());
    removed.map_err(|e| store_error(&e))?;
    Ok(page.end)
}

/// Those that are the primaries of some keys, this node aside.
fn sources(view: &View, me: &str) -> Vec<String> {
    let state = view.state();
    let members = state.placing.members.iter().map(NodeName::as_str);
    let sources = members.filter(|n| *n != me && state.status(n) == Some(Status::InSync));
    sources.map(str::to_owned).collect()
}

/// Whether `by` has to get hold of a key from `source`.
pub(crate) fn is_of(view: &View, source: &str, by: &str, bucket: &str, key: &str) -> bool {
    let primary = view.primary(bucket, key);
    primary.is_some_and(|name| name.as_str() == source) && view.lacks(by, bucket, key)
}
