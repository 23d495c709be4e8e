//! Quotas of buckets: a primary asks whether a write still fits, before the body is read.
//!
//! A backend knows its own usage exactly. It asks the other backends for theirs when a write
//! comes and their last answers are older than [`REFRESH_INTERVAL`]. Buckets without a quota, or
//! without writes, cost no questions.
//!
//! A backend counts the writes under way at itself (they are *reserved*) and tells them to the
//! others. So writes miss each other only if they begin at different backends within
//! [`REFRESH_INTERVAL`] and [`ASK_TIMEOUT`], 1.5 s together. When L bytes are left and the
//! bucket's writes go to B backends, they exceed the quota by less than (B - 1) x L. From then on
//! all writes that add to it are refused.
//!
//! Not here: the arithmetic (`quota.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_cluster::Status;
use prism_cluster::replica::Bucket;
use prism_s3::{Code, S3Error};
use prism_service::join_all;
use prism_store::{BUCKETS_MAX, BucketUsage, Store};

use crate::errors::StoreResult;
use crate::question::{Question, Reply};
use crate::quota::{Growth, Quota, QuotaChange, UsageHere, moved, total};
use crate::{Node, Replicator};

/// The age of other backends' answers from which on they are asked again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Time for them to answer. Without an answer the last one counts.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);

/// The quotas that a backend knows. All threads share them.
#[derive(Default)]
pub(crate) struct Quotas(Mutex<HashMap<String, Known>>);

/// A bucket as of a version of the store's records.
struct Known {
    version: u64,
    /// None: it has no quota.
    watched: Option<Arc<Watched>>,
}

/// A bucket with a quota.
#[derive(Default)]
struct Watched {
    state: Mutex<State>,
    /// Held while others are asked, so that one asks and the rest wait for the answers.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    quota: Quota,
    /// The growth by the writes under way.
    reserved: BucketUsage,
    told: Told,
}

/// The last answers of all backends, this one included.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    by: BTreeMap<String, UsageHere>,
    /// This store's usage then.
    own: BucketUsage,
}

/// Room that a write has until it has ended.
#[must_use = "the room is free again when this is dropped"]
pub struct Room {
    watched: Arc<Watched>,
    reserved: BucketUsage,
    /// Most bytes that there was room for.
    most_bytes: u64,
}

/// The quota of a bucket, and its usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReport {
    /// The quota; the default without one.
    pub quota: Quota,
    /// The cluster's usage of the bucket, each key counted once.
    pub usage: BucketUsage,
    /// Backends that did not answer, so that the usage is estimated.
    pub missing: Vec<String>,
}

impl Replicator {
    /// Reserves room for a write in a bucket. None: the bucket has no quota. `growth` is asked
    /// only if it has one; it may read the store.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`]; an error of `growth`.
    pub async fn reserve(
        &self,
        bucket: &str,
        growth: impl AsyncFnOnce() -> Result<Growth, S3Error>,
    ) -> Result<Option<Room>, S3Error> {
        let Some(store) = &self.node.store else {
            return Ok(None);
        };
        let Some(watched) = self.node.quotas.watched(store, bucket)? else {
            return Ok(None);
        };
        let growth = growth().await?;
        self.hear_others(store, bucket, &watched).await;
        let (backends, replicas) = self.node.spread();
        let own = store.bucket_usage(bucket);
        watched
            .reserve(growth, own, backends.len(), replicas)
            .map(Some)
    }

