//! The one user of `prism serve`: from the environment, or made once and stored in DIR.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use prism_common::random;
use prism_config::{Credential, S3};

use super::dir;

/// Random bytes in an access key and in a secret key.
const ACCESS_BYTES: usize = 8;
const SECRET_BYTES: usize = 20;

/// The user, and the file of the key unless the environment has it.
pub(super) fn of(dir: &Path) -> anyhow::Result<(Credential, Option<PathBuf>)> {
    if let Some(given) = from_environment()? {
        return Ok((given, None));
    }
    let path = dir::credentials(dir);
    if !path.exists() {
        make(&path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let file = S3 {
        credentials_file: path.clone(),
        ..S3::default()
    };
    let user = file.load_credentials()?.into_iter().next();
    let user = user.with_context(|| format!("{} has no access key", path.display()))?;
    Ok((user, Some(path)))
}

fn from_environment() -> anyhow::Result<Option<Credential>> {
    let access = "AWS_ACCESS_KEY_ID";
    let secret = "AWS_SECRET_ACCESS_KEY";
    let given = match (env::var(access), env::var(secret)) {
        (Ok(access_key), Ok(secret_key)) => Credential {
            access_key,
            secret_key,
            admin: Some(true),
            buckets: None,
        },
        (Err(env::VarError::NotPresent), Err(env::VarError::NotPresent)) => return Ok(None),
        _ => bail!("set {access} and {secret}, or neither"),
    };
    if !given.is_usable() {
        bail!("{access} and {secret} must be 1 to 128 printable ASCII characters each");
    }
    Ok(Some(given))
}

/// Writes a new key, unless another process has just written one: then that one counts.
fn make(path: &Path) -> io::Result<()> {
    let access_key = random::hex(ACCESS_BYTES)?.to_uppercase();
    let secret_key = random::hex(SECRET_BYTES)?;
    let unfinished = path.with_extension(format!("toml.{}", random::hex(ACCESS_BYTES)?));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    writeln!(file, "[[credential]]")?;
    writeln!(file, "access_key = \"{access_key}\"")?;
    writeln!(file, "secret_key = \"{secret_key}\"")?;
    writeln!(file, "admin = true")?;
    file.sync_all()?;
    let named = fs::hard_link(&unfinished, path);
    fs::remove_file(&unfinished)?;
    match named {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
