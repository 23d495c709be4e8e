//! The quota of a bucket, and its arithmetic: the cluster's usage by the counts of its backends,
//! and whether a write may add to that.
//!
//! Not here: asking the backends (`quotas.rs`), and counting (`prism_store::BucketUsage`).

use std::collections::BTreeMap;

use prism_cluster::replica::Bucket;
use prism_s3::{Code, S3Error};
use prism_store::BucketUsage;
use serde::{Deserialize, Serialize};

/// The most that a bucket may have. It is a document of the bucket's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Quota {
    /// Bytes of objects, of their versions and of the parts of open uploads; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Objects, and versions that are not current; none: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
}

/// A change of a quota. Outer none: the limit stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaChange {
    /// The new limit of bytes, or no limit.
    pub bytes: Option<Option<u64>>,
    /// The new limit of objects, or no limit.
    pub objects: Option<Option<u64>>,
}

/// The growth of a bucket by a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// The new bytes and objects.
    pub adds: BucketUsage,
    /// The bytes and objects that they replace.
    pub replaces: BucketUsage,
}

/// One backend's answer about a bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsageHere {
    /// The usage of its store. Each replica of a key counts.
    pub stored: BucketUsage,
    /// The growth by the writes under way. Only the primary of a key counts it.
    pub reserved: BucketUsage,
}

impl Quota {
    /// The name of the document.
    pub const DOCUMENT: &str = Bucket::QUOTA;

    /// Reads the document. A limit of a later release is ignored.
    ///
    /// # Errors
    /// It is no JSON object of this form.
    pub fn parse(document: &[u8]) -> serde_json::Result<Self> {
        serde_json::from_slice(document)
    }

    /// The document; none without any limit.
    #[must_use]
    pub fn document(self) -> Option<String> {
        let has_limit = self != Self::default();
        has_limit.then(|| serde_json::to_string(&self).unwrap_or_default())
    }

    /// The quota after a change.
    #[must_use]
    pub fn after(self, change: QuotaChange) -> Self {
        Self {
            bytes: change.bytes.unwrap_or(self.bytes),
            objects: change.objects.unwrap_or(self.objects),
        }
    }

    /// Whether a bucket with `used` may grow. A write that does not add to a limited number is
    /// allowed also beyond the limit.
    ///
    /// # Errors
    /// [`Code::QuotaExceeded`], with the limit and the usage.
    pub(crate) fn check(self, used: BucketUsage, growth: Growth) -> Result<(), S3Error> {
        let net = growth.net();
        let numbers = [
            (self.bytes, used.bytes, net.bytes, "bytes"),
            (self.objects, used.objects, net.objects, "objects"),
        ];
        for (limit, used, more, what) in numbers {
            let Some(limit) = limit else { continue };
            if more > 0 && used.saturating_add(more) > limit {
                return Err(Code::QuotaExceeded.with_message(format!(
                    "The quota of the bucket is {limit} {what}. It has {used}, and the request \
                     adds {more}. Delete objects, or ask the administrator for a larger quota."
                )));
            }
        }
        Ok(())
    }
}

impl Growth {
    /// The growth by an object of `bytes` that replaces an object of this length.
    #[must_use]
    pub fn by_object(bytes: u64, replaced: Option<u64>) -> Self {
        let of = |bytes| BucketUsage { bytes, objects: 1 };
        Self {
            adds: of(bytes),
            replaces: replaced.map(of).unwrap_or_default(),
        }
    }

    /// The growth by a part of `bytes` that replaces a part of this length.
    #[must_use]
    pub fn by_part(bytes: u64, replaced: Option<u64>) -> Self {
        let of = |bytes| BucketUsage { bytes, objects: 0 };
        Self {
            adds: of(bytes),
            replaces: replaced.map(of).unwrap_or_default(),
        }
    }

    /// The growth by the same write, now that it has `bytes` and replaces this length.
    pub(crate) fn at_commit(self, bytes: u64, replaced: Option<u64>) -> Self {
        match self.adds.objects {
            0 => Self::by_part(bytes, replaced),
            _ => Self::by_object(bytes, replaced),
        }
    }

    pub(crate) fn net(self) -> BucketUsage {
        less(self.adds, self.replaces)
    }
}

/// The sum of two usages.
pub(crate) fn plus(one: BucketUsage, other: BucketUsage) -> BucketUsage {
    BucketUsage {
        bytes: one.bytes.saturating_add(other.bytes),
        objects: one.objects.saturating_add(other.objects),
    }
}

/// A usage without a part of it.
pub(crate) fn less(usage: BucketUsage, part: BucketUsage) -> BucketUsage {
    BucketUsage {
        bytes: usage.bytes.saturating_sub(part.bytes),
        objects: usage.objects.saturating_sub(part.objects),
    }
}

