//! The servers that operators have added to upstreams of a node, and their file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::node_file::NodeFile;

/// Most added servers of a node, also of upstreams that its configuration does not name any more.
pub(crate) const MAX_ADDED_SERVERS: usize = 256;

/// The servers by the name of their upstream.
type Table = BTreeMap<String, BTreeSet<SocketAddr>>;

/// The added servers of a node.
#[derive(Debug, Default)]
pub(crate) struct Additions {
    /// `None`: they end with the process.
    file: Option<NodeFile<Table>>,
    table: Table,
}

impl Additions {
    /// The servers that the file has; without a file there are none.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let (file, table) = NodeFile::open(file)?;
        Ok(Self {
            file: Some(file),
            table,
        })
    }

    /// The servers of an upstream.
    pub(crate) fn of(&self, upstream: &str) -> impl Iterator<Item = SocketAddr> {
        let servers = self.table.get(upstream).into_iter().flatten();
        servers.copied()
    }

    pub(crate) fn has(&self, upstream: &str, server: SocketAddr) -> bool {
        self.of(upstream).any(|known| known == server)
    }

    /// The number of all servers.
    pub(crate) fn count(&self) -> usize {
        self.table.values().map(BTreeSet::len).sum()
    }

    /// The file's path; empty without a file.
    pub(crate) fn path(&self) -> &Path {
        self.file.as_ref().map_or(Path::new(""), NodeFile::path)
    }

    /// Reads the file if another process of this node has written it during a take-over. Returns
    /// whether one has.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed. The servers are as before.
    pub(crate) fn refresh(&mut self) -> io::Result<bool> {
        match &self.file {
            Some(file) => file.refresh(&mut self.table),
            None => Ok(false),
        }
    }

    /// Adds a server. The file has it before anybody acts by it.
    ///
    /// # Errors
    /// The file cannot be written. The servers are as before.
    pub(crate) fn add(&mut self, upstream: &str, server: SocketAddr) -> io::Result<()> {
        let mut new = self.table.clone();
        new.entry(upstream.to_owned()).or_default().insert(server);
        self.replace(new)
    }

    /// Removes a server.
    ///
    /// # Errors
    /// As those of [`Self::add`].
    pub(crate) fn remove(&mut self, upstream: &str, server: SocketAddr) -> io::Result<()> {
        let mut new = self.table.clone();
        if let Some(servers) = new.get_mut(upstream) {
            servers.remove(&server);
        }
        new.retain(|_, servers| !servers.is_empty());
        self.replace(new)
    }

    fn replace(&mut self, new: Table) -> io::Result<()> {
        if let Some(file) = &self.file {
            file.write(&new)?;
        }
        self.table = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn server(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn two_processes_of_a_node_see_each_others_servers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/added-servers-be0.json");
        let [mut former, mut new] = [0, 1].map(|_| Additions::open(&path).unwrap());
        former.add("app", server(1)).unwrap();
        assert!(new.refresh().unwrap() && !new.refresh().unwrap());
        new.add("app", server(2)).unwrap();
        new.add("/", server(1)).unwrap();
        former.refresh().unwrap();
        former.remove("app", server(1)).unwrap();
        let again = Additions::open(&path).unwrap();
        assert_eq!(again.of("app").collect::<Vec<_>>(), [server(2)]);
        assert!(again.has("/", server(1)) && !again.has("other", server(1)));
        assert_eq!(again.count(), 2);
        former.remove("app", server(2)).unwrap();
        former.remove("/", server(1)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "{}");
    }

    #[test]
    fn a_server_that_cannot_be_kept_is_not_added() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("added-servers-be0.json");
        let mut added = Additions::open(&path).unwrap();
        added.add("app", server(1)).unwrap();
        std::fs::create_dir(prism_config::with_name(&path, "~new")).unwrap();
        added.add("app", server(2)).unwrap_err();
        added.remove("app", server(1)).unwrap_err();
        assert_eq!(added.of("app").collect::<Vec<_>>(), [server(1)]);
        std::fs::write(&path, "{\"app\": [\"x\"]}").unwrap();
        added.refresh().unwrap_err();
        assert!(!added.refresh().unwrap() && added.has("app", server(1)));
        assert!(Additions::open(&path).is_err());
    }
}
