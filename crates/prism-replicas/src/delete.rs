//! Deletions in this node's store, with their conditions and versions.

use prism_s3::{Code, Conditions, Outcome, S3Error};
use prism_store::{Error, ObjectMeta, Removed, Store, ToDelete, VersionId, Versioning};

use crate::errors::store_error;
use crate::fence::elsewhere;
use crate::question::{Deleted, Target};
use crate::replication::Replication;

/// The version that a request names, if it names one.
///
/// # Errors
/// The text is no version id.
pub fn named(version: Option<&str>) -> Result<Option<VersionId>, S3Error> {
    let Some(text) = version else {
        return Ok(None);
    };
    let id = VersionId::parse(text)
        .ok_or_else(|| Code::InvalidArgument.with_message("Invalid version id specified."))?;
    Ok(Some(id))
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
    let found = store.head(bucket, key).map_err(|e| store_error(&e))?;
    if found.is_some() {
        return Ok(false);
    }
    let info = store.buckets().get(bucket).map_err(|e| store_error(&e))?;
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
    targets: &[Target],
) -> Result<Vec<Deleted>, S3Error> {
    let mut results: Vec<Option<Deleted>> = vec![None; targets.len()];
    let (mut plain, mut places) = (Vec::new(), Vec::new());
    for (target, result) in targets.iter().zip(&mut results) {
        if !replication.is_primary(bucket, &target.key) {
            let error = elsewhere();
            tracing::warn!(%error, bucket, key = target.key, "did not delete a key: this node is not its primary");
            *result = Some(Deleted::from_result(Err(error)));
            continue;
        }
        let version = match named(target.version.as_deref()) {
            Ok(version) => version,
            Err(error) => {
                *result = Some(Deleted::from_result(Err(error)));
                continue;
            }
        };
        let key = target.key.as_str();
        let deletion = ToDelete { key, version };
        match &target.etag {
            None => {
                plain.push(deletion);
                places.push(result);
            }
            Some(etag) => {
                let conditions = Conditions::matching(etag);
                let done = delete(store, bucket, deletion, &conditions);
                *result = Some(Deleted::from_result(done));
            }
        }
    }
    let done = store.delete_many(bucket, &plain);
    for (place, done) in places.into_iter().zip(done.map_err(|e| store_error(&e))?) {
        *place = Some(Deleted::from_result(done.map_err(|e| store_error(&e))));
    }
    let results: Option<Vec<Deleted>> = results.into_iter().collect();
    results.ok_or_else(|| Code::InternalError.into())
}
