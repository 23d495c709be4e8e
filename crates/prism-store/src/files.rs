//! Object files: made without a name, named when complete, removed when no record refers to
//! them. Their room: the quota, and the reserve of the file system.

use std::{
    fs::{self, File},
    io::{self, ErrorKind::NotFound},
    os::fd::AsRawFd,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use prism_common::absent::present;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};

use crate::{
    config::{Config, Durability},
    error::{Error, OpenError},
    layout::{FileId, Layout, sync_dir},
};

/// Free bytes below which the store commits nothing: more than one batch and a few full write
/// buffers.
const TREE_ROOM: u64 = 32 << 20;
/// The quota of a store that has none; no store has more bytes.
const UNLIMITED: u64 = u64::MAX;

/// The files of an open store.
#[derive(Debug)]
pub(crate) struct Files {
    layout: Layout,
    generation: u64,
    next: AtomicU64,
    reserve_bytes: AtomicU64,
    pub(crate) durability: Durability,
    pub(crate) usage: Usage,
}

impl Files {
    /// `generation` must be greater than that of any earlier opening.
    pub(crate) fn open(
        layout: Layout,
        generation: u64,
        config: &Config,
    ) -> Result<Self, OpenError> {
        match unnamed(&layout.files()) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                return Err(OpenError::NoTmpfile(layout.files()));
            }
            Err(e) => return Err(OpenError::io("make an unnamed file")(e)),
        }
        Ok(Self {
            layout,
            generation,
            next: AtomicU64::new(0),
            reserve_bytes: AtomicU64::new(config.reserve_bytes),
            durability: config.durability,
            usage: Usage::new(config.quota_bytes),
        })
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// An id that was never given before.
    pub(crate) fn new_id(&self) -> Result<FileId, Error> {
        let counter = self.next.fetch_add(1, Ordering::Relaxed);
        FileId::new(self.generation, counter).ok_or(Error::WritesDisabled)
    }

    fn reserve_bytes(&self) -> u64 {
        self.reserve_bytes.load(Ordering::Relaxed)
    }

    /// Changes the reserve and the quota.
    pub(crate) fn set_room(&self, reserve_bytes: u64, quota: Option<u64>) {
        self.reserve_bytes.store(reserve_bytes, Ordering::Relaxed);
        let quota = quota.unwrap_or(UNLIMITED);
        self.usage.quota.store(quota, Ordering::Relaxed);
    }

    /// [`Error::NoSpace`] unless `bytes` more would leave the reserve free.
    /// Costs a `statvfs`; does not wait for the disk.
    pub(crate) fn check_room(&self, bytes: u64) -> Result<(), Error> {
        self.check_free(self.reserve_bytes().saturating_add(bytes))
    }

    /// [`Error::NoSpace`] if so little of the reserve is left that a write of the tree could fail
    /// halfway, after which it takes no more. Deletions check this too, because they are written
    /// to the log.
    pub(crate) fn check_room_for_tree(&self) -> Result<(), Error> {
        self.check_free(TREE_ROOM.min(self.reserve_bytes() / 8))
    }

    fn check_free(&self, wanted: u64) -> Result<(), Error> {
        let stat = rustix::fs::statvfs(self.layout.root()).map_err(io::Error::from)?;
        if stat.f_bavail.saturating_mul(stat.f_frsize) < wanted {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    /// A file without a name: it vanishes with its last descriptor.
    pub(crate) fn create(&self) -> Result<File, Error> {
        Ok(unnamed(&self.layout.files())?)
    }

    /// Makes the contents durable and gives them their name. The name is not
    /// durable before [`Files::sync_shard`]. Blocks on disk.
    pub(crate) fn publish(&self, file: &File, id: FileId) -> Result<(), Error> {
        if self.durability == Durability::Fsync {
            file.sync_data()?;
        }
        // Through /proc, because AT_EMPTY_PATH needs a capability.
        let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
        let path = self.layout.file(id);
        rustix::fs::linkat(CWD, unnamed, CWD, &path, AtFlags::SYMLINK_FOLLOW)
            .map_err(io::Error::from)?;
        Ok(())
    }

    /// Makes the names in one directory durable. Blocks on disk.
    pub(crate) fn sync_shard(&self, shard: u16) -> Result<(), Error> {
        Ok(sync_dir(&self.layout.shard(shard))?)
    }

    /// Whether a file is there, and has this length. May block on disk.
    pub(crate) fn is_whole(&self, id: FileId, len: u64) -> bool {
        let found = fs::metadata(self.layout().file(id));
        found.is_ok_and(|found| found.len() == len)
    }

    /// Opens a file for reading; `None` if it is missing. May block on disk.
    pub(crate) fn open_file(&self, id: FileId) -> io::Result<Option<File>> {
        present(File::open(self.layout.file(id)), NotFound)
    }

    /// Opens a file to repair it; `None` if it is missing. May block on disk.
    pub(crate) fn open_damaged(&self, id: FileId) -> io::Result<Option<File>> {
        let file = File::options()
            .read(true)
            .write(true)
            .open(self.layout.file(id));
        present(file, NotFound)
    }

    /// Removes a file without a record. A failure leaves an orphan, which the next opening
    /// removes. May block on disk.
    pub(crate) fn remove(&self, id: FileId) {
        if let Err(error) = fs::remove_file(self.layout.file(id)) {
            tracing::warn!(file = %id, %error, "an object file without a record stays until the store is opened again");
        }
    }
}

/// The bytes of objects and parts, and their limit, the quota. Their lengths count, whatever
/// they take on the disk. Keys, metadata and the tree do not. Only commits change them, one at a
/// time.
#[derive(Debug)]
pub(crate) struct Usage {
    /// [`UNLIMITED`] for none.
    quota: AtomicU64,
    used: AtomicU64,
}

/// The bytes that a change takes and gives back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct BytesChange {
    pub(crate) taken: u64,
    pub(crate) given: u64,
}

