//! The tree: which trees there are, how they are opened, and what is read from
//! them. Everything that writes goes through `commit`.

use std::{
    fs,
    ops::Bound,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    PersistMode, Readable, Snapshot,
};
use prism_replica::Stamp;

use crate::{
    audit::{self, Damage},
    commit::PendingRecord,
    config::{Config, Durability},
    error::{Error, OpenError},
    layout::{FileId, Layout, SHARDS, sync_dir},
    record::{FileRecord, Record},
    types::BucketInfo,
    uploads::{Garbage, Manifest, UploadId, UploadRecord, part_key, part_number},
    versions::{Place, Versioning, versions_of},
};

const MIB: u64 = 1024 * 1024;
/// Twice the least the tree allows; also bounds the time of its recovery.
const JOURNAL_MAX: u64 = 128 * MIB;
/// Open files of the tree.
const DESCRIPTORS_MAX: usize = 256;
const WORKERS: usize = 2;
/// Full write buffers and unsorted runs of one tree beyond which commits wait.
/// The tree waits from 4 and 30 on; a commit adds at most one of each.
const SEALED_MAX: usize = 2;
const RUNS_MAX: usize = 28;
/// How long a commit waits for the disk to catch up.
const STALL_LIMIT: Duration = Duration::from_secs(10);
const STALL_POLL: Duration = Duration::from_millis(2);

const GENERATION_KEY: &str = "generation";
const REPLICAS_KEY: &str = "replicas";
const SCRUBBED_KEY: &str = "scrubbed";
const CLOSED_KEY: &str = "closed";

/// The trees.
pub(crate) struct Lsm {
    db: Database,
    /// Bucket name to creation time, 8 bytes, and behind it whether it keeps
    /// versions, unless it never did.
    pub(crate) buckets: Keyspace,
    pub(crate) objects: Keyspace,
    pub(crate) files: Keyspace,
    pub(crate) inline: Keyspace,
    pub(crate) uploads: Keyspace,
    pub(crate) parts: Keyspace,
    pub(crate) manifests: Keyspace,
    pub(crate) garbage: Keyspace,
    /// Documents of buckets, by bucket length (1), bucket, name.
    pub(crate) configs: Keyspace,
    /// Prepared changes, by scope; see `commit::prepare`.
    pub(crate) pending: Keyspace,
    /// Stamps of deletions that are remembered, by the key of the object.
    pub(crate) deletions: Keyspace,
    pub(crate) versions: Keyspace,
    pub(crate) nulls: Keyspace,
    system: Keyspace,
    /// Bytes of an unfinished write that were taken off the log.
    pub(crate) log_bytes_cut: u64,
}

impl Lsm {
    /// Opens the trees, or creates them in a store that has none. Blocks.
    pub(crate) fn open(layout: &Layout, config: &Config) -> Result<Self, OpenError> {
        if !layout.db().exists() {
            if has_files(layout)? {
                return Err(OpenError::MetadataMissing(layout.root().to_owned()));
            }
            create(layout, config)?;
        }
        let damage = match config.durability {
            Durability::Fsync => Damage::Refuse,
            Durability::None => Damage::Cut,
        };
        let log_bytes_cut = audit::before_opening(&layout.db(), damage)?;
        let lsm = Self::open_at(&layout.db(), config)?;
        Ok(Self {
            log_bytes_cut,
            ..lsm
        })
    }

