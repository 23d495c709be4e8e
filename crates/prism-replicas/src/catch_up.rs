//! Catches up: fetches the keys that this node lacks, and removes the keys that it no longer
//! has by placement.
//!
//! All of it happens in one epoch. When the epoch changes, it starts again, and what is here
//! already is only compared. First all other nodes have to be in that epoch, without open
//! changes of earlier ones. Then this node asks the primary of each key, bucket by bucket and
//! page by page, and fetches what differs.
//!
//! Not here: the comparison of a page, and what may be taken in (`prism-replica`, the store).

use std::rc::Rc;
use std::time::{Duration, Instant};

use prism_cluster::{NodeName, Phase, Status, View};
use prism_membership::Buckets;
use prism_replica::Phase as BucketPhase;
use prism_s3::{Code, S3Error};
use prism_service::{Stage, join_all};
use prism_store::{Missing, PageRequest, Scope, ScopePage, Store};

use crate::errors::store_error;
use crate::question::{CatchUpPageWanted, Question, Reply};
use crate::registry::not_yet;
use crate::{Node, Replicator};

/// Time between two looks at the cluster's view.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for another node to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Scopes fetched at once, each with two pieces of its bytes in memory.
const FETCHES_AT_ONCE: usize = 4;

/// A position among the scopes of one bucket.
#[derive(Clone)]
struct PageStart {
    bucket: String,
    /// The uploads and their parts, not the objects.
    uploads: bool,
    /// The last scope of the page before.
    after: Option<Scope>,
}

impl PageStart {
    fn request(&self) -> PageRequest<'_> {
        PageRequest {
            bucket: &self.bucket,
            uploads: self.uploads,
            after: self.after.as_ref(),
        }
    }
}

/// The one task of a node that catches up.
pub(crate) struct CatchUp {
    replicator: Rc<Replicator>,
}

impl CatchUp {
    pub(crate) fn new(replicator: Rc<Replicator>) -> Self {
        Self { replicator }
    }

