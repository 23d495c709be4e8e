//! The tree: which trees there are, how they are opened, and what is read from
//! them. Everything that writes goes through `commit`.

use std::{
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    PersistMode, Readable, Snapshot,
};

use crate::{
    config::Config,
    error::{Error, OpenError},
    layout::{FileId, Layout, SHARDS, sync_dir},
    record::{FileRecord, Record},
    types::BucketInfo,
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

/// The trees.
pub(crate) struct Lsm {
    db: Database,
    /// Bucket name to creation time, 8 bytes.
    pub(crate) buckets: Keyspace,
    pub(crate) objects: Keyspace,
    pub(crate) files: Keyspace,
    pub(crate) inline: Keyspace,
    system: Keyspace,
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
        Self::open_at(&layout.db(), config)
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
            inline: db.keyspace("inline", || {
                let blobs = KvSeparationOptions::default().compression(CompressionType::None);
                options(buffer).with_kv_separation(Some(blobs))
            })?,
            system: db.keyspace("system", small)?,
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
        [&self.objects, &self.inline, &self.files]
            .iter()
            .any(|tree| {
                tree.tree.sealed_memtable_count() > SEALED_MAX
                    || tree.tree.l0_run_count() > RUNS_MAX
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

    pub(crate) fn any_object(&self, prefix: &[u8]) -> Result<bool, Error> {
        match self.snapshot.prefix(&self.lsm.objects, prefix).next() {
            None => Ok(false),
            Some(guard) => Ok(guard.key().map(|_| true)?),
        }
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

    pub(crate) fn inline(&self, id: FileId) -> Result<Option<Vec<u8>>, Error> {
        let value = self.snapshot.get(&self.lsm.inline, id.to_bytes())?;
        Ok(value.map(|value| value.to_vec()))
    }

    pub(crate) fn file(&self, id: FileId) -> Result<Option<FileRecord>, Error> {
        let value = self.snapshot.get(&self.lsm.files, id.to_bytes())?;
        value.map(|value| FileRecord::decode(&value)).transpose()
    }

    pub(crate) fn has_file(&self, id: FileId) -> Result<bool, Error> {
        Ok(self.snapshot.contains_key(&self.lsm.files, id.to_bytes())?)
    }

    /// All files that objects refer to.
    pub(crate) fn files(&self) -> impl Iterator<Item = Result<(FileId, FileRecord), Error>> {
        self.snapshot.iter(&self.lsm.files).map(|guard| {
            let (key, value) = guard.into_inner()?;
            let id = <[u8; 8]>::try_from(&*key).map_err(|_| Error::corrupt("file id"))?;
            Ok((FileId::from_bytes(id), FileRecord::decode(&value)?))
        })
    }
}

fn options(buffer: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(buffer)
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

fn bucket_info(name: &[u8], value: &[u8]) -> Result<BucketInfo, Error> {
    let name = std::str::from_utf8(name).map_err(|_| Error::corrupt("bucket name"))?;
    let created = <[u8; 8]>::try_from(value).map_err(|_| Error::corrupt("bucket record"))?;
    Ok(BucketInfo {
        name: name.to_owned(),
        created_ms: u64::from_be_bytes(created),
    })
}
