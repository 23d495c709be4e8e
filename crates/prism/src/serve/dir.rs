//! The layout of the directory of `prism serve`, and the check that the directory is ours.
//!
//! ```text
//! store/            the objects; locked while the process runs
//! credentials.toml  the access key, unless the environment has one
//! serve.sock        the admin socket, while the process runs
//! ```

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{Access, AtFlags, CWD, accessat};

/// Longest path of a Unix socket (`sun_path` less the final zero).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// The objects.
pub(super) fn store(dir: &Path) -> PathBuf {
    dir.join("store")
}

/// The access key.
pub(super) fn credentials(dir: &Path) -> PathBuf {
    dir.join("credentials.toml")
}

/// Makes the directory, or checks that it holds nothing else.
pub(super) fn prepare(dir: &Path) -> anyhow::Result<()> {
    let socket = dir.join("serve.sock");
    if socket.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
        bail!(
            "the path {} is longer than {MAX_SOCKET_PATH_BYTES} bytes, the limit of a socket; \
             use a shorter path",
            socket.display()
        );
    }
    let cannot = || format!("cannot use the directory {}", dir.display());
    let mut builder = fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(dir);
    made.with_context(cannot)?;
    if store(dir).exists() {
        return Ok(());
    }
    let is_ours = |name: &OsStr| match name.to_str() {
        Some("credentials.toml" | "serve.sock" | "lost+found") => true,
        // Left by a process that was killed while it wrote credentials.
        Some(name) => name.starts_with("credentials.toml."),
        None => false,
    };
    for entry in fs::read_dir(dir).with_context(cannot)? {
        let name = entry.with_context(cannot)?.file_name();
        if !is_ours(&name) {
            let dir = dir.display();
            let name = name.display();
            bail!("{dir} has other contents ({name}); use an empty or a new directory");
        }
    }
    accessat(CWD, dir, Access::WRITE_OK, AtFlags::EACCESS).with_context(cannot)
}