    /// Asks the other backends, unless their last answers are fresh.
    async fn hear_others(&self, store: &Store, bucket: &str, watched: &Watched) {
        let _one = watched.asking.lock().await;
        if watched.is_fresh() {
            return;
        }
        let own = store.bucket_usage(bucket);
        // A backend that has just failed to answer is asked again later, if its last answer is
        // known.
        let mut skipped: Vec<String> = watched.state.lock().told.by.keys().cloned().collect();
        skipped.retain(|name| self.node.replication.is_avoided(name));
        let answers = self.ask_others(bucket, &skipped).await;
        let mut state = watched.state.lock();
        let told = &mut state.told;
        for (name, answer) in answers {
            if let Some(usage) = answer {
                told.by.insert(name, usage);
            }
        }
        // Only what is stored: the reserved bytes are at hand.
        let here = UsageHere {
            stored: own,
            ..UsageHere::default()
        };
        told.by.insert(self.node.core.name.clone(), here);
        let (backends, _) = self.node.spread();
        told.by.retain(|name, _| backends.contains(name));
        (told.own, told.at) = (own, Some(Instant::now()));
    }

    /// The other backends' usage of a bucket; none of those that are out, or do not answer.
    async fn ask_others(
        &self,
        bucket: &str,
        skipped: &[String],
    ) -> Vec<(String, Option<UsageHere>)> {
        let replication = &self.node.replication;
        let mut others = replication.backends_with(|status| status != Status::Out);
        others.retain(|name| *name != self.node.core.name && !skipped.contains(name));
        let question = Question::Usage {
            bucket: bucket.to_owned(),
        };
        let asked = others.iter().map(async |name| {
            match self.ask_within(ASK_TIMEOUT, name, &question).await {
                Ok(Reply::Usage(usage)) => Some(usage),
                Ok(_) => None,
                Err(_) => {
                    replication.avoid(name);
                    None
                }
            }
        });
        let answers = join_all(asked.collect()).await;
        others.clone().into_iter().zip(answers).collect()
    }

    /// The quota of a bucket and its usage, after this change if there is one.
    ///
    /// # Errors
    /// [`Code::NoSuchBucket`]; unavailable if the registry is out of reach.
    pub(crate) async fn quota(
        &self,
        bucket: &str,
        change: Option<QuotaChange>,
    ) -> Result<QuotaReport, S3Error> {
        let record = match change {
            Some(change) => self.change_quota(bucket, change).await?,
            None => self.agreed(bucket).await?.ok_or(Code::NoSuchBucket)?,
        };
        if record.phase == prism_cluster::replica::Phase::Gone {
            return Err(Code::NoSuchBucket.into());
        }
        let mut told = BTreeMap::new();
        if let Some(store) = &self.node.store {
            let here = self.node.quotas.usage_here(store, bucket);
            told.insert(self.node.core.name.clone(), here);
        }
        for (name, answer) in self.ask_others(bucket, &[]).await {
            told.extend(answer.map(|usage| (name, usage)));
        }
        let (backends, replicas) = self.node.spread();
        let usage = total(backends.len(), &told, replicas);
        let missing = backends.into_iter();
        let missing = missing.filter(|name| !told.contains_key(name)).collect();
        Ok(QuotaReport {
            quota: quota_of(&record),
            usage,
            missing,
        })
    }

    async fn change_quota(&self, bucket: &str, change: QuotaChange) -> Result<Bucket, S3Error> {
        let changed = self.alter_bucket(bucket, |known, stamp| {
            Bucket::change(known, stamp, |next| {
                let quota = quota_of(next).after(change);
                let name = Quota::DOCUMENT.to_owned();
                match quota.document() {
                    Some(text) => drop(next.documents.insert(name, text)),
                    None => drop(next.documents.remove(&name)),
                }
            })
        });
        let changed = changed.await?;
        self.try_push_record(bucket, &changed).await?;
        Ok(changed)
    }
}

impl Node {
    /// The names of all backends, and the number of replicas of each key.
    fn spread(&self) -> (Vec<String>, u16) {
        let backends = self.replication.backends();
        let replicas = self.replication.view().state().placing.replicas;
        (backends, replicas)
    }
}

