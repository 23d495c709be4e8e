//! The file of users, read again when it changes.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prism_config::{Credential, S3};
use prism_handoff::followed::FollowedFiles;
use tokio::sync::watch;

/// Time between two looks at the file.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The users. Each of them may do everything.
pub type Users = Arc<Vec<Credential>>;

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
        Ok(Self {
            settings: settings.clone(),
            users: watch::Sender::new(Arc::new(users)),
            file,
        })
    }

    pub(super) fn users(&self) -> watch::Receiver<Users> {
        self.users.subscribe()
    }

    /// Reads the file whenever it has changed or `again` returns. A file that cannot be used
    /// leaves the users as they are.
    pub(super) async fn keep_current(&self, again: impl AsyncFnMut()) {
        self.file.follow(LOOK_AGAIN, again, || self.read()).await;
    }

    fn read(&self) {
        match self.settings.load_credentials() {
            Ok(users) => {
                tracing::info!(users = users.len(), "the users have changed");
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
