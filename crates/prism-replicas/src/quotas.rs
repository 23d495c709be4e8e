//! Quotas of buckets: a primary asks whether a write still fits, before the body is read. It asks
//! again at the commit, where it knows the length of the body and what the write replaces.
//!
//! A backend knows its own usage exactly. It asks the other backends for theirs when a write
//! comes and their last answers are older than [`REFRESH_INTERVAL`]. Buckets without a quota, or
//! without writes, cost no questions.
//!
//! A backend counts the writes under way at itself (they are *reserved*) and tells them to the
//! others. So writes miss each other only if they begin or end at different backends within
//! [`REFRESH_INTERVAL`] and [`ASK_TIMEOUT`], 1.5 s together. When L bytes are left and the
//! bucket's writes go to B backends, they exceed the quota by at most (B - 1) x L. From then on
//! all writes that add to it are refused. L is at most the quota, so a bucket never has more than
//! B times its quota.
//!
//! Not here: the arithmetic (`quota.rs`).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prism_cluster::Status;
use prism_cluster::replica::{Bucket, Phase};
use prism_s3::{Code, S3Error};
use prism_service::join_all;
use prism_store::{BUCKETS_MAX, BucketUsage, QuotaCheck, Store};

use crate::errors::StoreResult;
use crate::question::{Question, Reply};
use crate::quota::{Growth, Quota, QuotaChange, UsageHere, less, moved, plus, total};
use crate::{Node, Replicator};

/// The age of other backends' answers from which on they are asked again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);
/// Time for them to answer. Without an answer the last one counts.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Names without a bucket that may have quotas before further limits are refused. Later deletions
/// of buckets may add those of [`BUCKETS_MAX`]. Each takes some 300 bytes in etcd and in stores.
const UNUSED_MAX: usize = 1000;

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

/// Room that a write has until it has ended. A clone is the same room.
#[derive(Clone)]
#[must_use = "the room is free again when the last clone is dropped"]
pub struct Room(Arc<Reservation>);

struct Reservation {
    node: Arc<Node>,
    bucket: String,
    watched: Arc<Watched>,
    growth: Growth,
    reserved: Mutex<BucketUsage>,
    /// Most bytes that there was room for.
    most_bytes: u64,
}

/// The quota of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedQuota {
    /// The name of the bucket.
    pub bucket: String,
    /// Whether there is a bucket of this name. If not, the quota is for the next one.
    pub exists: bool,
    /// The quota.
    pub quota: Quota,
}