impl Quotas {
    /// The bucket, if it has a quota. Reads the store only after a record has changed.
    fn watched(&self, store: &Store, bucket: &str) -> Result<Option<Arc<Watched>>, S3Error> {
        // Read first, so that the next call finds later changes.
        let version = store.buckets().version();
        if let Some(known) = self.0.lock().get(bucket)
            && known.version == version
        {
            return Ok(known.watched.clone());
        }
        let document = store.buckets().document(bucket, Quota::DOCUMENT).in_s3()?;
        let quota = document.and_then(|text| read(bucket, &text));
        let mut all = self.0.lock();
        // Writes under way keep their own part of it.
        if all.len() >= BUCKETS_MAX {
            all.clear();
        }
        let known = all.remove(bucket).and_then(|known| known.watched);
        let watched = quota.map(|quota| {
            let watched = known.unwrap_or_default();
            watched.state.lock().quota = quota;
            watched
        });
        let known = Known {
            version,
            watched: watched.clone(),
        };
        all.insert(bucket.to_owned(), known);
        Ok(watched)
    }

    /// This node's answer to another backend.
    pub(crate) fn usage_here(&self, store: &Store, bucket: &str) -> UsageHere {
        let all = self.0.lock();
        let watched = all.get(bucket).and_then(|known| known.watched.as_ref());
        UsageHere {
            stored: store.bucket_usage(bucket),
            reserved: watched.map_or_else(BucketUsage::default, |watched| {
                watched.state.lock().reserved
            }),
        }
    }
}

impl Watched {
    fn is_fresh(&self) -> bool {
        let at = self.state.lock().told.at;
        at.is_some_and(|at| at.elapsed() < REFRESH_INTERVAL)
    }

    fn reserve(
        self: Arc<Self>,
        growth: Growth,
        own: BucketUsage,
        backends: usize,
        replicas: u16,
    ) -> Result<Room, S3Error> {
        let mut state = self.state.lock();
        let stored = total(backends, &state.told.by, replicas);
        let stored = moved(stored, state.told.own, own);
        let used = BucketUsage {
            bytes: stored.bytes.saturating_add(state.reserved.bytes),
            objects: stored.objects.saturating_add(state.reserved.objects),
        };
        state.quota.check(used, growth)?;
        let reserved = growth.net();
        state.reserved.bytes = state.reserved.bytes.saturating_add(reserved.bytes);
        state.reserved.objects = state.reserved.objects.saturating_add(reserved.objects);
        let limit = state.quota.bytes.unwrap_or(u64::MAX);
        drop(state);
        let left = limit.saturating_sub(used.bytes);
        Ok(Room {
            watched: self,
            reserved,
            most_bytes: left
                .saturating_add(growth.replaces.bytes)
                .max(growth.adds.bytes),
        })
    }
}

impl Room {
    /// Checks that a body, whose length the client did not say, still has room at `written`
    /// bytes.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`].
    pub fn check(&self, written: u64) -> Result<(), S3Error> {
        if written > self.most_bytes {
            Err(Code::QuotaExceeded.with_message(format!(
                "The body is longer than the {} bytes that the quota of the bucket leaves.",
                self.most_bytes
            )))
        } else {
            Ok(())
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let reserved = &mut self.watched.state.lock().reserved;
        reserved.bytes = reserved.bytes.saturating_sub(self.reserved.bytes);
        reserved.objects = reserved.objects.saturating_sub(self.reserved.objects);
    }
}

/// The quota in a bucket's record; the default without one.
fn quota_of(record: &Bucket) -> Quota {
    let text = record.documents.get(Quota::DOCUMENT);
    text.and_then(|text| Quota::parse(text.as_bytes()).ok())
        .unwrap_or_default()
}

fn read(bucket: &str, document: &[u8]) -> Option<Quota> {
    let quota = Quota::parse(document);
    let quota = quota.inspect_err(|error| {
        tracing::error!(bucket, %error, "cannot read the bucket's quota, so it has none; `prism ctl bucket quota` sets it");
    });
    quota.ok()
}
