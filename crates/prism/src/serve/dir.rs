//! The layout of the directory of `prism serve`, and the check that the directory is ours.
//!
//! ```text
//! store/            the objects; locked while the process runs
//! credentials.toml  the access key, unless the environment has one
//! serve.sock        the admin socket, while the process runs
//! ```

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

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
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir);
    made.with_context(cannot)?;
    if store(dir).exists() {
        return Ok(());
    }
    let ours = ["credentials.toml", "serve.sock", "lost+found"];
    for entry in fs::read_dir(dir).with_context(cannot)? {
        let name = entry.with_context(cannot)?.file_name();
        if !ours.iter().any(|known| name == *known) && !is_unfinished(&name) {
            bail!(
                "{} has other contents ({}); use an empty or a new directory",
                dir.display(),
                name.display()
            );
        }
    }
    writable(dir).with_context(cannot)
}

/// A file of credentials whose writer was killed.
fn is_unfinished(name: &std::ffi::OsStr) -> bool {
    name.to_str()
        .is_some_and(|name| name.starts_with("credentials.toml."))
}

fn writable(dir: &Path) -> io::Result<()> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    Ok(accessat(CWD, dir, Access::WRITE_OK, AtFlags::EACCESS)?)
}