    fn open_at(path: &Path, config: &Config) -> Result<Self, OpenError> {
        let db = Database::builder(path)
            .cache_size(config.block_cache_bytes)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .max_journaling_size(JOURNAL_MAX)
            .max_cached_files(Some(DESCRIPTORS_MAX))
            .worker_threads(WORKERS)
            .open()?;
        let buffer = config.write_buffer_bytes;
        let small = || options(buffer / 8);
        Ok(Self {
            buckets: db.keyspace("buckets", small)?,
            objects: db.keyspace("objects", || options(buffer / 2))?,
            files: db.keyspace("files", small)?,
            inline: db.keyspace("inline", || separated(buffer))?,
            uploads: db.keyspace("uploads", small)?,
            parts: db.keyspace("parts", small)?,
            manifests: db.keyspace("manifests", || separated(buffer / 8))?,
            garbage: db.keyspace("garbage", small)?,
            configs: db.keyspace("configs", small)?,
            pending: db.keyspace("pending", small)?,
            deletions: db.keyspace("deletions", small)?,
            versions: db.keyspace("versions", || options(buffer / 2))?,
            nulls: db.keyspace("nulls", small)?,
            system: db.keyspace("system", small)?,
            log_bytes_cut: 0,
            db,
        })
    }

    /// Starts a new generation of file ids, durably. Blocks.
    pub(crate) fn next_generation(&self) -> Result<u64, OpenError> {
        let last = match self.system.get(GENERATION_KEY)? {
            None => 0,
            Some(value) => <[u8; 8]>::try_from(&*value)
                .map(u64::from_be_bytes)
                .map_err(|_| OpenError::Metadata("generation record".into()))?,
        };
        let generation = last + 1;
        if generation > FileId::GENERATION_MAX {
            return Err(OpenError::GenerationsExhausted);
        }
        self.system
            .insert(GENERATION_KEY, generation.to_be_bytes())?;
        self.db.persist(PersistMode::SyncAll)?;
        Ok(generation)
    }

    /// How many replicas of each key this store was filled with, if that was noted.
    pub(crate) fn replicas(&self) -> Result<Option<u32>, OpenError> {
        let noted = self.system.get(REPLICAS_KEY)?;
        let read = |value: fjall::UserValue| <[u8; 4]>::try_from(&*value).map(u32::from_be_bytes);
        let noted = noted.map(read).transpose();
        noted.map_err(|_| OpenError::Metadata("record of the replicas".into()))
    }

    /// Notes it, durably. Blocks.
    pub(crate) fn note_replicas(&self, replicas: u32) -> Result<(), OpenError> {
        self.system.insert(REPLICAS_KEY, replicas.to_be_bytes())?;
        self.db.persist(PersistMode::SyncAll)?;
        Ok(())
    }

    /// 0 if none was noted.
    pub(crate) fn last_scrub_ms(&self) -> u64 {
        let noted = self.system.get(SCRUBBED_KEY).ok().flatten();
        noted
            .and_then(|value| <[u8; 8]>::try_from(&*value).ok())
            .map_or(0, u64::from_be_bytes)
    }

    /// Becomes durable with what is written next.
    pub(crate) fn note_scrub(&self, began_ms: u64) -> Result<(), Error> {
        self.system.insert(SCRUBBED_KEY, began_ms.to_be_bytes())?;
        Ok(self.db.persist(PersistMode::Buffer)?)
    }

    /// Ends the log with something that nobody will miss: its very end is where
    /// damage cannot be told from a write that was interrupted.
    pub(crate) fn close(&self) -> Result<(), Error> {
        self.system.insert(CLOSED_KEY, [])?;
        Ok(self.db.persist(PersistMode::SyncAll)?)
    }

    /// Waits until the tree's background work has caught up, but no longer than
    /// [`STALL_LIMIT`]. The tree itself would wait within a commit, and for ever
    /// if that work has died.
    pub(crate) fn wait_for_room(&self) -> Result<(), Error> {
        let started = Instant::now();
        while self.is_congested() {
            if started.elapsed() > STALL_LIMIT {
                return Err(Error::Stalled);
            }
            thread::sleep(STALL_POLL);
        }
        Ok(())
    }

    fn is_congested(&self) -> bool {
        [
            &self.objects,
            &self.inline,
            &self.files,
            &self.parts,
            &self.manifests,
            &self.versions,
        ]
        .iter()
        .any(|tree| {
            tree.tree.sealed_memtable_count() > SEALED_MAX || tree.tree.l0_run_count() > RUNS_MAX
        })
    }

