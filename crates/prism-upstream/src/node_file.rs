//! A small table of a node in a file, which outlives reloads, restarts and upgrades. During a
//! take-over two processes of the node share it.
//!
//! Not here: the meaning of the tables (`duty.rs`, `added.rs`).

use std::io;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use prism_common::followed::FollowedFiles;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The file of a table.
#[derive(Debug)]
pub(crate) struct NodeFile<T> {
    path: PathBuf,
    followed: FollowedFiles,
    table: PhantomData<fn() -> T>,
}

impl<T: Default + Serialize + DeserializeOwned> NodeFile<T> {
    /// The file, and the table that it has; without a file an empty one.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, T)> {
        let followed = FollowedFiles::new([path.to_path_buf()]);
        let table = read(path)?;
        let file = Self {
            path: path.to_path_buf(),
            followed,
            table: PhantomData,
        };
        Ok((file, table))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the table if the file is a new one. Returns whether it is.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed. The table is as before, and the next call waits
    /// for another version.
    pub(crate) fn refresh(&self, table: &mut T) -> io::Result<bool> {
        let has_changed = self.followed.changed();
        if has_changed {
            *table = read(&self.path)?;
        }
        Ok(has_changed)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn write(&self, table: &T) -> io::Result<()> {
        if let Some(directory) = self.path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        prism_config::write_private(&self.path, &serde_json::to_string_pretty(table)?)?;
        // This write is not one of another process.
        self.followed.changed();
        Ok(())
    }
}

fn read<T: Default + DeserializeOwned>(file: &Path) -> io::Result<T> {
    match std::fs::read(file) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        Err(error) => Err(error),
    }
}