    /// Catches up whenever the view demands it, until the node stops.
    pub(crate) async fn run(&self) {
        let Some(store) = &self.replicator.node.store else {
            return;
        };
        // Whether this store may have keys of other nodes. The process before this one may have
        // stopped before it had removed them.
        let mut may_have_extra = true;
        // The view says nothing about the keys of a store that was never a member.
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
                    progress.set_running(true);
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
                tracing::debug!(%error, "catching up failed; trying again");
                progress.set_hindrance(error.message().to_owned());
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    /// Fetches everything that this node lacks, as of the view's epoch.
    async fn fetch_missing(&self, view: &View) -> Result<(), S3Error> {
        let begun = Instant::now();
        self.check_settled(view).await?;
        self.replicator.node.progress.all_settled(view.epoch());
        // Read now, because this node may have missed changes of buckets while it was away.
        let agreed = self.replicator.all_agreed().await?;
        self.replicator.apply_records(&agreed).await?;
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
            return Err(not_yet("Changes of earlier epochs are open here."));
        }
        self.replicator.node.progress.done(view.epoch());
        self.replicator.node.cluster.caught_up(view.epoch());
        tracing::info!(
            epoch = view.epoch(),
            seconds = begun.elapsed().as_secs_f64(),
            "this node has caught up"
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

    /// Checks that the epoch is still the view's. Pages of different views do not fit together.
    fn still_in(&self, view: &View) -> Result<(), S3Error> {
        let epoch = view.epoch();
        let is_still = self.replicator.node.replication.view().epoch() == epoch;
        match is_still && self.store()?.epoch() == epoch {
            true => Ok(()),
            false => Err(not_yet("The cluster has changed.")),
        }
    }

    /// Checks that all other backends are in this epoch, without open changes of earlier ones.
    async fn check_settled(&self, view: &View) -> Result<(), S3Error> {
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
        let reply = self.replicator.ask(name, question);
        let reply = tokio::time::timeout(ANSWER_TIMEOUT, reply).await;
        reply.unwrap_or_else(|_| Err(not_yet("Another node takes too long to answer.")))
    }

    /// Checks that the registry has the buckets of all sources: it may have lost its data.
    async fn compare_buckets(&self, view: &View, agreed: &Buckets) -> Result<(), S3Error> {
        for source in sources(view, &self.replicator.node.name) {
            let (_, theirs) = self.replicator.buckets_of(&source, None).await?;
            let mut existing = theirs.iter().filter(|(_, b)| b.phase != BucketPhase::Gone);
            if existing.any(|(name, _)| !agreed.contains_key(name)) {
                return Err(not_yet("The registry lacks a bucket of another node."));
            }
        }
        Ok(())
    }

    /// Fetches what this node lacks of one bucket's keys whose primary is `source`.
    async fn catch_up_with(
        &self,
        view: &View,
        source: &str,
        bucket: &str,
        uploads: bool,
    ) -> Result<(), S3Error> {
        let mut start = PageStart {
            bucket: bucket.to_owned(),
            uploads,
            after: None,
        };
        loop {
            self.still_in(view)?;
            let question = Question::CatchUpPage(CatchUpPageWanted {
                bucket: bucket.to_owned(),
                uploads,
                after: start.after.clone(),
                source: source.to_owned(),
                by: self.replicator.node.name.clone(),
                epoch: view.epoch(),
            });
            let page = match self.ask_other(source, &question).await {
                Ok(Reply::CatchUpPage(page)) => page,
                Ok(_) => return Err(Code::InternalError.into()),
                // If the bucket's deletion is agreed, there is nothing to copy.
                Err(error) if error.code() == Code::NoSuchBucket => {
                    return match self.is_gone(bucket).await? {
                        true => Ok(()),
                        false => Err(error),
                    };
                }
                Err(error) => return Err(error),
            };
            let end = page.end.clone();
            let missing = self.compare(view, source, start.clone(), page).await?;
            self.fetch_all(view, source, missing.take).await?;
            match end {
                Some(end) => start.after = Some(end),
                None => return Ok(()),
            }
        }
    }

    async fn is_gone(&self, bucket: &str) -> Result<bool, S3Error> {
        let agreed = self.replicator.agreed(bucket).await?;
        Ok(agreed.is_none_or(|agreed| agreed.phase == BucketPhase::Gone))
    }

    /// Compares a page of the source with this store. Removes what the source does not have, and
    /// returns what is missing here.
    async fn compare(
        &self,
        view: &View,
        source: &str,
        start: PageStart,
        page: ScopePage,
    ) -> Result<Missing, S3Error> {
        let (view, source) = (view.clone(), source.to_owned());
        self.replicator
            .node
            .on_store(move |node, store| {
                let wanted =
                    |key: &str| fetches_from(&view, &source, &node.name, &start.bucket, key);
                let since = view.epoch();
                let found = store.catch_up();
                let found = found.compare(start.request(), &page, since, wanted);
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

    /// Fetches scopes, a few at once: uploads before their parts.
    async fn fetch_all(
        &self,
        view: &View,
        source: &str,
        scopes: Vec<Scope>,
    ) -> Result<(), S3Error> {
        let is_part = |scope: &Scope| matches!(scope.upload, Some((_, Some(_))));
        let (parts, first): (Vec<_>, Vec<_>) = scopes.into_iter().partition(is_part);
        for scopes in first
            .chunks(FETCHES_AT_ONCE)
            .chain(parts.chunks(FETCHES_AT_ONCE))
        {
            self.still_in(view)?;
            let fetched = scopes
                .iter()
                .map(|scope| self.replicator.fetcher.fetch(source, scope, view.epoch()));
            for fetched in join_all(fetched.collect()).await {
                fetched?;
            }
        }
        Ok(())
    }

    /// Removes the keys that this node no longer has, once all others act by the same view.
    async fn trim(&self, view: &View) -> Result<(), S3Error> {
        self.check_settled(view).await?;
        for bucket in self.replicator.names_of_buckets().await? {
            for uploads in [false, true] {
                self.trim_bucket(view, &bucket, uploads).await?;
            }
        }
        Ok(())
    }

    async fn trim_bucket(&self, view: &View, bucket: &str, uploads: bool) -> Result<(), S3Error> {
        let mut start = PageStart {
            bucket: bucket.to_owned(),
            uploads,
            after: None,
        };
        loop {
            self.still_in(view)?;
            let (view, here) = (view.clone(), start.clone());
            let end = self
                .replicator
                .node
                .on_store(move |node, store| trim_page(node, store, &view, &here))
                .await?;
            match end {
                Some(end) => start.after = Some(end),
                None => return Ok(()),
            }
        }
    }
}

/// Removes one page of keys, and returns its end; `None` after the last page.
fn trim_page(
    node: &Node,
    store: &Store,
    view: &View,
    start: &PageStart,
) -> Result<Option<Scope>, S3Error> {
    let has_place = |key: &str| view.has_place(&node.name, &start.bucket, key);
    let page = match store.catch_up().without_place(start.request(), has_place) {
        Ok(page) => page,
        // The bucket has just been deleted.
        Err(prism_store::Error::NoSuchBucket) => return Ok(None),
        Err(error) => return Err(store_error(&error)),
    };
    node.progress.add_trimmed(page.items.len());
    let scopes = page.items.into_iter().map(|(scope, _)| scope).collect();
    let removed = store.catch_up().remove_without_place(scopes, view.epoch());
    removed.map_err(|e| store_error(&e))?;
    Ok(page.end)
}

/// The other backends that may be primaries of keys.
fn sources(view: &View, me: &str) -> Vec<String> {
    let state = view.state();
    let members = state.placing.members.iter().map(NodeName::as_str);
    let sources = members.filter(|n| *n != me && state.status(n) == Some(Status::InSync));
    sources.map(str::to_owned).collect()
}

/// Whether the node `by` has to fetch a key from `source`: it lacks the key, and `source` is the
/// primary.
pub(crate) fn fetches_from(view: &View, source: &str, by: &str, bucket: &str, key: &str) -> bool {
    let primary = view.primary(bucket, key);
    primary.is_some_and(|name| name.as_str() == source) && view.lacks(by, bucket, key)
}
