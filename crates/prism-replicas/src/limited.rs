//! The buckets with a quota, and a backend's share of what counts against it, for metrics.
//!
//! Not here: whether a write fits (`quotas.rs`). That asks the other backends.

use std::sync::Arc;

use parking_lot::Mutex;
use prism_store::{BucketUsage, Error, Store};

use crate::Node;
use crate::quota::Quota;

/// Buckets that metrics show. Each adds at most four series at each backend.
pub const SHOWN_BUCKETS_MAX: usize = 100;

/// The buckets with a quota, as of a version of the store's records.
#[derive(Default)]
pub(crate) struct Limited(Mutex<Option<Arc<Listed>>>);

struct Listed {
    version: u64,
    count: usize,
    first: Vec<(String, Quota)>,
}

/// The buckets with a quota at a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedBuckets {
    /// Their number.
    pub count: usize,
    /// The first ones by name, at most [`SHOWN_BUCKETS_MAX`].
    pub first: Vec<LimitedBucket>,
}

/// A bucket with a quota.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitedBucket {
    /// Its name.
    pub name: String,
    /// Its quota.
    pub quota: Quota,
    /// The usage of this store, divided by the replicas of each key. The sum over all backends is
    /// the bucket's usage.
    pub share: BucketUsage,
}

impl Node {
    /// The buckets with a quota; `None` without a store, or if it cannot be read. May block on disk
    /// after a bucket has changed.
    #[must_use]
    pub fn limited_buckets(&self) -> Option<LimitedBuckets> {
        let store = self.store.as_ref()?;
        let listed = self.limited.listed(store);
        let listed = listed.inspect_err(
            |error| tracing::warn!(%error, "cannot read the quotas of buckets for metrics"),
        );
        let listed = listed.ok()?;
        let replicas = u64::from(self.replication.view().state().placing.replicas.max(1));
        let first = listed.first.iter().map(|(name, quota)| {
            let here = store.bucket_usage(name);
            LimitedBucket {
                name: name.clone(),
                quota: *quota,
                share: BucketUsage {
                    bytes: here.bytes / replicas,
                    objects: here.objects / replicas,
                },
            }
        });
        Some(LimitedBuckets {
            count: listed.count,
            first: first.collect(),
        })
    }
}

impl Limited {
    /// The list; it is read again after a bucket's record has changed.
    fn listed(&self, store: &Store) -> Result<Arc<Listed>, Error> {
        // Read first, so that the next call finds later changes.
        let version = store.buckets().version();
        let mut known = self.0.lock();
        if let Some(listed) = known.as_ref().filter(|known| known.version == version) {
            return Ok(listed.clone());
        }
        let mut count = 0;
        let mut first = Vec::new();
        for bucket in store.buckets().list()? {
            let document = match store.buckets().document(&bucket.name, Quota::DOCUMENT) {
                // It was deleted meanwhile.
                Err(Error::NoSuchBucket) => None,
                document => document?,
            };
            let quota = document.and_then(|text| Quota::parse(&text).ok());
            let Some(quota) = quota.filter(|quota| *quota != Quota::default()) else {
                continue;
            };
            count += 1;
            if first.len() < SHOWN_BUCKETS_MAX {
                first.push((bucket.name, quota));
            }
        }
        let listed = Arc::new(Listed {
            version,
            count,
            first,
        });
        *known = Some(listed.clone());
        Ok(listed)
    }
}
