//! The directory of a store: its files, its lock and its format.
//!
//! ```text
//! LOCK        locked (flock) while a store is open
//! FORMAT      "prism-store format 6"; written before anything else
//! LOGTAG      the number that each batch of the tree's log begins with; see `log_tag`
//! db/         the tree; made as db.new and renamed when complete
//! files/XX/   object files, XX = 00 to 3f, named by their id in 16 hex digits
//! ```

use std::{
    fmt,
    fs::{self, File, Permissions, TryLockError},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use prism_common::absent::present;

use crate::error::OpenError;

/// The format that this release reads and writes.
pub const FORMAT_VERSION: u32 = 6;

/// The rights of the group and of other users.
const OTHERS: u32 = 0o077;

const FORMAT_PREFIX: &str = "prism-store format ";
/// Number of directories under `files`.
pub(crate) const SHARDS: u16 = 64;
/// Bits of a [`FileId`] that count within one opening of the store.
const COUNTER_BITS: u32 = 44;

/// Names the bytes of one version of an object, for ever: 20 bits say in which
/// opening of the store it was written, 44 bits count within that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId(u64);

impl FileId {
    /// Most openings of a store.
    pub(crate) const GENERATION_MAX: u64 = (1 << (64 - COUNTER_BITS)) - 1;

    /// `None` once the generation has used up its ids.
    pub(crate) fn new(generation: u64, counter: u64) -> Option<Self> {
        let fits = generation <= Self::GENERATION_MAX && counter >> COUNTER_BITS == 0;
        fits.then_some(Self(generation << COUNTER_BITS | counter))
    }

    pub(crate) fn to_bytes(self) -> [u8; 8] {
        self.0.to_be_bytes()
    }

    pub(crate) fn from_bytes(bytes: [u8; 8]) -> Self {
        Self(u64::from_be_bytes(bytes))
    }

    /// The directory of the file. Successive ids share one, so that a group of commits flushes
    /// one directory.
    pub(crate) fn shard(self) -> u16 {
        (self.0 >> 8) as u16 % SHARDS
    }

    /// Parses a file name; `None` for any name that a store never gives.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let id = Self(u64::from_str_radix(name, 16).ok()?);
        (id.to_string() == name).then_some(id)
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A store's directory, locked.
#[derive(Debug)]
pub(crate) struct Layout {
    root: PathBuf,
    /// Holds the lock until dropped.
    _lock: File,
}

impl Layout {
    /// Locks `root`, which it creates if it is missing, checks its format, closes it to other
    /// users, and creates missing directories. Blocks on disk.
    pub(crate) fn open(root: &Path) -> Result<Self, OpenError> {
        create_durably(root).map_err(OpenError::io(format!("mkdir {}", root.display())))?;
        // In this order: another process may be creating the store right now,
        // and FORMAT is the first thing it makes.
        if !is_fresh(root)? && !root.join("FORMAT").exists() {
            return Err(OpenError::NotAStore(root.to_owned()));
        }
        let layout = Self {
            root: root.to_owned(),
            _lock: lock(root)?,
        };
        layout.check_format()?;
        close_to_others(root);
        layout.create_shards()?;
        Ok(layout)
    }

    /// The directory of the complete tree.
    pub(crate) fn db(&self) -> PathBuf {
        self.root.join("db")
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn files(&self) -> PathBuf {
        self.root.join("files")
    }

    pub(crate) fn shard(&self, shard: u16) -> PathBuf {
        self.files().join(format!("{shard:02x}"))
    }

    pub(crate) fn file(&self, id: FileId) -> PathBuf {
        self.shard(id.shard()).join(id.to_string())
    }

    /// Checks that the directory has the format that this release writes, or gives it that.
    fn check_format(&self) -> Result<(), OpenError> {
        let Some(text) = self.read("FORMAT")? else {
            return self.write("FORMAT", &format!("{FORMAT_PREFIX}{FORMAT_VERSION}"));
        };
        let version = text.strip_suffix('\n');
        let version = version.and_then(|line| line.strip_prefix(FORMAT_PREFIX));
        match version.and_then(|version| version.parse().ok()) {
            Some(FORMAT_VERSION) => Ok(()),
            Some(found) => Err(OpenError::OtherFormat {
                found,
                supported: FORMAT_VERSION,
            }),
            None => Err(OpenError::NotAStore(self.root.clone())),
        }
    }

    /// The contents of a file of the directory, if it exists. Blocks on disk.
    pub(crate) fn read(&self, name: &str) -> Result<Option<String>, OpenError> {
        let text = fs::read_to_string(self.root.join(name));
        present(text, io::ErrorKind::NotFound).map_err(OpenError::io(format!("read {name}")))
    }

    /// Replaces a file of the directory by one with this line, durably. Blocks on disk.
    pub(crate) fn write(&self, name: &str, line: &str) -> Result<(), OpenError> {
        let write = || {
            let new = self.root.join(name).with_extension("new");
            let mut file = File::create(&new)?;
            writeln!(file, "{line}")?;
            file.sync_all()?;
            fs::rename(&new, self.root.join(name))?;
            sync_dir(&self.root)
        };
        write().map_err(OpenError::io(format!("write {name}")))
    }

    /// Also makes the directories of a killed opening durable.
    fn create_shards(&self) -> Result<(), OpenError> {
        let create = || {
            for shard in 0..SHARDS {
                fs::create_dir_all(self.shard(shard))?;
            }
            sync_dir(&self.files())?;
            sync_dir(&self.root)
        };
        create().map_err(OpenError::io(format!(
            "mkdir under {}",
            self.files().display()
        )))
    }
}

/// Makes a directory and its missing parents, so that they survive a loss of power.
fn create_durably(dir: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = dir
        .ancestors()
        .take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists())
        .collect();
    fs::create_dir_all(dir)?;
    for parent in missing.iter().filter_map(|dir| dir.parent()) {
        let here = Path::new(".");
        sync_dir(if parent.as_os_str().is_empty() {
            here
        } else {
            parent
        })?;
    }
    Ok(())
}

/// Takes all rights on a directory, and so on all below it, from other users and from the group.
fn close_to_others(dir: &Path) {
    let closing = fs::metadata(dir).and_then(|metadata| {
        let mode = metadata.permissions().mode();
        if mode & OTHERS == 0 {
            return Ok(());
        }
        fs::set_permissions(dir, Permissions::from_mode(mode & !OTHERS))
    });
    if let Err(error) = closing {
        let dir = dir.display();
        tracing::warn!(%dir, %error, "other users may read the store; run chmod 700 on it as its owner");
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Whether a store may be created here: the directory is empty, or has the files of an
/// interrupted creation.
fn is_fresh(root: &Path) -> Result<bool, OpenError> {
    let fail = |e| OpenError::io(format!("read {}", root.display()))(e);
    for entry in fs::read_dir(root).map_err(fail)? {
        let name = entry.map_err(fail)?.file_name();
        if name != "LOCK" && name != "FORMAT.new" && name != "lost+found" {
            return Ok(false);
        }
    }
    Ok(true)
}

fn lock(root: &Path) -> Result<File, OpenError> {
    let path = root.join("LOCK");
    let fail = |e| OpenError::io(format!("lock {}", path.display()))(e);
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(fail)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(OpenError::Locked(root.to_owned())),
        Err(TryLockError::Error(e)) => Err(fail(e)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_id_is_found_again_in_its_name_and_no_other_name_is_taken_for_one() {
        let id = FileId::new(7, 0x1234).unwrap();
        assert_eq!(FileId::parse(&id.to_string()), Some(id));
        assert_eq!(id.shard(), 0x12);
        for name in [
            "",
            "x",
            "1234",
            "+000000000000001",
            "00000000000000FF",
            "000000000000000000",
        ] {
            assert_eq!(FileId::parse(name), None, "{name}");
        }
        assert_eq!(FileId::new(FileId::GENERATION_MAX + 1, 0), None);
        assert_eq!(FileId::new(0, 1 << COUNTER_BITS), None);
    }

    #[test]
    fn another_format_is_refused_and_named_and_no_format_is_no_store() {
        let dir = tempfile::tempdir().unwrap();
        let format = dir.path().join("FORMAT");
        for other in [FORMAT_VERSION - 1, FORMAT_VERSION + 1] {
            fs::write(&format, format!("{FORMAT_PREFIX}{other}\n")).unwrap();
            let error = Layout::open(dir.path()).unwrap_err();
            assert!(matches!(error, OpenError::OtherFormat { found, .. } if found == other));
        }
        let flipped = format!("{FORMAT_PREFIX}{FORMAT_VERSION}\u{b}");
        for none in ["", "prism-store format x\n", &flipped] {
            fs::write(&format, none).unwrap();
            assert!(matches!(
                Layout::open(dir.path()),
                Err(OpenError::NotAStore(_))
            ));
        }
    }

    #[test]
    fn a_directory_of_something_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("letter.txt"), "dear").unwrap();
        assert!(matches!(
            Layout::open(dir.path()),
            Err(OpenError::NotAStore(_))
        ));
        assert!(!dir.path().join("files").exists());
    }

    #[test]
    fn a_new_store_and_an_existing_one_are_closed_to_other_users() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let mode = || fs::metadata(&root).unwrap().permissions().mode() & 0o7777;
        drop(Layout::open(&root).unwrap());
        assert_eq!(mode(), 0o700);
        fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        drop(Layout::open(&root).unwrap());
        assert_eq!(mode(), 0o700);
    }
}