impl Usage {
    pub(crate) fn new(quota: Option<u64>) -> Self {
        Self {
            quota: AtomicU64::new(quota.unwrap_or(UNLIMITED)),
            used: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.quota() != UNLIMITED
    }

    fn quota(&self) -> u64 {
        self.quota.load(Ordering::Relaxed)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// [`Error::NoSpace`] if a change grows the store beyond the quota.
    pub(crate) fn check(&self, taken: u64, given: u64) -> Result<(), Error> {
        let quota = self.quota();
        let after = self.used().saturating_sub(given);
        if taken > given && after.saturating_add(taken) > quota {
            Err(Error::NoSpace)
        } else {
            Ok(())
        }
    }

    pub(crate) fn apply(&self, change: BytesChange) {
        let after = self.used().saturating_add(change.taken);
        self.used
            .store(after.saturating_sub(change.given), Ordering::Relaxed);
    }

    /// Takes back a change whose commit failed.
    pub(crate) fn revert(&self, change: BytesChange) {
        self.apply(BytesChange {
            taken: change.given,
            given: change.taken,
        });
    }
}

fn unnamed(dir: &Path) -> io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    Ok(File::from(fd))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(taken: u64, given: u64) -> BytesChange {
        BytesChange { taken, given }
    }

    #[test]
    fn what_grows_beyond_the_quota_is_refused_and_what_shrinks_is_not() {
        let usage = Usage::new(Some(100));
        assert!(usage.check(100, 0).is_ok());
        assert!(usage.check(101, 0).is_err());
        usage.apply(change(100, 0));
        assert!(usage.check(1, 0).is_err());
        assert!(usage.check(0, 0).is_ok());
        assert!(usage.check(50, 60).is_ok());
        assert!(usage.check(60, 50).is_err());
        usage.revert(change(100, 0));
        assert_eq!(usage.used(), 0);
        // A store that was given a smaller quota than it holds.
        usage.apply(change(200, 0));
        assert!(usage.check(99, 100).is_ok());
        assert!(usage.check(1, 0).is_err());
        assert!(Usage::new(None).check(u64::MAX, 0).is_ok());
    }
}
