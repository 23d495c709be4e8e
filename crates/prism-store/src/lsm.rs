//! The trees, how they are opened, and how a batch is committed. `view` reads them.

use std::{
    fs, io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use fjall::{
    AbstractTree, CompressionType, Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions,
    OwnedWriteBatch, PersistMode, Snapshot, UserKey, UserValue,
};
use parking_lot::{Mutex, RwLock};
use prism_audit::{LogTag, TreeFault};

use crate::{
    config::{Config, Durability},
    error::{Error, OpenError},
    layout::{Layout, SHARDS, sync_dir},
    log_tag,
};

const MIB: u64 = 1024 * 1024;
/// Twice the least that the tree allows. It bounds the time of recovery, too.
const JOURNAL_MAX: u64 = 128 * MIB;
/// Bytes of cached blocks.
const BLOCK_CACHE: u64 = 16 * MIB;
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

/// The name of the tree of objects.
pub(crate) const OBJECTS: &str = "objects";
/// The names of the other trees that the usage of buckets is counted by.
pub(crate) const VERSIONS: &str = "versions";
pub(crate) const FILES: &str = "files";

/// The number of commits; see `past`.
const COMMITS_KEY: &str = "commits";

/// The trees.
pub(crate) struct Lsm {
    db: Database,
    /// Records of buckets by name: see `record::bucket_value`.
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
    /// Prepared changes, by scope; see `pending`.
    pub(crate) pending: Keyspace,
    /// Stamps of deletions that are remembered, by the key of the object.
    pub(crate) deletions: Keyspace,
    pub(crate) versions: Keyspace,
    pub(crate) nulls: Keyspace,
    /// Stamps of the last changes of keys that have versions; see `keys`.
    pub(crate) changes: Keyspace,
    /// The usage of each bucket by its name; see `bucket_usage`.
    pub(crate) usage: Keyspace,
    /// Single records, each named by the module that keeps it.
    pub(crate) system: Keyspace,
    /// The mark of every batch of the log, for the audit.
    log_tag: LogTag,
    /// One commit at a time.
    committing: Mutex<()>,
    /// The commits of the store's whole life that have succeeded. Changes while `committing` is
    /// locked.
    commits: AtomicU64,
    /// The trees as of the last commit. The database's own snapshots could show half a commit:
    /// a commit takes its sequence number before it waits for the disk, and the end of any
    /// flush or compaction makes all lower numbers visible.
    committed: RwLock<Snapshot>,
    /// Bytes of an unfinished write that were cut off the log.
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
        let known = log_tag::read(layout)?;
        let are_flushed = config.durability == Durability::Fsync;
        let log_bytes_cut = prism_audit::before_opening(&layout.db(), known, are_flushed)?;
        let log_tag = match known {
            Some(tag) => tag,
            None => log_tag::draw()?,
        };
        Ok(Self {
            log_bytes_cut,
            ..Self::open_at(&layout.db(), config, log_tag)?
        })
    }

    /// Writes the log's tag, if the store has none yet. The first commit comes before: all batches
    /// without the tag precede one with it. Blocks.
    pub(crate) fn write_tag(&self, layout: &Layout) -> Result<(), OpenError> {
        match log_tag::read(layout)? {
            Some(_) => Ok(()),
            None => log_tag::write(self.log_tag, layout),
        }
    }

    fn open_at(path: &Path, config: &Config, log_tag: LogTag) -> Result<Self, OpenError> {
        let db = Database::builder(path)
            .cache_size(BLOCK_CACHE)
            .journal_compression(CompressionType::None)
            .manual_journal_persist(true)
            .max_journaling_size(JOURNAL_MAX)
            .max_cached_files(Some(DESCRIPTORS_MAX))
            .worker_threads(WORKERS)
            .open()?;
        let buffer = config.write_buffer_bytes;
        let small = || options(buffer / 8);
        let lsm = Self {
            buckets: db.keyspace("buckets", small)?,
            objects: db.keyspace(OBJECTS, || options(buffer / 2))?,
            files: db.keyspace(FILES, small)?,
            inline: db.keyspace("inline", || separated(buffer))?,
            uploads: db.keyspace("uploads", small)?,
            parts: db.keyspace("parts", small)?,
            manifests: db.keyspace("manifests", || separated(buffer / 8))?,
            garbage: db.keyspace("garbage", small)?,
            configs: db.keyspace("configs", small)?,
            pending: db.keyspace("pending", small)?,
            deletions: db.keyspace("deletions", small)?,
            versions: db.keyspace(VERSIONS, || options(buffer / 2))?,
            nulls: db.keyspace("nulls", small)?,
            changes: db.keyspace("changes", small)?,
            usage: db.keyspace("usage", small)?,
            system: db.keyspace("system", small)?,
            log_tag,
            committing: Mutex::new(()),
            commits: AtomicU64::new(0),
            committed: RwLock::new(db.snapshot()),
            log_bytes_cut: 0,
            db,
        };
        let commits = lsm.number(COMMITS_KEY)?.unwrap_or(0);
        lsm.commits.store(commits, Ordering::Release);
        Ok(lsm)
    }

    /// The commits of the store's whole life, without those of releases that did not count. Each
    /// is as durable as configured.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// A record of the tree `system`, of `N` bytes.
    pub(crate) fn system_value<const N: usize>(
        &self,
        key: &str,
    ) -> Result<Option<[u8; N]>, OpenError> {
        let value = self.system.get(key)?;
        let bytes = value.map(|value| <[u8; N]>::try_from(&*value)).transpose();
        bytes.map_err(|_| OpenError::Metadata(format!("record {key:?} is damaged").into()))
    }

    /// A number in the tree `system`.
    pub(crate) fn number(&self, key: &str) -> Result<Option<u64>, OpenError> {
        Ok(self.system_value(key)?.map(u64::from_be_bytes))
    }

    /// Writes a record of the tree `system`, durably. Blocks.
    pub(crate) fn record(&self, key: &str, value: &[u8]) -> fjall::Result<()> {
        let mut batch = Batch::default();
        batch.insert(&self.system, key, value);
        self.commit(batch, PersistMode::SyncAll)
    }

    /// Appends an empty batch to the log: damage at its very end looks like an interrupted write.
    pub(crate) fn seal_log(&self) -> Result<(), Error> {
        Ok(self.commit(Batch::default(), PersistMode::SyncAll)?)
    }

    /// Waits until the tree's background work has caught up, at most [`STALL_LIMIT`]. The tree
    /// itself would wait within a commit, and for ever if that work has died.
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

    /// Reports the faults of the log and of its tag, and returns its length in bytes. Blocks on
    /// disk.
    pub(crate) fn audit_logs(
        &self,
        layout: &Layout,
        found: &mut dyn FnMut(TreeFault),
    ) -> io::Result<u64> {
        if !matches!(log_tag::read(layout), Ok(Some(tag)) if tag == self.log_tag) {
            found(TreeFault {
                path: layout.root().join(log_tag::FILE),
                offset: None,
                what: "not the tag of this log".into(),
            });
        }
        prism_audit::logs(&layout.db(), self.log_tag, &self.committing, found)
    }

    /// Makes a batch durable by `mode`, which is at least as durable as configured, counts it,
    /// and then makes it visible as a whole. A batch that fails is not counted. Blocks.
    pub(crate) fn commit(&self, batch: Batch, mode: PersistMode) -> fjall::Result<()> {
        let _one = self.committing.lock();
        let commits = self.commits().saturating_add(1);
        let mut tagged = self.db.batch().durability(Some(mode));
        tagged.insert(&self.system, LogTag::KEY, self.log_tag.0);
        tagged.insert(&self.system, COMMITS_KEY, commits.to_be_bytes());
        batch.move_into(&mut tagged);
        tagged.commit()?;
        self.commits.store(commits, Ordering::Release);
        let after = self.db.snapshot();
        let mut committed = self.committed.write();
        *committed = after;
        Ok(())
    }

    /// The trees as of the last commit: every commit is whole or absent.
    pub(crate) fn snapshot(&self) -> Snapshot {
        self.committed.read().clone()
    }
}

