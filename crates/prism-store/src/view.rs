//! Reads of the trees as of one moment. `lsm` lists the trees; `record`, `uploads` and
//! `pending` define their values.

use std::{collections::BTreeMap, ops::Bound};

use fjall::{Guard, Keyspace, Readable, Snapshot, UserKey};
use prism_cluster::replica::{Phase, Stamp};

use crate::{
    error::Error,
    keys::{
        bucket_prefix, document_key, escaped_prefix, part_key, part_number, split_object_key,
        split_upload_key, upload_key, version_key, versions_of,
    },
    layout::FileId,
    lsm::Lsm,
    merge::under,
    pending::PendingRecord,
    record::{FileRecord, Payload, Record, bucket_info},
    scope::Scope,
    types::{BucketInfo, UploadId, VersionId, VersionPlace, place},
    uploads::{Garbage, Manifest, UploadRecord},
};

/// A tree's key, and the value.
type Entry<T> = Result<(UserKey, T), Error>;

/// The trees as of one moment. Every read may block on disk.
pub(crate) struct View<'a> {
    pub(crate) lsm: &'a Lsm,
    snapshot: Snapshot,
}

impl Lsm {
    /// A view of the trees in which every commit is whole or absent.
    pub(crate) fn view(&self) -> View<'_> {
        let snapshot = self.snapshot();
        View {
            lsm: self,
            snapshot,
        }
    }
}

