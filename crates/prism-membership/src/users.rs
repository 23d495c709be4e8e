//! The file of users, read again when it changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_common::followed::{FollowedFiles, ReloadRequests};
use prism_config::{Credential, S3};
use tokio::sync::watch;

/// Time between two looks at the file. A change counts within a second, so the rest is for reading
/// the file.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// The users.
pub type Users = Arc<Vec<Credential>>;

/// Warns of each user whose record says nothing about rights, unless it was so `before`.
pub(super) fn warn_of_unlimited(before: &[Credential], users: &[Credential], remedy: &str) {
    let unlimited = users.iter().filter(|user| user.is_unlimited_by_omission());
    for user in unlimited.filter(|user| !before.contains(user)) {
        tracing::warn!(
            access_key = user.access_key,
            remedy,
            "the key may do everything, because its record says neither admin nor buckets"
        );
    }
}

/// The remedy for a key of a file.
const IN_FILE: &str = "in s3.credentials_file, add `admin = true` to its [[credential]], or \
                       `buckets = { NAME = [\"read\", \"write\", \"owner\"] }` with its rights";
/// The remedy for a key in etcd.
pub(super) const IN_ETCD: &str = "run `prism ctl key set KEY --admin true`, or give it rights with \
                                  `prism ctl bucket allow` and run `prism ctl key set KEY --admin false`";

/// The file and its users.
pub(super) struct UsersFile {
    settings: S3,
    users: watch::Sender<Users>,
    file: FollowedFiles,
}

impl UsersFile {
    pub(super) fn open(settings: &S3) -> anyhow::Result<Self> {
        let file = FollowedFiles::new([settings.credentials_file.clone()]);
        let users = settings.load_credentials().context("s3.credentials_file")?;
        warn_of_unlimited(&[], &users, IN_FILE);
        Ok(Self {
            settings: settings.clone(),
            users: watch::Sender::new(Arc::new(users)),
            file,
        })
    }

    pub(super) fn users(&self) -> watch::Receiver<Users> {
        self.users.subscribe()
    }

    /// Reads the file whenever it has changed, and at each of the `requests`. A file that cannot be
    /// used leaves the users as they are.
    pub(super) async fn keep_current(&self, requests: ReloadRequests) {
        self.file.follow(LOOK_AGAIN, requests, || self.read()).await;
    }

    fn read(&self) {
        match self.settings.load_credentials() {
            Ok(users) => {
                tracing::info!(users = users.len(), "the users have changed");
                warn_of_unlimited(&self.users.borrow(), &users, IN_FILE);
                self.users.send_replace(Arc::new(users));
            }
            Err(error) => tracing::error!(%error, "cannot read the users; the former ones stay"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;

    fn write(path: &Path, keys: &[&str]) {
        let text: String = keys
            .iter()
            .map(|key| format!("[[credential]]\naccess_key = \"{key}\"\nsecret_key = \"s\"\n"))
            .collect();
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(new, path).unwrap();
    }

    fn keys(file: &UsersFile) -> Vec<String> {
        let users = file.users.borrow();
        users.iter().map(|user| user.access_key.clone()).collect()
    }

    #[test]
    fn a_changed_file_is_read_again_and_a_broken_one_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users.toml");
        let settings = S3 {
            credentials_file: path.clone(),
            ..S3::default()
        };
        assert!(UsersFile::open(&settings).is_err());
        write(&path, &["a"]);
        let file = UsersFile::open(&settings).unwrap();
        let look = || {
            if file.file.changed() {
                file.read();
            }
        };
        let news = file.users();
        look();
        assert!(!news.has_changed().unwrap());
        write(&path, &["a", "b"]);
        look();
        assert_eq!(keys(&file), ["a", "b"]);
        std::fs::write(&path, "[[credential]]\naccess_key = 1").unwrap();
        look();
        assert_eq!(keys(&file), ["a", "b"]);
        write(&path, &["c"]);
        look();
        assert_eq!(keys(&file), ["c"]);
    }
}