/// Planned writes, in order, that become visible together. An operation that fails takes its own
/// back with [`Batch::truncate`].
#[derive(Default)]
pub(crate) struct Batch {
    writes: Vec<Write>,
}

struct Write {
    tree: Keyspace,
    key: UserKey,
    /// None removes the key.
    value: Option<UserValue>,
}

impl Batch {
    pub(crate) fn insert(
        &mut self,
        tree: &Keyspace,
        key: impl Into<UserKey>,
        value: impl Into<UserValue>,
    ) {
        self.push(tree, key.into(), Some(value.into()));
    }

    pub(crate) fn remove(&mut self, tree: &Keyspace, key: impl Into<UserKey>) {
        self.push(tree, key.into(), None);
    }

    fn push(&mut self, tree: &Keyspace, key: UserKey, value: Option<UserValue>) {
        let tree = tree.clone();
        self.writes.push(Write { tree, key, value });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.writes.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.writes.truncate(len);
    }

    /// The writes, in order: the tree, the key, and the value unless the key is removed.
    pub(crate) fn writes(&self) -> impl Iterator<Item = (&Keyspace, &[u8], Option<&[u8]>)> {
        let writes = self.writes.iter();
        writes.map(|write| (&write.tree, &*write.key, write.value.as_deref()))
    }

    /// The keys that change in the tree of this name.
    pub(crate) fn keys_of(&self, tree: &str) -> Vec<UserKey> {
        let writes = self.writes.iter();
        let of_tree = writes.filter(|write| &**write.tree.name() == tree);
        of_tree.map(|write| write.key.clone()).collect()
    }

    pub(crate) fn move_into(self, batch: &mut OwnedWriteBatch) {
        for Write { tree, key, value } in self.writes {
            match value {
                Some(value) => batch.insert(&tree, key, value),
                None => batch.remove(&tree, key),
            }
        }
    }
}

fn options(buffer: u64) -> KeyspaceCreateOptions {
    KeyspaceCreateOptions::default()
        .manual_journal_persist(true)
        .max_memtable_size(buffer)
}

/// Options of a tree whose values lie apart, so that compaction does not copy them.
fn separated(buffer: u64) -> KeyspaceCreateOptions {
    let blobs = KvSeparationOptions::default().compression(CompressionType::None);
    options(buffer).with_kv_separation(Some(blobs))
}

/// Makes the trees under another name first, so that a half-made tree is never opened.
fn create(layout: &Layout, config: &Config) -> Result<(), OpenError> {
    let new = layout.root().join("db.new");
    if new.exists() {
        fs::remove_dir_all(&new).map_err(OpenError::io("remove an unfinished db.new"))?;
    }
    let lsm = Lsm::open_at(&new, config, log_tag::draw()?)?;
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
