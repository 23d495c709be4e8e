//! The one user of `prism serve`: from the environment, or made once and stored in DIR.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use prism_common::random;
use prism_config::{Credential, CredentialFile, S3, write_private};

use super::dir;

/// Prints the secret key of the file that is its argument, as [`make`] writes it.
pub(super) const COMMAND_TO_READ_SECRET: &str = r#"sed -n 's/^secret_key = "\(.*\)"$/\1/p'"#;

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

/// Writes a new key.
fn make(path: &Path) -> anyhow::Result<()> {
    let credential = Credential {
        access_key: random::hex(ACCESS_BYTES)?.to_uppercase(),
        secret_key: random::hex(SECRET_BYTES)?,
        admin: Some(true),
        buckets: None,
    };
    let text = CredentialFile::text(vec![credential])?;
    Ok(write_private(path, &text)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::process::Command;

    use super::*;

    #[test]
    fn the_printed_command_reads_the_secret_key() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("credentials.toml");
        make(&path).unwrap();
        let file = S3 {
            credentials_file: path.clone(),
            ..S3::default()
        };
        let user = file.load_credentials().unwrap().remove(0);
        let line = format!("{COMMAND_TO_READ_SECRET} '{}'", path.display());
        let output = Command::new("sh").args(["-c", &line]).output().unwrap();
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(printed, format!("{}\n", user.secret_key));
    }
}