/// The quota of a bucket, and its usage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReport {
    /// Whether there is a bucket of this name.
    pub exists: bool,
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
        let mut reserved = BucketUsage::default();
        let used = watched.reserve(&self.node, bucket, growth, &mut reserved)?;
        let limit = watched.state.lock().quota.bytes.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(used.bytes);
        let most_bytes = left.saturating_add(growth.replaces.bytes);
        Ok(Some(Room(Arc::new(Reservation {
            node: self.node.clone(),
            bucket: bucket.to_owned(),
            watched,
            growth,
            reserved: Mutex::new(reserved),
            most_bytes: most_bytes.max(growth.adds.bytes),
        }))))
    }

    /// Asks the other backends again before a commit, if their answers are from before a long body.
    pub async fn refresh(&self, room: &Room) {
        if let Some(store) = &self.node.store {
            let Reservation {
                bucket, watched, ..
            } = &*room.0;
            self.hear_others(store, bucket, watched).await;
        }
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

    /// The quotas of all names, in their order.
    ///
    /// # Errors
    /// Unavailable if the registry is out of reach.
    pub(crate) async fn quotas(&self) -> Result<Vec<NamedQuota>, S3Error> {
        let agreed = match self.node.keeper() {
            Some(keeper) if !self.node.core.cluster.is_in_etcd() => {
                Arc::new(self.buckets_of(&keeper, None).await?.1)
            }
            _ => self.all_agreed().await?,
        };
        let records = agreed.records.iter();
        let limited = records.filter(|(_, record)| record.has_quota());
        Ok(limited
            .map(|(name, record)| NamedQuota {
                bucket: name.clone(),
                exists: record.phase != Phase::Gone,
                quota: quota_of(record),
            })
            .collect())
    }

    /// The quota of a name and the usage of its bucket, after this change if there is one.
    ///
    /// # Errors
    /// [`Code::NoSuchBucket`] without a bucket and a quota; [`Code::InvalidRequest`] for a limit
    /// while too many names without a bucket have quotas; unavailable if the registry is out of
    /// reach.
    pub(crate) async fn quota(
        &self,
        bucket: &str,
        change: Option<QuotaChange>,
    ) -> Result<QuotaReport, S3Error> {
        let record = match change {
            Some(change) => self.change_quota(bucket, change).await?,
            None => {
                let known = self.agreed(bucket).await?;
                let known = known.filter(|known| known.phase != Phase::Gone || known.has_quota());
                known.ok_or(Code::NoSuchBucket)?
            }
        };
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
            exists: record.phase != Phase::Gone,
            quota: quota_of(&record),
            usage,
            missing,
        })
    }

    async fn change_quota(&self, bucket: &str, change: QuotaChange) -> Result<Bucket, S3Error> {
        let limits = [change.bytes, change.objects].into_iter().flatten();
        if limits.flatten().next().is_some() {
            check_unused(&self.quotas().await?)?;
        }
        let changed = self.alter_bucket(bucket, |known, stamp| {
            Bucket::change_quota(known, stamp, |next| {
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

    /// Reserves the growth by a write, in place of the `reserved` that it has. Returns the usage
    /// without this write.
    fn reserve(
        &self,
        node: &Node,
        bucket: &str,
        growth: Growth,
        reserved: &mut BucketUsage,
    ) -> Result<BucketUsage, S3Error> {
        let (backends, replicas) = node.spread();
        let own = node.store.as_ref().map(|store| store.bucket_usage(bucket));
        let mut state = self.state.lock();
        let stored = total(backends.len(), &state.told.by, replicas);
        let stored = moved(stored, state.told.own, own.unwrap_or_default());
        let others = less(state.reserved, *reserved);
        let used = plus(stored, others);
        state.quota.check(used, growth)?;
        *reserved = growth.net();
        state.reserved = plus(others, *reserved);
        Ok(used)
    }
}

impl Room {
    /// The check of the write at its commit. The room grows if the write adds more by then: the
    /// body came without a length, or the object that it was to replace is gone.
    pub fn check_at_commit(&self) -> QuotaCheck {
        let room = self.clone();
        Box::new(move |bytes, replaced| {
            let Reservation {
                node,
                bucket,
                watched,
                growth,
                reserved,
                ..
            } = &*room.0;
            let growth = growth.at_commit(bytes, replaced);
            let mut reserved = reserved.lock();
            if less(growth.net(), *reserved) == BucketUsage::default() {
                return Ok(());
            }
            let fits = watched.reserve(node, bucket, growth, &mut reserved);
            fits.map(drop)
                .map_err(|error| prism_store::Error::QuotaExceeded(error.message().into()))
        })
    }

    /// Checks that a body, whose length the client did not say, still has room at `written`
    /// bytes.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`].
    pub fn check(&self, written: u64) -> Result<(), S3Error> {
        let most_bytes = self.0.most_bytes;
        if written > most_bytes {
            Err(Code::QuotaExceeded.with_message(format!(
                "The body is longer than the {most_bytes} bytes that the quota of the bucket leaves."
            )))
        } else {
            Ok(())
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut state = self.watched.state.lock();
        state.reserved = less(state.reserved, *self.reserved.get_mut());
    }
}

/// The quota in a bucket's record; the default without one.
fn quota_of(record: &Bucket) -> Quota {
    let text = record.documents.get(Quota::DOCUMENT);
    text.and_then(|text| Quota::parse(text.as_bytes()).ok())
        .unwrap_or_default()
}

/// Checks that few names without a bucket have quotas.
fn check_unused(quotas: &[NamedQuota]) -> Result<(), S3Error> {
    let unused = quotas.iter().filter(|named| !named.exists).count();
    if unused < UNUSED_MAX {
        return Ok(());
    }
    Err(Code::InvalidRequest.with_message(format!(
        "{unused} names without a bucket have quotas, and at most {UNUSED_MAX} may. `prism ctl \
         bucket quota` lists them, and `prism ctl bucket quota NAME --none` removes one."
    )))
}

fn read(bucket: &str, document: &[u8]) -> Option<Quota> {
    let quota = Quota::parse(document);
    let quota = quota.inspect_err(|error| {
        tracing::error!(bucket, %error, "cannot read the bucket's quota, so it has none; `prism ctl bucket quota` sets it");
    });
    quota.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_of_names_without_a_bucket_are_bounded_and_those_of_buckets_are_not() {
        let mut quotas: Vec<_> = (0..2 * UNUSED_MAX)
            .map(|n| NamedQuota {
                bucket: n.to_string(),
                exists: n >= UNUSED_MAX,
                quota: Quota::default(),
            })
            .collect();
        let refused = check_unused(&quotas).err().map(|error| error.code());
        assert_eq!(refused, Some(Code::InvalidRequest));
        quotas.remove(0);
        assert!(check_unused(&quotas).is_ok());
    }
}
