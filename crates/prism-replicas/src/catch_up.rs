//! Catches up: fetches the keys that this node lacks, and removes the keys that it no longer
//! has by placement.
//!
//! All of it happens in one epoch. When the epoch changes, it starts again, and what is here
//! already is only compared. First all other nodes have to be in that epoch, without open
//! changes of earlier ones. Then this node asks the primary of each key, bucket by bucket and
//! page by page, and fetches what differs.
//!
//! Not here: the comparison of a page, and what may be taken in (`prism_cluster::replica`, the
//! store).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prism_cluster::replica::{Bucket, Phase as BucketPhase};
use prism_cluster::{NodeName, Phase, Status, View};
use prism_membership::Buckets;
use prism_s3::{Code, S3Error};
use prism_service::join_all;
use prism_store::{Missing, PageRequest, Scope, ScopePage, Stamp, Store};

use crate::errors::{StoreResult, not_yet};
use crate::fetch::Purpose;
use crate::question::{CatchUpPageWanted, Question, Reply};
use crate::{Node, Replicator};

/// Time between two looks at the cluster's view.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time for another node to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Scopes fetched at once, each with two pieces of its bytes in memory.
const FETCHES_AT_ONCE: usize = 4;
/// Buckets whose pages are compared at a time: most of a small one's time is a wait for its
/// sources.
const BUCKETS_AT_ONCE: usize = 4;

