//! The buckets with a quota, and what they have by a backend's own share, for metrics and
//! operators.
//!
//! Not here: whether a write fits (`quotas.rs`). That asks the other backends.

use std::sync::Arc;

use parking_lot::Mutex;
use prism_store::{BucketUsage, Error, Store};
use serde::Serialize;

use crate::Node;
use crate::quota::Quota;

/// A bucket is near its quota from this share of it on.
const NEAR_SHARE: f64 = 0.9;

/// The buckets with a quota, as of a version of the store's records.
#[derive(Default)]
pub(crate) struct Limited(Mutex<Option<Arc<Listed>>>);

struct Listed {
    version: u64,
    buckets: Vec<(String, Quota)>,
}

/// A bucket with a quota.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitedBucket {
    /// Its name.
    pub bucket: String,
    /// Its quota.
    pub quota: Quota,
    /// The usage of the cluster, if each backend has as much of it as this one. Placement gives
    /// each the same share of many keys.
    pub estimate: BucketUsage,
}

impl LimitedBucket {
    /// Whether the estimate is 90 % of a limit, or more.
    #[must_use]
    pub fn is_near_quota(&self) -> bool {
        let Self {
            quota, estimate, ..
        } = self;
        let is_near = |used: u64, limit: Option<u64>| {
            limit.is_some_and(|limit| used as f64 >= NEAR_SHARE * limit as f64)
        };
        is_near(estimate.bytes, quota.bytes) || is_near(estimate.objects, quota.objects)
    }
}

impl Node {
    /// The buckets with a quota; `None` without a store, or if it cannot be read. May block on disk
    /// after a bucket has changed.
    #[must_use]
    pub fn limited_buckets(&self) -> Option<Vec<LimitedBucket>> {
        let store = self.store.as_ref()?;
        let listed = self.limited.listed(store);
        let listed = listed.inspect_err(
            |error| tracing::warn!(%error, "cannot read the quotas of buckets for metrics"),
        );
        let listed = listed.ok()?;
        let replicas = u64::from(self.replication.view().state().placing.replicas.max(1));
        let backends = self.replication.backends().len() as u64;
        let of_all = |here: u64| here.saturating_mul(backends) / replicas;
        let buckets = listed.buckets.iter().map(|(name, quota)| {
            let here = store.bucket_usage(name);
            LimitedBucket {
                bucket: name.clone(),
                quota: *quota,
                estimate: BucketUsage {
                    bytes: of_all(here.bytes),
                    objects: of_all(here.objects),
                },
            }
        });
        Some(buckets.collect())
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
        let mut buckets = Vec::new();
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
            buckets.push((bucket.name, quota));
        }
        let listed = Arc::new(Listed { version, buckets });
        *known = Some(listed.clone());
        Ok(listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_near_its_quota_by_either_limit() {
        let bucket = |bytes, objects, used_bytes, used_objects| LimitedBucket {
            bucket: "b".into(),
            quota: Quota { bytes, objects },
            estimate: BucketUsage {
                bytes: used_bytes,
                objects: used_objects,
            },
        };
        assert!(bucket(Some(100), None, 90, 9).is_near_quota());
        assert!(bucket(Some(100), Some(10), 89, 9).is_near_quota());
        assert!(!bucket(Some(100), Some(10), 89, 8).is_near_quota());
        assert!(!bucket(None, None, 1_000, 1_000).is_near_quota());
    }
}
