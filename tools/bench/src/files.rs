//! Files of the systems, in memory: objects, configurations and certificates.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result};

use crate::objects::BUCKET;

/// Files are in memory, so that the disk is no limit.
const MEMORY: &str = "/dev/shm";

/// A directory in memory, removed when dropped.
pub(crate) struct Files(PathBuf);

impl Files {
    pub(crate) fn new() -> Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("prism-bench-{}-{number}", std::process::id());
        let path = Path::new(MEMORY).join(name);
        // It will have private keys.
        let made = fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("making {}", path.display()))?;
        Ok(Self(path))
    }

    /// Writes a file that only its owner may read.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf> {
        use std::io::Write;
        let path = self.path(name);
        let mut options = fs::OpenOptions::new();
        let file = options.create_new(true).write(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(bytes))
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The directory with the objects of all servers, by bucket and key.
    pub(crate) fn objects(&self) -> PathBuf {
        self.path("objects")
    }

    /// The file of an object.
    pub(crate) fn of(&self, key: &str) -> PathBuf {
        self.objects().join(BUCKET).join(key)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