/// The cluster's usage of a bucket by the answers of its backends, each key counted once.
/// Backends that never answered are taken to have as much as the others have on average:
/// placement gives each of them the same share.
pub(crate) fn total(
    backends: usize,
    told: &BTreeMap<String, UsageHere>,
    replicas: u16,
) -> BucketUsage {
    if told.is_empty() {
        return BucketUsage::default();
    }
    let sum = |of: fn(&UsageHere) -> u64| told.values().map(|told| u128::from(of(told))).sum();
    let scaled = |stored: u128, reserved: u128| {
        let stored = stored * backends.max(told.len()) as u128 / told.len() as u128;
        let once = stored / u128::from(replicas.max(1));
        u64::try_from(once + reserved).unwrap_or(u64::MAX)
    };
    BucketUsage {
        bytes: scaled(
            sum(|told| told.stored.bytes),
            sum(|told| told.reserved.bytes),
        ),
        objects: scaled(
            sum(|told| told.stored.objects),
            sum(|told| told.reserved.objects),
        ),
    }
}

/// A usage after this store's own has changed from `before` to `now`. Its own changes are changes
/// of different keys, so each counts once.
pub(crate) fn moved(total: BucketUsage, before: BucketUsage, now: BucketUsage) -> BucketUsage {
    let moved =
        |total: u64, before: u64, now: u64| total.saturating_add(now).saturating_sub(before);
    BucketUsage {
        bytes: moved(total.bytes, before.bytes, now.bytes),
        objects: moved(total.objects, before.objects, now.objects),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn usage(bytes: u64, objects: u64) -> BucketUsage {
        BucketUsage { bytes, objects }
    }

    #[test]
    fn a_quota_is_read_as_it_was_written_and_none_is_no_document() {
        for (quota, text) in [
            (
                Quota {
                    bytes: Some(5),
                    objects: None,
                },
                "{\"bytes\":5}",
            ),
            (
                Quota {
                    bytes: Some(0),
                    objects: Some(7),
                },
                "{\"bytes\":0,\"objects\":7}",
            ),
        ] {
            assert_eq!(quota.document().unwrap(), text);
            assert_eq!(Quota::parse(text.as_bytes()).unwrap(), quota);
        }
        assert_eq!(Quota::default().document(), None);
        assert!(Quota::parse(b"{\"bytes\":-1}").is_err() && Quota::parse(b"").is_err());
        let quota = Quota {
            bytes: Some(5),
            objects: Some(6),
        };
        let change = QuotaChange {
            bytes: Some(None),
            objects: None,
        };
        assert_eq!(
            quota.after(change),
            Quota {
                bytes: None,
                objects: Some(6)
            }
        );
    }

    #[test]
    fn a_write_is_refused_at_the_first_byte_or_object_too_many() {
        let quota = Quota {
            bytes: Some(100),
            objects: Some(3),
        };
        let refused = |used, growth| quota.check(used, growth).err().map(|e| e.code());
        assert_eq!(refused(usage(90, 2), Growth::by_object(10, None)), None);
        let too_many = Some(Code::QuotaExceeded);
        assert_eq!(refused(usage(90, 2), Growth::by_object(11, None)), too_many);
        assert_eq!(refused(usage(0, 3), Growth::by_object(0, None)), too_many);
        assert_eq!(refused(usage(0, 3), Growth::by_part(100, None)), None);
        // Only the difference counts, and what does not grow is allowed beyond the limit.
        assert_eq!(refused(usage(90, 3), Growth::by_object(20, Some(10))), None);
        assert_eq!(
            refused(usage(90, 3), Growth::by_object(21, Some(10))),
            too_many
        );
        assert_eq!(
            refused(usage(500, 9), Growth::by_object(10, Some(10))),
            None
        );
        let error = quota.check(usage(90, 2), Growth::by_object(11, None));
        let message = error.unwrap_err().message().to_owned();
        for number in ["100 bytes", "has 90", "adds 11"] {
            assert!(message.contains(number), "{message}");
        }
    }

    #[test]
    fn each_key_counts_once_whatever_the_number_of_its_replicas() {
        let here = |bytes| UsageHere {
            stored: usage(bytes, bytes / 10),
            reserved: usage(1, 0),
        };
        let told = |names: &[&str]| -> BTreeMap<String, UsageHere> {
            names
                .iter()
                .map(|name| ((*name).to_owned(), here(100)))
                .collect()
        };
        assert_eq!(total(3, &told(&["a", "b", "c"]), 1), usage(303, 30));
        assert_eq!(total(3, &told(&["a", "b", "c"]), 2), usage(153, 15));
        assert_eq!(total(3, &told(&["a", "b", "c"]), 3), usage(103, 10));
        // One has never answered.
        assert_eq!(total(3, &told(&["a", "b"]), 1), usage(302, 30));
        assert_eq!(total(3, &BTreeMap::new(), 1), usage(0, 0));
        // A backend that has left the cluster still had to be counted.
        assert_eq!(total(1, &told(&["a", "b"]), 1), usage(202, 20));
        assert_eq!(moved(usage(10, 5), usage(4, 4), usage(6, 0)), usage(12, 1));
        assert_eq!(moved(usage(1, 0), usage(4, 0), usage(0, 0)), usage(0, 0));
    }
}
