//! Uploads in parts: begun, filled, looked at, and completed or aborted.
//!
//! A part is a file from the moment it is committed, and stays it: completing
//! an upload writes down which files make the object, and moves no bytes. What
//! parts must be like, and what an object's ETag is made of, is the caller's.

use std::{ops::Bound, sync::Arc};

use prism_replica::Stamp;

use crate::{
    commit::{CompleteOp, Condition, CreateOp, Op},
    error::Error,
    put::{PartOf, PutWriter},
    record::{Payload, Record, object_key},
    store::Store,
    types::{
        Committed, ObjectMeta, Part, PartVersion, Upload, UploadName, check_bucket, check_key,
    },
    uploads::{
        PARTS_MAX, UploadId, UploadRecord, behind_uploads, split_upload_key, upload_key,
        upload_prefix,
    },
};

/// The key and the name of an upload.
type Idle = (String, UploadId);

impl Store {
    /// Begins an upload; `meta` is kept until it ends. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchBucket`], [`Error::Busy`], [`Error::MetaTooLarge`],
    /// [`Error::NoSpace`].
    pub fn create_upload(
        &self,
        bucket: &str,
        key: &str,
        meta: ObjectMeta,
    ) -> Result<UploadId, Error> {
        check_bucket(bucket)?;
        check_key(key)?;
        self.inner.files.check_room(0)?;
        let id = UploadId::new(meta.created_ms, random()?);
        let record = UploadRecord {
            stamp: Stamp::NONE,
            meta,
        };
        self.submit(Op::CreateUpload(CreateOp {
            bucket: bucket.to_owned(),
            object_key: object_key(bucket, key),
            upload_key: upload_key(bucket, key, id),
            record,
        }))?;
        Ok(id)
    }

    /// Looks an upload up. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn upload(&self, name: UploadName<'_>) -> Result<Upload, Error> {
        check_bucket(name.bucket)?;
        check_key(name.key)?;
        let found = self.view().upload(&tree_key(name))?;
        let record = found.ok_or(Error::NoSuchUpload)?;
        Ok(Upload {
            key: name.key.to_owned(),
            id: name.id,
            meta: record.meta,
        })
    }

    /// Begins to write a part of `expected_len` bytes, or of as many as will
    /// come. It replaces an earlier part of that number. May block on disk.
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
        self.upload(name)?;
        let part = PartOf {
            upload_key: tree_key(name),
            upload: name.id,
            number,
        };
        let object_key = object_key(name.bucket, name.key);
        PutWriter::begin_part(Arc::clone(&self.inner), object_key, part, expected_len)
    }

    /// At most `max` parts with greater numbers than `after`, and whether more
    /// follow. May block on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn parts(
        &self,
        name: UploadName<'_>,
        after: u16,
        max: usize,
    ) -> Result<(Vec<Part>, bool), Error> {
        let view = self.view();
        view.upload(&tree_key(name))?.ok_or(Error::NoSuchUpload)?;
        let mut parts = Vec::new();
        for found in view.parts(name.id, after) {
            if parts.len() == max {
                return Ok((parts, true));
            }
            let (number, record) = found?;
            parts.push(part(number, record)?);
        }
        Ok((parts, false))
    }

    /// At most `max` uploads whose keys begin with `prefix`, by key and then by
    /// age, and whether more follow. They begin behind the uploads of the key
    /// `after`, or with an id behind that one upload. May block on disk.
    pub fn uploads(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<(&str, Option<UploadId>)>,
        max: usize,
    ) -> Result<(Vec<Upload>, bool), Error> {
        self.head_bucket(bucket)?;
        let all = upload_prefix(bucket, prefix);
        let begin = match after {
            None => Bound::Included(all.clone()),
            Some((key, None)) => Bound::Included(behind_uploads(bucket, key)),
            Some((key, Some(id))) => Bound::Excluded(upload_key(bucket, key, id)),
        };
        let begin = match &begin {
            Bound::Included(at) | Bound::Excluded(at) if *at < all => Bound::Included(all.clone()),
            _ => begin,
        };
        let mut uploads = Vec::new();
        for found in self.view().uploads((begin, Bound::Unbounded)) {
            let (tree_key, record) = found?;
            if !tree_key.starts_with(&all) {
                break;
            }
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

    /// Of at most `max` uploads behind `after`, those to which nothing has come since
    /// `before_ms` (milliseconds since the Unix epoch): they were begun before, and so were all of their
    /// parts. And the last that was looked at, unless none follows. May block on disk.
    pub fn idle_uploads(
        &self,
        bucket: &str,
        before_ms: u64,
        after: Option<(&str, Option<UploadId>)>,
        max: usize,
    ) -> Result<(Vec<Idle>, Option<Idle>), Error> {
        let (uploads, more) = self.uploads(bucket, "", after, max)?;
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
        let view = self.view();
        for found in view.parts(id, 0) {
            let (_, record) = found?;
            if record.meta.created_ms >= since_ms {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes an object of these parts, in this order, in place of what its key
    /// holds; the upload and its other parts are gone then. Blocks on disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`], [`Error::PartChanged`] if a part is not the one
    /// that the caller has seen, [`Error::ConditionFailed`], [`Error::TooLarge`],
    /// [`Error::NoSuchBucket`], [`Error::Busy`].
    pub fn complete_upload(
        &self,
        name: UploadName<'_>,
        parts: &[(u16, PartVersion)],
        meta: ObjectMeta,
        condition: Option<Condition>,
    ) -> Result<Committed, Error> {
        check_bucket(name.bucket)?;
        check_key(name.key)?;
        if !parts.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Error::InvalidName("parts not in order"));
        }
        self.inner.files.check_room(0)?;
        let outcome = self.submit(Op::Complete(CompleteOp {
            bucket: name.bucket.to_owned(),
            object_key: object_key(name.bucket, name.key),
            upload_key: tree_key(name),
            upload: name.id,
            parts: parts.iter().map(|(n, version)| (*n, version.0)).collect(),
            meta,
            condition,
            id: self.inner.files.new_id()?,
        }))?;
        Ok(Committed {
            len: outcome.len,
            replaced: outcome.found > 0,
            stamp: outcome.stamp,
            version: outcome.version,
        })
    }

    /// Ends an upload and removes its parts. Works on a full disk. Blocks on
    /// disk.
    ///
    /// # Errors
    /// [`Error::NoSuchUpload`].
    pub fn abort_upload(&self, name: UploadName<'_>) -> Result<(), Error> {
        check_bucket(name.bucket)?;
        check_key(name.key)?;
        self.submit(Op::Abort {
            object_key: object_key(name.bucket, name.key),
            upload_key: tree_key(name),
            id: name.id,
        })?;
        Ok(())
    }
}

fn tree_key(name: UploadName<'_>) -> Vec<u8> {
    upload_key(name.bucket, name.key, name.id)
}

fn part(number: u16, record: Record) -> Result<Part, Error> {
    match record.payload {
        Payload::File { id } => Ok(Part {
            number,
            len: record.len,
            meta: record.meta,
            version: PartVersion(id),
        }),
        _ => Err(Error::corrupt("part without a file")),
    }
}

/// A number that nobody guesses.
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(std::io::Error::from)?;
    Ok(u64::from_be_bytes(bytes))
}
