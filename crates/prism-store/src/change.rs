//! Deletions of objects and versions, and changes of their metadata.

use std::collections::{BTreeMap, HashMap};

use crate::{
    commit::{Condition, DeleteOp, Op},
    error::Error,
    keys::{checked_key, object_key},
    store::Store,
    types::{ObjectMeta, Removed, ToDelete, VersionId, check_key},
};

/// The outcome of a deletion; `None` in a bucket without versions.
pub type DeleteResult = Result<Option<Removed>, Error>;

impl Store {
    /// Deletes an object, or one version of it, if the condition holds at the moment of the
    /// commit. Returns the result where versions are kept. Works on a full disk. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`].
    pub fn delete_version(
        &self,
        bucket: &str,
        deletion: ToDelete<'_>,
        condition: Option<Condition>,
    ) -> Result<Option<Removed>, Error> {
        let outcome = self.submit(Op::Delete(DeleteOp {
            bucket: bucket.to_owned(),
            deletions: vec![(checked_key(bucket, deletion.key)?, deletion.version)],
            condition,
        }))?;
        Ok(outcome.removed.first().copied().flatten())
    }

    /// Deletes several objects, or versions, of one bucket, and returns the outcome of each,
    /// as [`Store::delete_version`] does. Different keys with the same replicas are deleted
    /// in one commit. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`], and then nothing is deleted.
    pub fn delete_many(
        &self,
        bucket: &str,
        deletions: &[ToDelete<'_>],
    ) -> Result<Vec<DeleteResult>, Error> {
        self.existing_bucket(bucket)?;
        let others = |deletion: &ToDelete<'_>| {
            check_key(deletion.key)?;
            self.primary.others_of(bucket, deletion.key)
        };
        let mut results: Vec<DeleteResult> = vec![Ok(None); deletions.len()];
        let mut rounds = HashMap::new();
        let mut groups = BTreeMap::new();
        for ((index, deletion), result) in deletions.iter().enumerate().zip(&mut results) {
            match others(deletion) {
                Err(error) => *result = Err(error),
                Ok(others) => {
                    // An operation has a key once, because it is checked against the state
                    // before the batch.
                    let round = rounds.entry(deletion.key).or_insert(0);
                    let group: &mut Vec<_> = groups.entry((*round, others)).or_default();
                    group.push((index, deletion));
                    *round += 1;
                }
            }
        }
        for group in groups.values() {
            self.delete_group(bucket, group, &mut results);
        }
        Ok(results)
    }

    /// Deletes all of a group. If one key prevents that, deletes each half by itself.
    fn delete_group(
        &self,
        bucket: &str,
        group: &[(usize, &ToDelete<'_>)],
        results: &mut [DeleteResult],
    ) {
        let deletions = group.iter();
        let deletions = deletions.map(|(_, d)| (object_key(bucket, d.key), d.version));
        let op = Op::Delete(DeleteOp {
            bucket: bucket.to_owned(),
            deletions: deletions.collect(),
            condition: None,
        });
        let removed: Vec<DeleteResult> = match self.primary.submit(op, None) {
            Ok(outcome) => {
                self.committer().release(&outcome);
                outcome.removed.into_iter().map(Ok).collect()
            }
            Err(failure) if group.len() > 1 && failure.is_of_one_key() => {
                let (first, second) = group.split_at(group.len() / 2);
                self.delete_group(bucket, first, results);
                return self.delete_group(bucket, second, results);
            }
            Err(failure) => vec![Err(failure.error); group.len()],
        };
        for ((index, _), removed) in group.iter().zip(removed) {
            if let Some(result) = results.get_mut(*index) {
                *result = removed;
            }
        }
    }

    /// Changes the metadata of an object, or of one version of it. Readers of its bytes are not
    /// affected. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchObject`], [`Error::NoSuchVersion`],
    /// [`Error::IsDeleteMarker`], [`Error::MetaTooLarge`].
    pub fn change_meta(
        &self,
        bucket: &str,
        key: &str,
        version: Option<VersionId>,
        change: impl FnOnce(&mut ObjectMeta) + Send + 'static,
    ) -> Result<Option<VersionId>, Error> {
        let object_key = checked_key(bucket, key)?;
        self.files().check_room(0)?;
        let outcome = self.submit(Op::Change {
            object_key,
            version,
            change: Box::new(change),
        })?;
        Ok(outcome.version)
    }
}