/// Catches up whenever the view demands it.
pub(crate) async fn keep_caught_up(replicator: &Replicator, store: &Store) {
    let node = &replicator.node;
    // Whether this store may have keys of other nodes. The process before this one may have
    // stopped before it had removed them.
    let mut may_have_extra = true;
    // The view says nothing about the keys of a store that was never a member.
    let mut was_member = false;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let view = node.replication.view();
        let wanted = view.state().fetches_since(&node.core.name);
        let is_settled = view.state().phase == Phase::Settled;
        may_have_extra |= !is_settled;
        was_member |= view.state().is_store_of(&node.core.name, store.identity());
        let caught_up = node.progress().caught_up;
        let run = CatchUp {
            replicator,
            node,
            store,
            view,
        };
        let result = match wanted {
            Some(wanted) if caught_up < wanted => {
                node.progress().is_running = true;
                run.fetch_missing().await
            }
            None if is_settled && may_have_extra && was_member => {
                let trimmed = run.trim().await;
                may_have_extra &= trimmed.is_err();
                trimmed
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            let former = {
                let hindrance = &mut node.progress().hindrance;
                std::mem::replace(hindrance, error.message().to_owned())
            };
            if former != error.message() {
                tracing::info!(%error, "catching up waits");
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }
}

/// One try, by one view: pages of different views do not fit together.
struct CatchUp<'r> {
    replicator: &'r Replicator,
    node: &'r Arc<Node>,
    store: &'r Store,
    view: Arc<View>,
}

impl CatchUp<'_> {
    /// Fetches everything that this node lacks, as of the view's epoch.
    async fn fetch_missing(&self) -> Result<(), S3Error> {
        let begun = Instant::now();
        let epoch = self.view.epoch();
        self.check_settled().await?;
        self.node.settled.store(epoch, Ordering::Release);
        let known = self.node.core.cluster.known();
        if known.is_some_and(|known| !known.is_registry_settled()) {
            return Err(not_yet("Buckets are being put back into the registry."));
        }
        // Read before the registry, which has each bucket before a node does.
        let theirs = self.buckets_of_sources().await?;
        // Read now, because this node may have missed changes of buckets while it was away.
        let agreed = self.replicator.all_agreed().await?;
        self.replicator.apply_records(&agreed).await?;
        // It may have lost its data.
        if let Some(name) = theirs
            .iter()
            .find(|name| !agreed.records.contains_key(*name))
        {
            tracing::info!(bucket = name, "the registry lacks a bucket of another node");
            return Err(not_yet("The registry lacks a bucket of another node."));
        }
        let removing = move |_: &Node, store: &Store| {
            let removed = store.catch_up().remove_dangling(epoch);
            removed.in_s3()
        };
        let dangling = self.node.on_store(removing).await?;
        if dangling > 0 {
            tracing::warn!(
                dangling,
                "objects whose files are missing are fetched again"
            );
        }
        let sources = self.sources();
        {
            let parts = 2 * sources.len() * existing(&agreed).count();
            let mut report = self.node.progress();
            (report.parts, report.parts_done) = (parts as u64, 0);
        }
        let all: Vec<(&str, Stamp)> = existing(&agreed)
            .map(|(name, record)| (name.as_str(), record.life))
            .collect();
        for some in all.chunks(BUCKETS_AT_ONCE) {
            let fetched = some
                .iter()
                .map(|(bucket, life)| self.fetch_bucket(&sources, bucket, *life));
            let mut fetched = join_all(fetched.collect()).await.into_iter();
            fetched.try_for_each(|fetched| fetched)?;
        }
        self.check_view()?;
        if !self.store.open_changes().begun_before(epoch).is_empty() {
            return Err(not_yet("Changes of earlier epochs are open here."));
        }
        {
            let mut report = self.node.progress();
            (report.caught_up, report.is_running) = (epoch, false);
            report.hindrance.clear();
        }
        self.node
            .core
            .cluster
            .report(|report| report.caught_up = epoch);
        let seconds = begun.elapsed().as_secs_f64();
        tracing::info!(epoch, seconds, "this node has caught up");
        Ok(())
    }

    /// Checks that the epoch is still the view's.
    fn check_view(&self) -> Result<(), S3Error> {
        let epoch = self.view.epoch();
        if self.node.replication.view().epoch() == epoch && self.store.epoch() == epoch {
            Ok(())
        } else {
            Err(not_yet("The cluster has changed."))
        }
    }

    /// Checks that all other backends are in this epoch, without open changes of earlier ones.
    async fn check_settled(&self) -> Result<(), S3Error> {
        self.check_view()?;
        let backends = self.view.state().backends.iter();
        let backends = backends.filter(|(_, backend)| backend.status != Status::Out);
        let others = backends
            .map(|(name, _)| name.as_str())
            .filter(|name| *name != self.node.core.name);
        let epoch = self.view.epoch();
        let question = Question::Settled { epoch };
        let asked = others.map(|name| self.ask(name, &question));
        let mut answers = join_all(asked.collect()).await.into_iter();
        answers.try_for_each(|answer| answer.map(drop))
    }

    async fn ask(&self, name: &str, question: &Question) -> Result<Reply, S3Error> {
        (self.replicator)
            .ask_within(ANSWER_TIMEOUT, name, question)
            .await
    }

    /// The other backends that may be primaries of keys.
    fn sources(&self) -> Vec<String> {
        let state = self.view.state();
        let members = state.placing.members.iter().map(NodeName::as_str);
        let is_source =
            |n: &&str| *n != self.node.core.name && state.status(n) == Some(Status::InSync);
        members.filter(is_source).map(str::to_owned).collect()
    }

    /// The names of the buckets that the sources have.
    async fn buckets_of_sources(&self) -> Result<BTreeSet<String>, S3Error> {
        let mut names = BTreeSet::new();
        for source in self.sources() {
            let (_, theirs) = self.replicator.buckets_of(&source, None).await?;
            names.extend(existing(&theirs).map(|(name, _)| name.clone()));
        }
        Ok(names)
    }

    /// Fetches what this node lacks of one bucket in its life `life`, which may end meanwhile.
    async fn fetch_bucket(
        &self,
        sources: &[String],
        bucket: &str,
        life: Stamp,
    ) -> Result<(), S3Error> {
        match self.fetch_present_bucket(sources, bucket).await {
            Err(error) if error.code() == Code::NoSuchBucket => {
                // All writes of a later life come here too.
                let agreed = self.replicator.agreed(bucket).await?;
                let is_same = |now: &Bucket| now.phase != BucketPhase::Gone && now.life == life;
                if agreed.as_ref().is_some_and(is_same) {
                    Err(error)
                } else {
                    Ok(())
                }
            }
            fetched => fetched,
        }
    }

    /// Fetches what this node lacks of one bucket.
    ///
    /// # Errors
    /// [`Code::NoSuchBucket`] if a node has the bucket no more.
    async fn fetch_present_bucket(&self, sources: &[String], bucket: &str) -> Result<(), S3Error> {
        for source in sources {
            for uploads in [false, true] {
                self.catch_up_with(source, bucket, uploads).await?;
                self.node.progress().parts_done += 1;
            }
        }
        Ok(())
    }

    /// Fetches what this node lacks of one bucket's keys whose primary is `source`.
    async fn catch_up_with(
        &self,
        source: &str,
        bucket: &str,
        uploads: bool,
    ) -> Result<(), S3Error> {
        let mut wanted = CatchUpPageWanted {
            bucket: bucket.to_owned(),
            uploads,
            after: None,
            source: source.to_owned(),
            by: self.node.core.name.clone(),
            epoch: self.view.epoch(),
        };
        loop {
            self.check_view()?;
            let question = Question::CatchUpPage(wanted.clone());
            let page = match self.ask(source, &question).await {
                Ok(Reply::CatchUpPage(page)) => page,
                Ok(_) => return Err(Code::InternalError.into()),
                Err(error) => return Err(error),
            };
            let end = page.end.clone();
            let missing = self.compare(wanted.clone(), page).await?;
            self.fetch_all(source, missing.take).await?;
            match end {
                Some(end) => wanted.after = Some(end),
                None => return Ok(()),
            }
        }
    }

    /// Compares a page of the source with this store. Removes what the source does not have, and
    /// returns what is missing here.
    async fn compare(
        &self,
        wanted: CatchUpPageWanted,
        page: ScopePage,
    ) -> Result<Missing, S3Error> {
        let view = self.view.clone();
        let compare = move |node: &Node, store: &Store| {
            let (catch_up, is_wanted) = (store.catch_up(), |key: &str| wanted.has(&view, key));
            let found = catch_up.compare(wanted.request(), &page, wanted.epoch, is_wanted);
            let mut found = found.in_s3()?;
            let remove = std::mem::take(&mut found.remove);
            {
                let mut report = node.progress();
                report.compared += page.items.len() as u64;
                report.removed += remove.len() as u64;
            }
            catch_up.remove_missing(remove, wanted.epoch).in_s3()?;
            Ok(found)
        };
        self.node.on_store(compare).await
    }

    /// Fetches scopes, a few at once: uploads before their parts.
    async fn fetch_all(&self, source: &str, scopes: Vec<Scope>) -> Result<(), S3Error> {
        let is_part = |scope: &Scope| matches!(scope.upload, Some((_, Some(_))));
        let (parts, first): (Vec<_>, Vec<_>) = scopes.into_iter().partition(is_part);
        let purpose = Purpose::CatchUp {
            since: self.view.epoch(),
            is_paced: true,
        };
        let first = first.chunks(FETCHES_AT_ONCE);
        let parts = parts.chunks(FETCHES_AT_ONCE);
        for scopes in first.chain(parts) {
            self.check_view()?;
            let fetched = scopes
                .iter()
                .map(|scope| self.replicator.fetch(source, scope, purpose));
            for fetched in join_all(fetched.collect()).await {
                fetched?;
            }
        }
        Ok(())
    }

    /// Removes the keys that this node no longer has, once all others act by the same view.
    async fn trim(&self) -> Result<(), S3Error> {
        self.check_settled().await?;
        for bucket in self.replicator.names_of_buckets().await? {
            for uploads in [false, true] {
                let mut after = None;
                loop {
                    self.check_view()?;
                    let view = self.view.clone();
                    let bucket = bucket.clone();
                    let trim = move |node: &Node, store: &Store| {
                        let request = PageRequest {
                            bucket: &bucket,
                            uploads,
                            after: after.as_ref(),
                        };
                        trim_page(node, store, &view, request)
                    };
                    after = self.node.on_store(trim).await?;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Removes one page of keys, and returns its end; `None` after the last page.
fn trim_page(
    node: &Node,
    store: &Store,
    view: &View,
    request: PageRequest<'_>,
) -> Result<Option<Scope>, S3Error> {
    let has_place = |key: &str| view.has_place(&node.core.name, request.bucket, key);
    let page = match store.catch_up().without_place(request, has_place) {
        // The bucket has just been deleted.
        Err(prism_store::Error::NoSuchBucket) => return Ok(None),
        page => page.in_s3()?,
    };
    node.progress().trimmed += page.items.len() as u64;
    let scopes = page.items.into_iter().map(|(scope, _)| scope).collect();
    let removed = store.catch_up().remove_without_place(scopes, view.epoch());
    removed.in_s3().map(|()| page.end)
}

/// The buckets that are not deleted.
fn existing(buckets: &Buckets) -> impl Iterator<Item = (&String, &Arc<Bucket>)> {
    let records = buckets.records.iter();
    records.filter(|(_, b)| b.phase != BucketPhase::Gone)
}

impl CatchUpPageWanted {
    fn request(&self) -> PageRequest<'_> {
        PageRequest {
            bucket: &self.bucket,
            uploads: self.uploads,
            after: self.after.as_ref(),
        }
    }

    /// Whether the asking node has to fetch a key from the source: it lacks the key, and the
    /// source is the primary.
    fn has(&self, view: &View, key: &str) -> bool {
        let primary = view.primary(&self.bucket, key);
        primary.is_some_and(|name| name.as_str() == self.source)
            && view.lacks(&self.by, &self.bucket, key)
    }

    /// As the source, the page of what this node has and the asking node lacks.
    pub(crate) fn page(&self, node: &Node, store: &Store) -> Result<ScopePage, S3Error> {
        let view = node.replication.view();
        if view.epoch() != self.epoch || store.epoch() != self.epoch {
            return Err(not_yet("Another node is in another epoch."));
        }
        store
            .catch_up()
            .page(self.request(), |key| self.has(&view, key))
            .in_s3()
    }
}
