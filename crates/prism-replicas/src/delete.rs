//! Deletions in this node's store, with their conditions and versions.

use prism_s3::xml::DeleteTarget;
use prism_s3::{Code, Conditions, Outcome, S3Error};
use prism_store::{Error, ObjectMeta, Removed, Store, ToDelete, VersionId, Versioning};

use crate::errors::{StoreResult, store_error};
use crate::fence::elsewhere;
use crate::question::Deleted;
use crate::replication::Replication;

/// The version that a request names, if it names one.
///
/// # Errors
/// The text is no version id.
pub fn named(version: Option<&str>) -> Result<Option<VersionId>, S3Error> {
    let invalid = || Code::InvalidArgument.with_message("Invalid version id specified.");
    let id = version.map(|text| VersionId::parse(text).ok_or_else(invalid));
    id.transpose()
}

/// Deletes an object, or a version, if the conditions hold. Blocks on disk.
pub fn delete(
    store: &Store,
    bucket: &str,
    deletion: ToDelete<'_>,
    conditions: &Conditions,
) -> Result<Option<Removed>, S3Error> {
    let done = match conditions.is_empty() {
        // A missing object needs no write.
        true if deletion.version.is_none() && is_absent(store, bucket, deletion.key)? => Ok(None),
        true => store.delete_version(bucket, deletion, None),
        false => {
            let asked = conditions.clone();
            let condition = Box::new(move |current: Option<&ObjectMeta>| holds(&asked, current));
            store.delete_version(bucket, deletion, Some(condition))
        }
    };
    done.map_err(|e| conditions_error(conditions, &e))
}

/// Whether a deletion of the key changes nothing, not even by a delete marker.
fn is_absent(store: &Store, bucket: &str, key: &str) -> Result<bool, S3Error> {
    if store.head(bucket, key).in_s3()?.is_some() {
        return Ok(false);
    }
    let info = store.buckets().get(bucket).in_s3()?;
    Ok(info.versioning == Versioning::Never)
}

/// Whether the conditions of a write hold for what its key has now.
pub fn holds(conditions: &Conditions, current: Option<&ObjectMeta>) -> bool {
    let etag = current.map(|meta| meta.etag.as_str());
    conditions.for_write(etag) == Outcome::Proceed
}

/// The error of a conditional write.
pub fn conditions_error(conditions: &Conditions, error: &Error) -> S3Error {
    match error {
        Error::ConditionFailed { exists: false } if conditions.needs_object() => {
            Code::NoSuchKey.into()
        }
        Error::Busy => Code::ServiceUnavailable
            .with_message("The bucket may be about to be deleted. Please try again."),
        error => store_error(error),
    }
}

/// Deletes the targets whose primary is this node: in one commit, except those with a condition.
/// Blocks on disk.
pub(crate) fn delete_here(
    store: &Store,
    replication: &Replication,
    bucket: &str,
    targets: &[DeleteTarget],
) -> Result<Vec<Deleted>, S3Error> {
    // `None` has its result in the one commit of the plain deletions.
    let mut results = Vec::new();
    let mut plain = Vec::new();
    for target in targets {
        let key = target.key.as_str();
        let version = if replication.is_primary(bucket, key) {
            named(target.version.as_deref())
        } else {
            tracing::warn!(
                bucket,
                key,
                "did not delete a key: this node is not its primary"
            );
            Err(elsewhere())
        };
        results.push(match (version, &target.etag) {
            (Err(error), _) => Some(Err(error)),
            (Ok(version), Some(etag)) => {
                let conditions = Conditions::matching(etag);
                Some(delete(
                    store,
                    bucket,
                    ToDelete { key, version },
                    &conditions,
                ))
            }
            (Ok(version), None) => {
                plain.push(ToDelete { key, version });
                None
            }
        });
    }
    let mut done = store.delete_many(bucket, &plain).in_s3()?.into_iter();
    let results = results.into_iter().map(|result| {
        let result = result.or_else(|| done.next().map(StoreResult::in_s3));
        result.map(Deleted::from_result)
    });
    let results: Option<Vec<Deleted>> = results.collect();
    results.ok_or_else(|| Code::InternalError.into())
}
