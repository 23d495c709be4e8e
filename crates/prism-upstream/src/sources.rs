//! The servers of each upstream at each backend, from all sources: the configuration, the file of
//! servers (`servers_file`), and operators who add them.
//!
//! A node knows the sources of its own servers. Other backends report theirs. Until the first
//! report, a node assumes the configuration and its own copy of the file.
//!
//! Not here: what is known of a server (`pool.rs`).

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use prism_config::{Config, Node, ServersFileError, Upstream};
use serde::{Deserialize, Serialize};

use crate::added::Additions;
use crate::figures;
use crate::followed_list::FollowedList;

/// The place that names a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// `address` of the upstream, or `upstream` of the node.
    Configuration,
    /// The upstream's `servers_file`.
    File,
    /// `prism ctl server add`.
    Added,
}

impl Source {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::File => "file",
            Self::Added => "added",
        }
    }
}

/// A server of an upstream at a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedServer {
    pub(crate) address: SocketAddr,
    /// `None` if the backend has not said it.
    pub(crate) source: Option<Source>,
    /// Whether the configuration names it, and no other one at this backend. Servers that come and
    /// go do not change that, so a cookie names the same server before and after.
    pub(crate) is_only: bool,
}

/// The servers of an upstream at one backend.
#[derive(Clone, Debug)]
pub(crate) struct BackendServers {
    pub(crate) backend: String,
    pub(crate) servers: Vec<PlacedServer>,
}

/// The servers of a backend, by the name of their upstream. `None`: those of the configuration.
pub(crate) type ReportedServers = BTreeMap<String, Option<Vec<SocketAddr>>>;

/// All sources of servers that a node knows.
pub(crate) struct Sources {
    /// The name of this node.
    own: String,
    pub(crate) config: Config,
    files: BTreeMap<PathBuf, FollowedList>,
    pub(crate) added: Additions,
    /// The servers of other backends, by the name of the backend.
    reported: BTreeMap<String, ReportedServers>,
}

impl Sources {
    /// The sources of the node called `own`, without any file.
    pub(crate) fn new(config: &Config, own: &str) -> Self {
        Self {
            own: own.to_owned(),
            config: config.clone(),
            files: BTreeMap::new(),
            added: Additions::default(),
            reported: BTreeMap::new(),
        }
    }

    /// Reads the files of servers, and follows them. One that does not exist has no server.
    ///
    /// # Errors
    /// A file cannot be read, or has a fault.
    pub(crate) fn open_files(&mut self) -> Result<(), ServersFileError> {
        for (path, users) in users_of_files(&self.config) {
            let list = FollowedList::open(&path, &self.config, &users, &self.own)?;
            self.files.insert(path, list);
        }
        Ok(())
    }

    /// Takes the added servers of this node from `file`, and keeps them there.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub(crate) fn open_additions(&mut self, file: &Path) -> io::Result<()> {
        self.added = Additions::open(file)?;
        Ok(())
    }

    /// Makes `config` the present configuration. A new file with a fault has no server.
    pub(crate) fn reconfigure(&mut self, config: &Config) {
        self.config = config.clone();
        let named = users_of_files(config);
        self.files.retain(|path, _| named.contains_key(path));
        for (path, users) in named {
            self.files
                .entry(path)
                .or_insert_with_key(|path| FollowedList::at(path, config, &users, &self.own));
        }
    }

    /// Reads the files that have changed. Returns whether servers may have come or gone.
    pub(crate) fn refresh(&mut self) -> bool {
        let mut is_new = match self.added.refresh() {
            Ok(is_new) => is_new,
            Err(error) => {
                tracing::warn!(%error, "the file of added servers is not read");
                false
            }
        };
        for (path, users) in users_of_files(&self.config) {
            if let Some(list) = self.files.get_mut(&path) {
                is_new |= list.refresh(&self.config, &users);
            }
        }
        is_new
    }

    /// Learns the servers of another backend. Returns whether they are new.
    pub(crate) fn learn(&mut self, backend: &str, reported: ReportedServers) -> bool {
        let is_new = self.reported.get(backend) != Some(&reported);
        if is_new {
            self.reported.insert(backend.to_owned(), reported);
        }
        is_new
    }

    /// The upstreams with their names, in the order in which requests try them.
    pub(crate) fn upstreams(&self) -> Vec<(String, &Upstream)> {
        let all = || {
            self.config
                .service
                .upstream
                .iter()
                .flat_map(|all| all.iter())
        };
        figures::names(all()).into_iter().zip(all()).collect()
    }

    /// The backends of an upstream with its servers there.
    pub(crate) fn placed(&self, upstream: &str, settings: &Upstream) -> Vec<BackendServers> {
        let backends = self.config.backends();
        let backends = backends.filter(|node| settings.is_at(&node.name));
        let placed = backends.map(|node| BackendServers {
            backend: node.name.clone(),
            servers: self.servers_at(upstream, settings, node),
        });
        placed.collect()
    }

    /// The servers of the upstream called `upstream` at this node; `None` if it is none of its
    /// backends.
    pub(crate) fn servers_here(&self, upstream: &str) -> Option<Vec<PlacedServer>> {
        let mut all = self.upstreams().into_iter();
        let (_, settings) = all.find(|(name, _)| name == upstream)?;
        let placed = self.placed(upstream, settings).into_iter();
        let mut here = placed.filter(|one| one.backend == self.own);
        here.next().map(|one| one.servers)
    }

    /// The servers of an upstream at one backend: each source adds those that no earlier one names.
    fn servers_at(&self, upstream: &str, settings: &Upstream, node: &Node) -> Vec<PlacedServer> {
        let configured: Vec<SocketAddr> = settings.configured_at(node).iter().collect();
        let is_only = configured.len() == 1;
        let named = |address: SocketAddr, source| PlacedServer {
            address,
            source,
            is_only: is_only && source == Some(Source::Configuration),
        };
        let reported = self.reported.get(&node.name);
        if let Some(Some(reported)) = reported.and_then(|all| all.get(upstream)) {
            let source = |address| {
                let is_configured = configured.contains(address);
                is_configured.then_some(Source::Configuration)
            };
            let servers = reported.iter();
            return servers.map(|one| named(*one, source(one))).collect();
        }
        let is_reported = reported.is_some_and(|all| all.contains_key(upstream));
        let path = settings.servers_file.as_ref().filter(|_| !is_reported);
        let list = path.and_then(|path| self.files.get(path));
        let listed = list
            .into_iter()
            .flat_map(|list| list.at_backend(&node.name));
        let is_here = node.name == self.own;
        let added = self.added.of(upstream).filter(|_| is_here);
        let mut servers: Vec<PlacedServer> = configured
            .iter()
            .map(|address| named(*address, Some(Source::Configuration)))
            .collect();
        let further = listed.map(|address| (address, Source::File));
        for (address, source) in further.chain(added.map(|address| (address, Source::Added))) {
            if !servers.iter().any(|known| known.address == address) {
                servers.push(named(address, Some(source)));
            }
        }
        servers
    }
}

/// The files of servers, each with the upstreams that name it.
fn users_of_files(config: &Config) -> BTreeMap<PathBuf, Vec<&Upstream>> {
    let mut users = BTreeMap::<PathBuf, Vec<&Upstream>>::new();
    for upstream in config.service.upstream.iter().flat_map(|all| all.iter()) {
        if let Some(path) = &upstream.servers_file {
            users.entry(path.clone()).or_default().push(upstream);
        }
    }
    users
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
