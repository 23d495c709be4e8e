//! The BPF file system, where maps and links outlive the process.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount};

use crate::error::{KernelError, kernel};

/// The file system that has the pins.
const ROOT: &str = "/sys/fs/bpf";
/// `BPF_FS_MAGIC` of `linux/magic.h`.
const MAGIC: i64 = 0xcafe_4a11;

/// The directory of the switch called `name`, which need not exist. `None` if `name` can be no
/// directory.
pub(crate) fn dir(name: &str) -> Option<PathBuf> {
    let bad = name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']);
    (!bad).then(|| Path::new(ROOT).join(name))
}

/// Mounts the file system if it is missing, and makes the directory `dir`. Only root can read
/// it, because it has keys.
pub(crate) fn prepare(dir: &Path) -> Result<(), KernelError> {
    mount_root().map_err(kernel(format!("use {ROOT}")))?;
    match fs::DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(cannot_use(dir, e)),
        _ => Ok(()),
    }
}

fn mount_root() -> io::Result<()> {
    let kind = rustix::fs::statfs(ROOT)?.f_type;
    if i128::from(kind) != i128::from(MAGIC) {
        mount("bpf", ROOT, "bpf", MountFlags::empty(), None)?;
    }
    Ok(())
}

pub(crate) fn cannot_use(path: &Path, error: io::Error) -> KernelError {
    kernel(format!("use {}", path.display()))(error)
}

/// Removes a pin, if there is one.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Paths of all pins in `dir`, which need not exist.
pub(crate) fn pins(dir: &Path) -> io::Result<Vec<PathBuf>> {
    match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(e) => Err(e),
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect(),
    }
}