impl View<'_> {
    pub(crate) fn get<T>(
        &self,
        tree: &Keyspace,
        key: impl AsRef<[u8]>,
        decode: impl Fn(&[u8]) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        let value = self.snapshot.get(tree, key)?;
        value.map(|value| decode(&value)).transpose()
    }

    /// The entries of a tree from `begin` on, in order of their keys.
    pub(crate) fn entries<T>(
        &self,
        tree: &Keyspace,
        begin: Bound<Vec<u8>>,
        decode: fn(&[u8]) -> Result<T, Error>,
    ) -> impl Iterator<Item = Entry<T>> + use<T> {
        let found = self.snapshot.range(tree, (begin, Bound::Unbounded));
        decoded(found, move |key, value| Ok((key, decode(value)?)))
    }

    /// A bucket that exists.
    pub(crate) fn bucket(&self, name: &str) -> Result<Option<BucketInfo>, Error> {
        let known = self.bucket_record(name)?;
        Ok(known.filter(|bucket| bucket.which.phase != Phase::Gone))
    }

    pub(crate) fn existing_bucket(&self, name: &str) -> Result<BucketInfo, Error> {
        self.bucket(name)?.ok_or(Error::NoSuchBucket)
    }

    /// The record of a name, also of a bucket that is gone.
    pub(crate) fn bucket_record(&self, name: &str) -> Result<Option<BucketInfo>, Error> {
        let decode = |value: &[u8]| bucket_info(name.as_bytes(), value);
        self.get(&self.lsm.buckets, name, decode)
    }

    /// The first `max` buckets that exist, by name.
    pub(crate) fn buckets(&self, max: usize) -> Result<Vec<BucketInfo>, Error> {
        let all = self.bucket_records("");
        let existing = all.filter(|found| {
            let bucket = found.as_ref();
            bucket.map_or(true, |bucket| bucket.which.phase != Phase::Gone)
        });
        existing.take(max).collect()
    }

    /// The records of all names after `after`, in order.
    pub(crate) fn bucket_records(
        &self,
        after: &str,
    ) -> impl Iterator<Item = Result<BucketInfo, Error>> {
        let behind = (Bound::Excluded(after.as_bytes().to_vec()), Bound::Unbounded);
        let found = self.snapshot.range(&self.lsm.buckets, behind);
        decoded(found, |name, value| bucket_info(&name, value))
    }

    /// The documents of a bucket, by their names.
    pub(crate) fn documents(&self, bucket: &str) -> Result<BTreeMap<String, String>, Error> {
        let prefix = bucket_prefix(bucket);
        let found = self.snapshot.prefix(&self.lsm.configs, &prefix);
        let text = |bytes: &[u8]| {
            let text = String::from_utf8(bytes.to_vec());
            text.map_err(|_| Error::corrupt("document of a bucket"))
        };
        let documents = decoded(found, |key, document| {
            let name = key.get(prefix.len()..).unwrap_or_default();
            Ok((text(name)?, text(document)?))
        });
        documents.collect()
    }

    pub(crate) fn object(&self, object_key: &[u8]) -> Result<Option<Record>, Error> {
        self.get(&self.lsm.objects, object_key, Record::decode)
    }

    /// The stamp of the last change of a key that has versions.
    pub(crate) fn change(&self, object_key: &[u8]) -> Result<Option<Stamp>, Error> {
        self.get(&self.lsm.changes, object_key, stamp_of)
    }

    /// The stamps of the keys with versions from `begin` on, in order of object keys.
    pub(crate) fn changes(&self, begin: Bound<Vec<u8>>) -> impl Iterator<Item = Entry<Stamp>> {
        self.entries(&self.lsm.changes, begin, stamp_of)
    }

    /// The number of versions of a key that are not current, at most `max`.
    pub(crate) fn count_versions(&self, object_key: &[u8], max: usize) -> Result<usize, Error> {
        let prefix = versions_of(object_key);
        let found = self.snapshot.prefix(&self.lsm.versions, prefix).take(max);
        found.map(|guard| Ok(guard.key().map(|_| 1)?)).sum()
    }

    /// Whether a bucket has an object, a version of one, or an upload.
    pub(crate) fn has_any_of(&self, bucket: &str) -> Result<bool, Error> {
        let prefix = bucket_prefix(bucket);
        for tree in [&self.lsm.objects, &self.lsm.versions, &self.lsm.uploads] {
            if let Some(guard) = self.snapshot.prefix(tree, &prefix).next() {
                return Ok(guard.key().map(|_| true)?);
            }
        }
        Ok(false)
    }

    /// A version that is not current.
    pub(crate) fn version(
        &self,
        object_key: &[u8],
        at: &VersionPlace,
    ) -> Result<Option<Record>, Error> {
        let key = version_key(object_key, at);
        self.get(&self.lsm.versions, key, Record::decode)
    }

    /// The place of the null version of a key, unless it is current.
    pub(crate) fn null_place(&self, object_key: &[u8]) -> Result<Option<VersionPlace>, Error> {
        self.get(&self.lsm.nulls, object_key, |value| {
            VersionPlace::try_from(value).map_err(|_| Error::corrupt("place of a null version"))
        })
    }

    /// The place of a version of a key, unless it is the null version and current.
    pub(crate) fn place_of(
        &self,
        object_key: &[u8],
        id: VersionId,
    ) -> Result<Option<VersionPlace>, Error> {
        match id {
            VersionId::Of(stamp) => Ok(Some(place(stamp))),
            VersionId::Null => self.null_place(object_key),
        }
    }

    /// The versions of an object that are not current, with their places, the newest first.
    pub(crate) fn versions_of(
        &self,
        object_key: &[u8],
    ) -> impl Iterator<Item = Result<(VersionPlace, Record), Error>> {
        let prefix = versions_of(object_key);
        let found = self.snapshot.prefix(&self.lsm.versions, prefix);
        decoded(found, |key, value| {
            let place = key.split_last_chunk().map(|(_, place)| *place);
            let place = place.ok_or_else(|| Error::corrupt("version key"))?;
            Ok((place, Record::decode(value)?))
        })
    }

    pub(crate) fn versions(&self, begin: Bound<Vec<u8>>) -> impl Iterator<Item = Entry<Record>> {
        self.entries(&self.lsm.versions, begin, Record::decode)
    }

    pub(crate) fn objects(&self, begin: Bound<Vec<u8>>) -> impl Iterator<Item = Entry<Record>> {
        self.entries(&self.lsm.objects, begin, Record::decode)
    }

    pub(crate) fn upload(
        &self,
        object_key: &[u8],
        id: UploadId,
    ) -> Result<Option<UploadRecord>, Error> {
        let key = upload_key(object_key, id);
        self.get(&self.lsm.uploads, key, UploadRecord::decode)
    }

    /// An upload that has not ended.
    pub(crate) fn existing_upload(
        &self,
        object_key: &[u8],
        id: UploadId,
    ) -> Result<UploadRecord, Error> {
        self.upload(object_key, id)?.ok_or(Error::NoSuchUpload)
    }

    pub(crate) fn uploads(
        &self,
        begin: Bound<Vec<u8>>,
    ) -> impl Iterator<Item = Entry<UploadRecord>> {
        self.entries(&self.lsm.uploads, begin, UploadRecord::decode)
    }

    pub(crate) fn part(&self, upload: UploadId, number: u16) -> Result<Option<Record>, Error> {
        let key = part_key(upload, number);
        self.get(&self.lsm.parts, key, Record::decode)
    }

    /// Parts of an upload with greater numbers than `after`, in order.
    pub(crate) fn parts(
        &self,
        upload: UploadId,
        after: u16,
    ) -> impl Iterator<Item = Result<(u16, Record), Error>> {
        let first = part_key(upload, after.saturating_add(1));
        let last = part_key(upload, u16::MAX);
        let found = self.snapshot.range(&self.lsm.parts, first..=last);
        decoded(found, |key, value| {
            let number = part_number(&key).ok_or_else(|| Error::corrupt("part number"))?;
            Ok((number, Record::decode(value)?))
        })
    }

    pub(crate) fn manifest(&self, id: FileId) -> Result<Option<Manifest>, Error> {
        self.get(&self.lsm.manifests, id.to_bytes(), Manifest::decode)
    }

    pub(crate) fn is_garbage(&self, garbage: Garbage) -> Result<bool, Error> {
        Ok(self
            .snapshot
            .contains_key(&self.lsm.garbage, garbage.key())?)
    }

    pub(crate) fn garbage(&self, max: usize) -> Result<Vec<Garbage>, Error> {
        let all = self.snapshot.iter(&self.lsm.garbage).take(max);
        all.map(|guard| Garbage::from_key(&guard.key()?)).collect()
    }

    pub(crate) fn pending(&self, scope: &Scope) -> Result<Option<PendingRecord>, Error> {
        self.get(&self.lsm.pending, scope.tree_key(), PendingRecord::decode)
    }

    pub(crate) fn all_pending(&self) -> impl Iterator<Item = Result<PendingRecord, Error>> {
        self.snapshot
            .iter(&self.lsm.pending)
            .map(|guard| PendingRecord::decode(&guard.value()?))
    }

    /// The stamp of a deletion that is remembered.
    pub(crate) fn deletion(&self, object_key: &[u8]) -> Result<Option<Stamp>, Error> {
        self.get(&self.lsm.deletions, object_key, stamp_of)
    }

    /// The remembered deletions behind the object key `after`, in order.
    pub(crate) fn deletions(
        &self,
        after: &[u8],
    ) -> impl Iterator<Item = Result<(Vec<u8>, Stamp), Error>> {
        let begin = Bound::Excluded(after.to_vec());
        let found = self.entries(&self.lsm.deletions, begin, stamp_of);
        found.map(|found| found.map(|(key, stamp)| (key.to_vec(), stamp)))
    }

    pub(crate) fn document(&self, bucket: &str, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let key = document_key(bucket, name);
        self.get(&self.lsm.configs, key, |value| Ok(value.to_vec()))
    }

    pub(crate) fn inline(&self, id: FileId) -> Result<Option<Vec<u8>>, Error> {
        let key = id.to_bytes();
        self.get(&self.lsm.inline, key, |value| Ok(value.to_vec()))
    }

    /// Bytes of all objects in the tree.
    pub(crate) fn inline_bytes(&self) -> Result<u64, Error> {
        let mut sum = 0;
        for guard in self.snapshot.iter(&self.lsm.inline) {
            sum += u64::from(guard.size()?);
        }
        Ok(sum)
    }

    pub(crate) fn file(&self, id: FileId) -> Result<Option<FileRecord>, Error> {
        self.get(&self.lsm.files, id.to_bytes(), FileRecord::decode)
    }

    pub(crate) fn has_file(&self, id: FileId) -> Result<bool, Error> {
        Ok(self.snapshot.contains_key(&self.lsm.files, id.to_bytes())?)
    }

    /// The files that objects refer to, behind this one or all.
    pub(crate) fn files_after(
        &self,
        after: Option<FileId>,
    ) -> impl Iterator<Item = Result<(FileId, FileRecord), Error>> {
        let begin = match after {
            Some(id) => Bound::Excluded(id.to_bytes()),
            None => Bound::Unbounded,
        };
        let behind = (begin, Bound::Unbounded);
        let found = self.snapshot.range(&self.lsm.files, behind);
        decoded(found, |key, value| {
            let id = <[u8; 8]>::try_from(&*key).map_err(|_| Error::corrupt("file id"))?;
            Ok((FileId::from_bytes(id), FileRecord::decode(value)?))
        })
    }

    /// The unfinished upload that has the file, and the part's number.
    pub(crate) fn upload_of_file(
        &self,
        id: FileId,
        object_key: &[u8],
    ) -> Result<Option<(UploadId, u16)>, Error> {
        let Some((bucket, key)) = split_object_key(object_key) else {
            return Ok(None);
        };
        let prefix = escaped_prefix(bucket, key);
        for found in under(prefix, |begin| self.uploads(begin), Bound::Unbounded) {
            let Some((_, upload)) = split_upload_key(&found?.0) else {
                break;
            };
            for part in self.parts(upload, 0) {
                let (number, record) = part?;
                if record.payload == (Payload::File { id }) {
                    return Ok(Some((upload, number)));
                }
            }
        }
        Ok(None)
    }
}

