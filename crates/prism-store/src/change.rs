//! Deleting objects and versions of them, and changing their metadata.

use std::collections::HashSet;

use crate::{
    commit::{Condition, DeleteOp, Op},
    error::Error,
    record::object_key,
    store::Store,
    types::{ObjectMeta, check_bucket, check_key},
    versions::{Removed, ToDelete, VersionId, Versioning},
};

impl Store {
    /// Deletes an object, and says whether there was one; where versions are
    /// kept, a delete marker takes its place. Works on a full disk. Blocks on
    /// disk.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<bool, Error> {
        // Deleting what is not there is common and need not wait for the disk.
        let view = self.view();
        if self.lookup(&view, bucket, key, None)?.is_none()
            && view
                .bucket(bucket)?
                .is_none_or(|info| info.versioning == Versioning::Never)
        {
            return Ok(false);
        }
        drop(view);
        let outcome = self.submit(Op::Delete(DeleteOp {
            bucket: bucket.to_owned(),
            object_keys: vec![object_key(bucket, key)],
            versions: Vec::new(),
            condition: None,
        }))?;
        Ok(outcome.found > 0)
    }

    /// Deletes an object, or one version of it, if the condition holds at the
    /// moment of the commit, and says what came of it; nothing where no versions
    /// are kept. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::ConditionFailed`].
    pub fn delete_version(
        &self,
        bucket: &str,
        deletion: ToDelete<'_>,
        condition: Option<Condition>,
    ) -> Result<Option<Removed>, Error> {
        check_bucket(bucket)?;
        check_key(deletion.key)?;
        let outcome = self.submit(Op::Delete(DeleteOp {
            bucket: bucket.to_owned(),
            object_keys: vec![object_key(bucket, deletion.key)],
            versions: deletion
                .version
                .map(|id| vec![Some(id)])
                .unwrap_or_default(),
            condition,
        }))?;
        Ok(outcome.removed.first().copied().flatten())
    }

    /// Deletes several objects, or versions, of one bucket, and says what came
    /// of each, as [`Store::delete_version`] does. Those of different keys are
    /// deleted in one commit. Blocks on disk.
    pub fn delete_many(
        &self,
        bucket: &str,
        deletions: &[ToDelete<'_>],
    ) -> Result<Vec<Option<Removed>>, Error> {
        check_bucket(bucket)?;
        deletions
            .iter()
            .try_for_each(|deletion| check_key(deletion.key))?;
        let mut removed = vec![None; deletions.len()];
        let mut left: Vec<(usize, &ToDelete<'_>)> = deletions.iter().enumerate().collect();
        while !left.is_empty() {
            // An operation names a key once, for it is judged by what was before.
            let mut named = HashSet::new();
            let (now, later): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|(_, d)| named.insert(d.key));
            let keys = now.iter().map(|(_, d)| object_key(bucket, d.key));
            let mut versions: Vec<_> = now.iter().map(|(_, d)| d.version).collect();
            if versions.iter().all(Option::is_none) {
                versions.clear();
            }
            let outcome = self.submit(Op::Delete(DeleteOp {
                bucket: bucket.to_owned(),
                object_keys: keys.collect(),
                versions,
                condition: None,
            }))?;
            for ((index, _), done) in now.iter().zip(outcome.removed) {
                if let Some(place) = removed.get_mut(*index) {
                    *place = done;
                }
            }
            left = later;
        }
        Ok(removed)
    }

    /// Changes the metadata of an object, or of one version of it; its bytes,
    /// and what is read of them meanwhile, stay. Blocks on disk.
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
        check_bucket(bucket)?;
        check_key(key)?;
        self.inner.files.check_room(0)?;
        let outcome = self.submit(Op::Change {
            bucket: bucket.to_owned(),
            object_key: object_key(bucket, key),
            version,
            change: Box::new(change),
        })?;
        Ok(outcome.version)
    }
}
