//! Files below a root directory, which is `/` except in tests.

use std::fs::{File, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Far above any file that is read here.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The longest time for another `prism setup`, which takes some 0.1 s. Its restart of
/// systemd-networkd also starts the unit prism-host.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
const LOCK_POLL: Duration = Duration::from_millis(20);

/// The directory that stands for `/`.
#[derive(Clone, Debug)]
pub(crate) struct Root(PathBuf);

impl Root {
    pub(crate) fn new(directory: &Path) -> Self {
        Self(directory.to_owned())
    }

    /// Whether it is the host's own.
    pub(super) fn is_host(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// A lock of the host's setup, which is waited for. The kernel releases it with the file.
    pub(super) fn lock(&self) -> Result<File> {
        let directory = self.path(Path::new("/etc"));
        let file = File::open(&directory)
            .with_context(|| format!("cannot open {}", directory.display()))?;
        let give_up = Instant::now() + LOCK_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) if Instant::now() < give_up => {
                    std::thread::sleep(LOCK_POLL);
                }
                Err(error) => {
                    let doing = "waiting for another `prism setup` on this host";
                    return Err(error).context(doing);
                }
            }
        }
    }

    /// The place of the file at the absolute path `path`.
    pub(super) fn path(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// The text of a file; `None` if there is none.
pub(super) fn read_bounded(path: &Path) -> Result<Option<String>> {
    let name = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).context(format!("cannot read {name}")),
    };
    let mut text = String::new();
    let read = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text);
    let read = read.with_context(|| format!("cannot read {name}"))?;
    if read as u64 > MAX_FILE_BYTES {
        bail!("{name} is longer than {MAX_FILE_BYTES} bytes; move it away");
    }
    Ok(Some(text))
}

/// Writes a file that all may read, as a whole or not at all. Makes its directory.
pub(super) fn write_whole(path: &Path, text: &str) -> Result<()> {
    let doing = || format!("cannot write {}", path.display());
    let directory = path.parent().with_context(doing)?;
    std::fs::create_dir_all(directory).with_context(doing)?;
    let mut name = path.file_name().with_context(doing)?.to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    let mut file = File::create(&new).with_context(doing)?;
    file.set_permissions(PermissionsExt::from_mode(0o644))
        .and_then(|()| file.write_all(text.as_bytes()))
        .and_then(|()| file.sync_all())
        .and_then(|()| std::fs::rename(&new, path))
        .with_context(doing)
}

/// Removes a file, and its directories up to `made` unless they have other contents.
pub(super) fn remove(path: &Path, made: Option<&Path>) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(error).context(format!("cannot remove {}", path.display()));
        }
        _ => {}
    }
    let Some(made) = made else { return Ok(()) };
    for directory in path.ancestors().skip(1) {
        let is_below = directory.starts_with(made);
        if !is_below || std::fs::remove_dir(directory).is_err() {
            break;
        }
    }
    Ok(())
}
