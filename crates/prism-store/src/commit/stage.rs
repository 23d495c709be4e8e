//! One operation while it is staged, and the writes that several operations share.

use prism_cluster::replica::{Phase, Stamp};

use super::{
    committer::Committer,
    op::{Condition, Outcome, QuotaCheck},
};
use crate::{
    error::Error,
    keys::{bucket_of, part_key, upload_key},
    layout::FileId,
    lsm::{Batch, Lsm},
    record::{Payload, PutBytes, Record},
    types::{BucketInfo, UploadId, Versioning},
    uploads::{Garbage, Manifest, ManifestPart, UploadRecord},
    view::View,
};

/// An operation while it is staged: what it reads, the batch that it writes to, and what
/// comes of it.
pub(super) struct Stage<'a> {
    pub(super) committer: &'a Committer,
    pub(super) lsm: &'a Lsm,
    pub(super) view: &'a View<'a>,
    pub(super) batch: &'a mut Batch,
    pub(super) outcome: Outcome,
}

impl Stage<'_> {
    /// The stamp of a change: the given one, or one above `current`.
    pub(super) fn stamp(&self, given: Option<Stamp>, current: Option<Stamp>) -> Stamp {
        let committer = self.committer;
        given.unwrap_or_else(|| committer.stamp(committer.epoch(), current))
    }

    /// Leaves garbage, which the caller collects after the commit.
    fn leave(&mut self, garbage: Garbage) {
        self.batch.insert(&self.lsm.garbage, garbage.key(), []);
        self.outcome.garbage.push(garbage);
    }

    pub(super) fn insert_upload(
        &mut self,
        object_key: &[u8],
        id: UploadId,
        record: &UploadRecord,
    ) -> Result<(), Error> {
        let key = upload_key(object_key, id);
        let value = record.encode()?;
        self.batch.insert(&self.lsm.uploads, key, value);
        Ok(())
    }

    /// Ends an upload. The parts that are left of it become garbage.
    pub(super) fn remove_upload(&mut self, object_key: &[u8], id: UploadId) {
        let key = upload_key(object_key, id);
        self.batch.remove(&self.lsm.uploads, key);
        self.leave(Garbage::Upload(id));
    }

    pub(super) fn insert_part(
        &mut self,
        upload: UploadId,
        number: u16,
        record: &Record,
    ) -> Result<(), Error> {
        let key = part_key(upload, number);
        let value = record.encode()?;
        self.batch.insert(&self.lsm.parts, key, value);
        Ok(())
    }

    /// Ends an upload that is complete, and stores its manifest.
    pub(super) fn complete_upload(
        &mut self,
        object_key: &[u8],
        id: FileId,
        manifest: &Manifest,
    ) -> Result<(), Error> {
        let encoded = manifest.encode()?;
        self.batch
            .insert(&self.lsm.manifests, id.to_bytes(), encoded);
        for part in &manifest.parts {
            let key = part_key(manifest.upload, part.number);
            self.batch.remove(&self.lsm.parts, key);
        }
        self.remove_upload(object_key, manifest.upload);
        Ok(())
    }

    /// Counts `len` bytes, if the quota allows them in place of `given` bytes, which `lose` counts.
    pub(super) fn admit(&mut self, len: u64, given: u64) -> Result<(), Error> {
        self.committer.storage.files.usage.check(len, given)?;
        self.outcome.bytes.taken += len;
        Ok(())
    }

    pub(super) fn insert_bytes(&mut self, id: FileId, bytes: PutBytes) {
        match bytes {
            PutBytes::Inline(bytes) => self.batch.insert(&self.lsm.inline, id.to_bytes(), bytes),
            PutBytes::File(record) => self.batch.insert(&self.lsm.files, id.to_bytes(), record),
        }
    }

    /// Removes what the payloads of records refer to. The parts of an object become garbage.
    pub(super) fn lose(&mut self, records: impl IntoIterator<Item = Record>) {
        for Record { payload, len, .. } in records {
            match payload {
                Payload::Inline { id, .. } => {
                    self.outcome.bytes.given += len;
                    self.batch.remove(&self.lsm.inline, id.to_bytes());
                }
                Payload::File { id } => self.lose_file(id, len),
                Payload::Parts { id } => self.leave(Garbage::Manifest(id)),
                Payload::Marker => {}
            }
        }
    }

    /// Removes the record of a file, and after the commit the file.
    pub(super) fn lose_file(&mut self, id: FileId, len: u64) {
        self.outcome.bytes.given += len;
        self.outcome.freed.push(id);
        self.batch.remove(&self.lsm.files, id.to_bytes());
    }
}

/// How the versions of a key are treated in a bucket with this `versioning`. A store whose
/// bucket never kept versions may have versions of the key all the same: then it has not
/// heard yet that the bucket keeps them.
pub(crate) fn effective_versioning(
    view: &View<'_>,
    versioning: Versioning,
    object_key: &[u8],
) -> Result<Versioning, Error> {
    match versioning {
        Versioning::Never if view.change(object_key)?.is_some() => Ok(Versioning::Enabled),
        versioning => Ok(versioning),
    }
}

/// The bucket, if it exists and takes writes.
pub(crate) fn open_bucket(view: &View<'_>, bucket: &str) -> Result<BucketInfo, Error> {
    let info = view.existing_bucket(bucket)?;
    match info.which.phase {
        Phase::Live => Ok(info),
        Phase::Deleting | Phase::Gone => Err(Error::Busy),
    }
}

/// The object.
///
/// # Errors
/// [`Error::NoSuchBucket`] or [`Error::NoSuchObject`].
pub(crate) fn present(view: &View<'_>, object_key: &[u8]) -> Result<Record, Error> {
    match view.object(object_key)? {
        Some(record) => Ok(record),
        None => {
            view.existing_bucket(bucket_of(object_key))?;
            Err(Error::NoSuchObject)
        }
    }
}

pub(crate) fn check(condition: Option<&Condition>, current: Option<&Record>) -> Result<(), Error> {
    match condition {
        Some(holds) if !holds(current.map(|record| &record.meta)) => Err(Error::ConditionFailed {
            exists: current.is_some(),
        }),
        _ => Ok(()),
    }
}

/// Checks that a write of `bytes` fits in its bucket's quota, if it has one.
pub(crate) fn check_quota(
    quota: Option<&QuotaCheck>,
    bytes: u64,
    replaced: Option<u64>,
) -> Result<(), Error> {
    quota.map_or(Ok(()), |fits| fits(bytes, replaced))
}

/// The bytes of the object that a write of its key replaces; none where versions are kept.
pub(crate) fn replaced_bytes(versioning: Versioning, current: Option<&Record>) -> Option<u64> {
    let current = current.filter(|_| versioning == Versioning::Never);
    current.map(|record| record.len)
}

/// The manifest of an upload's parts. [`Error::PartChanged`] if one of them is missing, or
/// is not the one that the caller has seen.
pub(super) fn manifest_of<T>(
    view: &View<'_>,
    upload: UploadId,
    wanted: &[(u16, T)],
    is_seen: impl Fn(&Record, &T) -> bool,
) -> Result<Manifest, Error> {
    let mut parts = Vec::with_capacity(wanted.len());
    for (number, seen) in wanted {
        let record = view.part(upload, *number)?;
        let record = record.filter(|record| is_seen(record, seen));
        let record = record.ok_or(Error::PartChanged)?;
        parts.push(ManifestPart {
            number: *number,
            file: record.file()?,
            len: record.len,
            headers: record.meta.headers,
        });
    }
    Ok(Manifest { upload, parts })
}