    pub(crate) fn batch(&self) -> fjall::OwnedWriteBatch {
        self.db.batch()
    }

    /// A view of the trees in which every commit is whole or absent.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            lsm: self,
            snapshot: self.db.snapshot(),
        }
    }
}

/// The trees as of one moment. Every read may block on disk.
pub(crate) struct View<'a> {
    lsm: &'a Lsm,
    snapshot: Snapshot,
}

impl View<'_> {
    pub(crate) fn bucket(&self, name: &str) -> Result<Option<BucketInfo>, Error> {
        let value = self.snapshot.get(&self.lsm.buckets, name)?;
        value
            .map(|value| bucket_info(name.as_bytes(), &value))
            .transpose()
    }

    /// The first `max` buckets, by name.
    pub(crate) fn buckets(&self, max: usize) -> Result<Vec<BucketInfo>, Error> {
        let all = self.snapshot.iter(&self.lsm.buckets).take(max);
        all.map(|guard| {
            let (name, value) = guard.into_inner()?;
            bucket_info(&name, &value)
        })
        .collect()
    }

    pub(crate) fn object(&self, object_key: &[u8]) -> Result<Option<Record>, Error> {
        let value = self.snapshot.get(&self.lsm.objects, object_key)?;
        value.map(|value| Record::decode(&value)).transpose()
    }

    /// Whether there is an object, or a version of one, in a bucket.
    pub(crate) fn any_object(&self, bucket_prefix: &[u8]) -> Result<bool, Error> {
        for tree in [&self.lsm.objects, &self.lsm.versions] {
            if let Some(guard) = self.snapshot.prefix(tree, bucket_prefix).next() {
                return Ok(guard.key().map(|_| true)?);
            }
        }
        Ok(false)
    }

    /// A version that is not current.
    pub(crate) fn version(&self, version_key: &[u8]) -> Result<Option<Record>, Error> {
        let value = self.snapshot.get(&self.lsm.versions, version_key)?;
        value.map(|value| Record::decode(&value)).transpose()
    }

    /// Where the null version of a key lies, unless it is current.
    pub(crate) fn null_place(&self, object_key: &[u8]) -> Result<Option<Place>, Error> {
        let value = self.snapshot.get(&self.lsm.nulls, object_key)?;
        let place = value.map(|value| Place::try_from(&*value));
        place
            .transpose()
            .map_err(|_| Error::corrupt("place of a null version"))
    }

    /// The versions of an object that are not current, and where they lie, the
    /// newest first.
    pub(crate) fn versions_of(
        &self,
        object_key: &[u8],
    ) -> impl Iterator<Item = Result<(Place, Record), Error>> {
        let found = self
            .snapshot
            .prefix(&self.lsm.versions, versions_of(object_key));
        found.map(|guard| {
            let (key, value) = guard.into_inner()?;
            let place = key.split_last_chunk().map(|(_, place)| *place);
            let place = place.ok_or_else(|| Error::corrupt("version key"))?;
            Ok((place, Record::decode(&value)?))
        })
    }

    /// Versions in `range` of their tree's keys, in order.
    pub(crate) fn versions<R: std::ops::RangeBounds<Vec<u8>>>(
        &self,
        range: R,
    ) -> impl Iterator<Item = Result<(fjall::UserKey, Record), Error>> {
        self.snapshot.range(&self.lsm.versions, range).map(|guard| {
            let (key, value) = guard.into_inner()?;
            Ok((key, Record::decode(&value)?))
        })
    }

    /// Objects in `range`, in order.
    pub(crate) fn objects<R: std::ops::RangeBounds<Vec<u8>>>(
        &self,
        range: R,
    ) -> impl Iterator<Item = Result<(fjall::UserKey, Record), Error>> {
        self.snapshot.range(&self.lsm.objects, range).map(|guard| {
            let (key, value) = guard.into_inner()?;
            Ok((key, Record::decode(&value)?))
        })
    }

    /// Whether an upload's key begins with `prefix`.
    pub(crate) fn any_upload(&self, prefix: &[u8]) -> Result<bool, Error> {
        match self.snapshot.prefix(&self.lsm.uploads, prefix).next() {
            None => Ok(false),
            Some(guard) => Ok(guard.key().map(|_| true)?),
        }
    }

    pub(crate) fn upload(&self, upload_key: &[u8]) -> Result<Option<UploadRecord>, Error> {
        let value = self.snapshot.get(&self.lsm.uploads, upload_key)?;
        value.map(|value| UploadRecord::decode(&value)).transpose()
    }

    /// Uploads in `range` of their tree's keys, in order.
    pub(crate) fn uploads<R: std::ops::RangeBounds<Vec<u8>>>(
        &self,
        range: R,
    ) -> impl Iterator<Item = Result<(fjall::UserKey, UploadRecord), Error>> {
        self.snapshot.range(&self.lsm.uploads, range).map(|guard| {
            let (key, value) = guard.into_inner()?;
            Ok((key, UploadRecord::decode(&value)?))
        })
    }

    pub(crate) fn part(&self, upload: UploadId, number: u16) -> Result<Option<Record>, Error> {
        let key = part_key(upload, number);
        let value = self.snapshot.get(&self.lsm.parts, key)?;
        value.map(|value| Record::decode(&value)).transpose()
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
        found.map(|guard| {
            let (key, value) = guard.into_inner()?;
            let number = part_number(&key).ok_or_else(|| Error::corrupt("part number"))?;
            Ok((number, Record::decode(&value)?))
        })
    }

    pub(crate) fn manifest(&self, id: FileId) -> Result<Option<Manifest>, Error> {
        let value = self.snapshot.get(&self.lsm.manifests, id.to_bytes())?;
        value.map(|value| Manifest::decode(&value)).transpose()
    }

    pub(crate) fn is_garbage(&self, garbage: Garbage) -> Result<bool, Error> {
        Ok(self
            .snapshot
            .contains_key(&self.lsm.garbage, garbage.key())?)
    }

    /// The first `max` of what belongs to nobody.
    pub(crate) fn garbage(&self, max: usize) -> Result<Vec<Garbage>, Error> {
        let all = self.snapshot.iter(&self.lsm.garbage).take(max);
        all.map(|guard| Garbage::from_key(&guard.key()?)).collect()
    }

    pub(crate) fn pending(&self, tree_key: &[u8]) -> Result<Option<PendingRecord>, Error> {
        let value = self.snapshot.get(&self.lsm.pending, tree_key)?;
        value.map(|value| PendingRecord::decode(&value)).transpose()
    }

    pub(crate) fn all_pending(&self) -> impl Iterator<Item = Result<PendingRecord, Error>> {
        self.snapshot
            .iter(&self.lsm.pending)
            .map(|guard| PendingRecord::decode(&guard.value()?))
    }

    /// Of a deletion that is remembered.
    pub(crate) fn deletion(&self, object_key: &[u8]) -> Result<Option<Stamp>, Error> {
        let value = self.snapshot.get(&self.lsm.deletions, object_key)?;
        value.map(|value| deletion_stamp(&value)).transpose()
    }

    /// Remembered deletions behind that of `after`, by the keys of their objects.
    pub(crate) fn deletions(
        &self,
        after: &[u8],
    ) -> impl Iterator<Item = Result<(Vec<u8>, Stamp), Error>> {
        let behind = (Bound::Excluded(after.to_vec()), Bound::Unbounded);
        let found = self.snapshot.range(&self.lsm.deletions, behind);
        found.map(|guard| {
            let (key, value) = guard.into_inner()?;
            Ok((key.to_vec(), deletion_stamp(&value)?))
        })
    }

    pub(crate) fn config(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let value = self.snapshot.get(&self.lsm.configs, key)?;
        Ok(value.map(|value| value.to_vec()))
    }

    /// Keys of a bucket's documents, of which there are a handful.
    pub(crate) fn config_keys(&self, prefix: &[u8]) -> Result<Vec<fjall::UserKey>, Error> {
        let found = self.snapshot.prefix(&self.lsm.configs, prefix);
        found.map(|guard| Ok(guard.key()?)).collect()
    }

    pub(crate) fn inline(&self, id: FileId) -> Result<Option<Vec<u8>>, Error> {
        let value = self.snapshot.get(&self.lsm.inline, id.to_bytes())?;
        Ok(value.map(|value| value.to_vec()))
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
        let value = self.snapshot.get(&self.lsm.files, id.to_bytes())?;
        value.map(|value| FileRecord::decode(&value)).transpose()
    }

    pub(crate) fn has_file(&self, id: FileId) -> Result<bool, Error> {
        Ok(self.snapshot.contains_key(&self.lsm.files, id.to_bytes())?)
    }

    /// The files that objects refer to, behind this one.
    pub(crate) fn files_after(
        &self,
        after: Option<FileId>,
    ) -> impl Iterator<Item = Result<(FileId, FileRecord), Error>> {
        let begin = match after {
            Some(id) => Bound::Excluded(id.to_bytes()),
            None => Bound::Unbounded,
        };
        let found = self
            .snapshot
            .range(&self.lsm.files, (begin, Bound::Unbounded));
        found.map(file_record)
    }

    /// All files that objects refer to.
    pub(crate) fn files(&self) -> impl Iterator<Item = Result<(FileId, FileRecord), Error>> {
        self.snapshot.iter(&self.lsm.files).map(file_record)
    }
}

