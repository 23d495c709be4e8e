//! Uploads in parts: begun, filled, read, and completed or aborted.
//!
//! A part is a file from its commit on and stays one. Completing an upload writes down which
//! files make the object, and moves no bytes. The caller decides how long a part must be,
//! and computes the object's ETag.

use std::ops::Bound;

use prism_cluster::replica::Stamp;
use prism_common::random;

use crate::{
    commit::{CompleteOp, Condition, Op, QuotaCheck},
    error::Error,
    keys::{behind_key, checked_key, escaped_prefix, object_key, split_upload_key, upload_key},
    merge::under,
    put::{PutWriter, Target, committed},
    store::Store,
    types::{Committed, ObjectMeta, PARTS_MAX, Part, PartVersion, Upload, UploadId, UploadName},
    uploads::UploadRecord,
};

/// The uploads of a store that have neither been completed nor aborted.
#[derive(Debug, Clone, Copy)]
pub struct Uploads<'a> {
    pub(crate) store: &'a Store,
}

/// The key and the id of an upload.
type Idle = (String, UploadId);

impl Store {
    /// The uploads in parts that have not ended.
    #[must_use]
    pub fn uploads(&self) -> Uploads<'_> {
        Uploads { store: self }
    }
}

impl Uploads<'_> {
    /// Begins an upload of an object that gets the metadata `meta`. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`], [`Error::Busy`], [`Error::MetaTooLarge`],
    /// [`Error::NoSpace`].
    pub fn create(&self, bucket: &str, key: &str, meta: ObjectMeta) -> Result<UploadId, Error> {
        let object_key = checked_key(bucket, key)?;
        self.store.files().check_room(0)?;
        let id = UploadId::new(meta.created_ms, u64::from_be_bytes(random::bytes()?));
        let stamp = Stamp::NONE;
        self.store.submit(Op::CreateUpload {
            object_key,
            id,
            record: UploadRecord { stamp, meta },
        })?;
        Ok(id)
    }

    /// Looks an upload up. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn get(&self, name: UploadName<'_>) -> Result<Upload, Error> {
        let object_key = checked_key(name.bucket, name.key)?;
        let record = self.store.view().existing_upload(&object_key, name.id)?;
        Ok(Upload {
            key: name.key.to_owned(),
            id: name.id,
            meta: record.meta,
        })
    }

    /// Begins to write a part of `expected_len` bytes, or of any length if that is `None`.
    /// The part replaces an earlier one of its number. May block on disk.
    ///
    /// # Errors
    /// As for [`Store::begin_put`], and [`Error::NoSuchUpload`].
    pub fn begin_part(
        &self,
        name: UploadName<'_>,
        number: u16,
        expected_len: Option<u64>,
    ) -> Result<PutWriter, Error> {
        if !(1..=PARTS_MAX).contains(&number) {
            return Err(Error::InvalidName("part number out of bounds"));
        }
        self.get(name)?;
        let target = Target::Part(name.id, number);
        let object_key = object_key(name.bucket, name.key);
        PutWriter::new(&self.store.primary, target, object_key, expected_len)
    }

    /// At most `max` parts with greater numbers than `after`, and whether more follow. May
    /// block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn parts(
        &self,
        name: UploadName<'_>,
        after: u16,
        max: usize,
    ) -> Result<(Vec<Part>, bool), Error> {
        let view = self.store.view();
        view.existing_upload(&object_key(name.bucket, name.key), name.id)?;
        let mut parts = Vec::new();
        for found in view.parts(name.id, after) {
            if parts.len() == max {
                return Ok((parts, true));
            }
            let (number, record) = found?;
            parts.push(Part {
                number,
                len: record.len,
                version: PartVersion(record.file()?),
                meta: record.meta,
            });
        }
        Ok((parts, false))
    }

    /// At most `max` uploads whose keys begin with `prefix`, by key and then by age, and
    /// whether more follow. `after` is the last upload of the page before; without an id it
    /// stands for all uploads of its key. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, Option<UploadId>)>,
        max: usize,
    ) -> Result<(Vec<Upload>, bool), Error> {
        self.store.existing_bucket(bucket)?;
        let begin = match after {
            None => Bound::Unbounded,
            Some((key, None)) => Bound::Included(behind_key(bucket, key)),
            Some((key, Some(id))) => Bound::Excluded(upload_key(&object_key(bucket, key), id)),
        };
        let view = self.store.view();
        let all = escaped_prefix(bucket, prefix);
        let mut uploads = Vec::new();
        for found in under(all, |begin| view.uploads(begin), begin) {
            let (tree_key, record) = found?;
            if uploads.len() == max {
                return Ok((uploads, true));
            }
            let split = split_upload_key(&tree_key);
            let (key, id) = split.ok_or_else(|| Error::corrupt("upload key"))?;
            let meta = record.meta;
            uploads.push(Upload { key, id, meta });
        }
        Ok((uploads, false))
    }

    /// The idle ones of at most `max` uploads behind `after`: begun before `before_ms`
    /// (milliseconds since the Unix epoch), with no part since. Also returns the last upload
    /// of the page, unless it is the last of all. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`].
    pub fn list_idle(
        &self,
        bucket: &str,
        before_ms: u64,
        after: Option<(&str, Option<UploadId>)>,
        max: usize,
    ) -> Result<(Vec<Idle>, Option<Idle>), Error> {
        let (uploads, more) = self.list(bucket, "", after, max)?;
        let last = uploads.last().map(|last| (last.key.clone(), last.id));
        let mut idle = Vec::new();
        for Upload { key, id, meta } in uploads {
            if meta.created_ms < before_ms && !self.has_part_since(id, before_ms)? {
                idle.push((key, id));
            }
        }
        Ok((idle, last.filter(|_| more)))
    }

    fn has_part_since(&self, id: UploadId, since_ms: u64) -> Result<bool, Error> {
        for found in self.store.view().parts(id, 0) {
            if found?.1.meta.created_ms >= since_ms {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes an object of these parts, in this order, and replaces the object of its key.
    /// The upload ends, and its other parts are deleted. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`], [`Error::PartChanged`] if a part is not the one that the
    /// caller has seen, [`Error::ConditionFailed`], [`Error::QuotaExceeded`],
    /// [`Error::TooLarge`], [`Error::NoSuchBucket`], [`Error::Busy`].
    pub fn complete(
        &self,
        name: UploadName<'_>,
        parts: &[(u16, PartVersion)],
        meta: ObjectMeta,
        condition: Option<Condition>,
        quota: Option<QuotaCheck>,
    ) -> Result<Committed, Error> {
        let object_key = checked_key(name.bucket, name.key)?;
        if !parts.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Error::InvalidName("parts not in order"));
        }
        self.store.files().check_room(0)?;
        let outcome = self.store.submit(Op::Complete(CompleteOp {
            object_key,
            upload: name.id,
            parts: parts.iter().map(|(n, version)| (*n, version.0)).collect(),
            meta,
            condition,
            quota,
            id: self.store.files().new_id()?,
        }))?;
        Ok(committed(&outcome, outcome.len))
    }

    /// Ends an upload and deletes its parts. Works on a full disk. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn abort(&self, name: UploadName<'_>) -> Result<(), Error> {
        let object_key = checked_key(name.bucket, name.key)?;
        let id = name.id;
        self.store.submit(Op::Abort { object_key, id })?;
        Ok(())
    }
}
