//! A file of servers (`servers_file`) that this node follows: a good version replaces the list, and
//! any other one leaves it as it is.
//!
//! Not here: the form of the file (`prism-config`).

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use prism_common::followed::FollowedFiles;
use prism_config::{Config, ServerList, ServersFileError, Upstream};

/// A file that is written in place is read when it has been the same for one look. One that changes
/// at each look is read at every fourth: within a second.
const MAX_UNSETTLED_LOOKS: u8 = 4;

/// The servers of a file.
pub(crate) struct FollowedList {
    path: PathBuf,
    followed: FollowedFiles,
    list: ServerList,
    /// Looks since the change that is not read yet; 0 if there is none.
    unsettled_looks: u8,
}

impl FollowedList {
    /// Reads the file, of the upstreams `users`, at the node called `own`. A file that does not
    /// exist has no server.
    ///
    /// # Errors
    /// It cannot be read, or has a fault.
    pub(crate) fn open(
        path: &Path,
        config: &Config,
        users: &[&Upstream],
        own: &str,
    ) -> Result<Self, ServersFileError> {
        let mut file = Self::unread(path);
        match file.read(config, users) {
            Ok(()) => {}
            Err(error) if error.read_error() == Some(ErrorKind::NotFound) => {
                let here = config.backends().filter(|node| node.name == own);
                let is_used = here.count() > 0 && users.iter().any(|one| one.is_at(own));
                if is_used {
                    tracing::warn!(%error, "a file of servers is missing, and has no server");
                } else {
                    tracing::debug!(%error, "this node knows its servers by reports");
                }
            }
            Err(error) => return Err(error),
        }
        Ok(file)
    }

    /// The same of a file with which a running node begins: a fault leaves it without a server.
    pub(crate) fn at(path: &Path, config: &Config, users: &[&Upstream], own: &str) -> Self {
        Self::open(path, config, users, own).unwrap_or_else(|error| {
            tracing::warn!(%error, "a file of servers has a fault, and has no server");
            Self::unread(path)
        })
    }

    fn unread(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            followed: FollowedFiles::new([path.to_owned()]),
            list: ServerList::default(),
            unsettled_looks: 0,
        }
    }

    /// Looks at the file, and reads it if it has changed. Returns whether the list is a new one.
    pub(crate) fn refresh(&mut self, config: &Config, users: &[&Upstream]) -> bool {
        let has_changed = self.followed.changed();
        if !has_changed && self.unsettled_looks == 0 {
            return false;
        }
        self.unsettled_looks += 1;
        if has_changed && self.unsettled_looks < MAX_UNSETTLED_LOOKS {
            return false;
        }
        self.unsettled_looks = 0;
        match self.read(config, users) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "a file of servers does not count; the former servers stay");
                false
            }
        }
    }

    fn read(&mut self, config: &Config, users: &[&Upstream]) -> Result<(), ServersFileError> {
        self.list = config.read_servers(&self.path)?;
        let file = self.path.display();
        let servers = self.list.len();
        tracing::info!(%file, servers, "a file of servers is read");
        for upstream in users {
            for doubt in config.doubts_of_servers(upstream, &self.list) {
                tracing::warn!(%file, doubt, "a line of a file of servers is doubtful");
            }
        }
        Ok(())
    }

    /// The servers that it lists for a backend.
    pub(crate) fn at_backend(&self, backend: &str) -> impl Iterator<Item = SocketAddr> {
        self.list.at(backend)
    }
}