/// The stamp that a scope has. A key with versions has that of their last change, and a
/// deleted object that of its deletion, as long as that is remembered.
pub(crate) fn holds(view: &View<'_>, scope: &Scope) -> Result<Option<Stamp>, Error> {
    match scope.upload {
        None => {
            let object_key = scope.object_key();
            if let Some(last) = view.change(&object_key)? {
                return Ok(Some(last));
            }
            match view.object(&object_key)? {
                Some(record) => Ok(Some(record.stamp)),
                None => view.deletion(&object_key),
            }
        }
        Some((id, None)) => {
            let upload = view.upload(&scope.object_key(), id)?;
            Ok(upload.map(|upload| upload.stamp))
        }
        Some((id, Some(number))) => Ok(view.part(id, number)?.map(|part| part.stamp)),
    }
}

fn decoded<T>(
    found: impl Iterator<Item = Guard>,
    decode: impl Fn(UserKey, &[u8]) -> Result<T, Error>,
) -> impl Iterator<Item = Result<T, Error>> {
    found.map(move |guard| {
        let (key, value) = guard.into_inner()?;
        decode(key, &value)
    })
}

fn stamp_of(value: &[u8]) -> Result<Stamp, Error> {
    let bytes = value.try_into();
    bytes
        .map(Stamp::from_bytes)
        .map_err(|_| Error::corrupt("stamp record"))
}
