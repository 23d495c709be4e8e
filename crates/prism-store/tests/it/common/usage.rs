//! The usage of a bucket as a client would count it.

use prism_store::{BucketUsage, Entry, Error, Position, Step, Store, UploadName, VersionPosition};

/// Counts everything that a store lists of a bucket. No change is open.
pub(crate) fn listed(store: &Store, bucket: &str) -> BucketUsage {
    let mut usage = BucketUsage::default();
    let visit = |entry: Entry| {
        usage.bytes += entry.len;
        usage.objects += u64::from(!entry.is_marker);
        Step::Entry
    };
    let begin = VersionPosition::Key(Position::Start);
    match store.scan_versions(bucket, "", begin, visit) {
        Err(Error::NoSuchBucket) => return usage,
        scanned => scanned.unwrap(),
    }
    let (uploads, _) = store.uploads().list(bucket, "", None, usize::MAX).unwrap();
    for upload in uploads {
        let (key, id) = (upload.key.as_str(), upload.id);
        let name = UploadName { bucket, key, id };
        let (parts, _) = store.uploads().parts(name, 0, usize::MAX).unwrap();
        usage.bytes += parts.iter().map(|part| part.len).sum::<u64>();
    }
    usage
}

/// Compares a store's own count of a bucket with its lists.
pub(crate) fn check_usage(store: &Store, bucket: &str, context: &str) {
    assert_eq!(
        store.bucket_usage(bucket),
        listed(store, bucket),
        "{context}"
    );
}