fn file_record(guard: fjall::Guard) -> Result<(FileId, FileRecord), Error> {
    let (key, value) = guard.into_inner()?;
    let id = <[u8; 8]>::try_from(&*key).map_err(|_| Error::corrupt("file id"))?;
    Ok((FileId::from_bytes(id), FileRecord::decode(&value)?))
}

fn options(buffer: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(buffer)
}

/// For values that compaction had better not copy.
fn separated(buffer: u64) -> KeyspaceCreateOptions {
    let blobs = KvSeparationOptions::default().compression(CompressionType::None);
    options(buffer).with_kv_separation(Some(blobs))
}

/// Makes the trees under another name first: a tree of which creation was
/// interrupted is never opened.
fn create(layout: &Layout, config: &Config) -> Result<(), OpenError> {
    let new = layout.db_new();
    if new.exists() {
        fs::remove_dir_all(&new).map_err(OpenError::io("remove an unfinished db.new"))?;
    }
    let lsm = Lsm::open_at(&new, config)?;
    lsm.db.persist(PersistMode::SyncAll)?;
    drop(lsm);
    fs::rename(&new, layout.db()).map_err(OpenError::io("rename db.new"))?;
    sync_dir(layout.root()).map_err(OpenError::io("flush the store's directory"))
}

fn has_files(layout: &Layout) -> Result<bool, OpenError> {
    for shard in 0..SHARDS {
        let mut entries = fs::read_dir(layout.shard(shard)).map_err(OpenError::io("read files"))?;
        if entries.next().is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

fn deletion_stamp(value: &[u8]) -> Result<Stamp, Error> {
    let bytes = value.try_into();
    bytes
        .map(Stamp::from_bytes)
        .map_err(|_| Error::corrupt("deletion record"))
}

fn bucket_info(name: &[u8], value: &[u8]) -> Result<BucketInfo, Error> {
    let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("bucket name"))?;
    let corrupt = || Error::corrupt("bucket record");
    let (created, rest) = value.split_first_chunk::<8>().ok_or_else(corrupt)?;
    let versioning = match rest {
        [] => Versioning::Never,
        [byte] => Versioning::from_byte(*byte).ok_or_else(corrupt)?,
        _ => return Err(corrupt()),
    };
    Ok(BucketInfo {
        name: name.to_owned(),
        created_ms: u64::from_be_bytes(*created),
        versioning,
    })
}
