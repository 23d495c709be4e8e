//! The file of an upstream's servers (`servers_file`), which another program writes: a server a
//! line, as `ADDRESS:PORT` at all backends, or as `BACKEND ADDRESS:PORT` at one of them.
//!
//! Not here: when a running node reads it again (`prism-upstream`).

use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::addresses::Address;
use crate::explain::with_port;
use crate::model::{Config, Node};
use crate::problem::{is_label, remedy};
use crate::upstream::Upstream;

/// Most servers that a file lists.
pub const MAX_LISTED_SERVERS: usize = 256;
/// Longest file: a server has at most 63 bytes for a name and 47 for an address, and as many for
/// comments.
const MAX_BYTES: u64 = 64 << 10;
const _: () = assert!(MAX_BYTES as usize >= 2 * MAX_LISTED_SERVERS * (63 + 1 + 47 + 1));

/// The reason why a file of servers does not count.
#[derive(Debug, thiserror::Error)]
pub enum ServersFileError {
    /// The file cannot be read.
    #[error(
        "{}: cannot read it: {source}; {}", path.display(),
        remedy(source, "write a server a line, as in 127.0.0.1:9000")
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The file is too long.
    #[error(
        "{}: has more than {MAX_BYTES} bytes; list at most {MAX_LISTED_SERVERS} servers, one a line",
        path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// A line is malformed.
    #[error("{}:{line}: {fault}; {fix}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line's number.
        line: usize,
        /// The fault.
        fault: String,
        /// How to fix it.
        fix: String,
    },
}

impl ServersFileError {
    /// The kernel's reason, if the file cannot be read.
    pub fn read_error(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Read { source, .. } => Some(source.kind()),
            Self::TooLong { .. } | Self::Line { .. } => None,
        }
    }
}

/// The servers that a file lists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerList(Vec<ListedServer>);

/// A line with a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ListedServer {
    line: usize,
    /// `None`: all backends.
    backend: Option<String>,
    address: SocketAddr,
}

/// A fault of a line, and its fix.
struct LineFault(String, String);

impl Config {
    /// Reads a file of servers.
    ///
    /// # Errors
    /// The file cannot be read, or has a fault.
    pub fn read_servers(&self, path: &Path) -> Result<ServerList, ServersFileError> {
        let bytes = read(path).map_err(|source| ServersFileError::Read {
            path: path.to_owned(),
            source,
        })?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(ServersFileError::TooLong {
                path: path.to_owned(),
            });
        }
        self.parse_servers(&bytes)
            .map_err(|(line, LineFault(fault, fix))| ServersFileError::Line {
                path: path.to_owned(),
                line,
                fault,
                fix,
            })
    }

    fn parse_servers(&self, bytes: &[u8]) -> Result<ServerList, (usize, LineFault)> {
        let mut all: Vec<ListedServer> = Vec::new();
        for (line, bytes) in (1..).zip(bytes.split(|byte| *byte == b'\n')) {
            let entry = self
                .parse_line(line, bytes)
                .map_err(|fault| (line, fault))?;
            all.extend(entry);
            if all.len() > MAX_LISTED_SERVERS {
                let fault = format!("has server number {}", all.len());
                let fix = format!("list at most {MAX_LISTED_SERVERS}");
                return Err((line, LineFault(fault, fix)));
            }
        }
        Ok(ServerList(all))
    }

    /// The server of a line; `None` of an empty one.
    fn parse_line(&self, line: usize, bytes: &[u8]) -> Result<Option<ListedServer>, LineFault> {
        let content = bytes.split(|byte| *byte == b'#').next();
        let text = std::str::from_utf8(content.unwrap_or_default());
        let text =
            text.map_err(|_| LineFault("is not UTF-8".into(), "write it in UTF-8".into()))?;
        let mut words = text.split_whitespace();
        let form = "write ADDRESS:PORT, or BACKEND ADDRESS:PORT";
        let (backend, address) = match (words.next(), words.next(), words.next()) {
            (None, ..) => return Ok(None),
            (Some(address), None, _) => (None, address),
            (Some(backend), Some(address), None) => (Some(backend), address),
            (.., Some(word)) => {
                let fault = format!("has {word:?} behind the address");
                return Err(LineFault(fault, form.into()));
            }
        };
        if let Some(name) = backend.filter(|name| !is_label(name)) {
            let fault = format!("{name:?} is not the name of a backend");
            return Err(LineFault(fault, form.into()));
        }
        let address: SocketAddr = address.parse().map_err(|_| {
            let fault = format!("{address:?} is not an address with a port");
            LineFault(fault, with_port("upstream", address))
        })?;
        if let Some(v4) = address.mapped() {
            let fault = format!("{address} is the IPv4 address {v4}");
            return Err(LineFault(fault, "write it as such".into()));
        }
        if let Some((fault, fix)) = self.server_fault(address) {
            return Err(LineFault(fault, fix.into()));
        }
        Ok(Some(ListedServer {
            line,
            backend: backend.map(str::to_owned),
            address,
        }))
    }

    /// The lines of the list that name a server again or no backend of this upstream.
    pub fn doubts_of_servers(&self, upstream: &Upstream, list: &ServerList) -> Vec<String> {
        let backends = || self.backends().filter(|node| upstream.is_at(&node.name));
        let mut earlier: Vec<&ListedServer> = Vec::new();
        let mut doubts = Vec::new();
        for entry in &list.0 {
            let ListedServer { line, address, .. } = entry;
            let mut meant = backends().filter(|node| entry.is_at(&node.name)).peekable();
            let name = entry.backend.as_deref().unwrap_or_default();
            let has = |node: &Node| upstream.configured_at(node).contains(*address);
            if meant.peek().is_none() {
                doubts.push(format!(
                    "line {line}: {name:?} is no backend of the upstream"
                ));
            } else if let Some(same) = earlier.iter().find(|one| one.is_double(entry)) {
                let first = same.line;
                doubts.push(format!("line {line}: {address} is in line {first} already"));
            } else if meant.all(has) {
                doubts.push(format!(
                    "line {line}: the configuration names {address} already"
                ));
            }
            earlier.push(entry);
        }
        doubts
    }
}

impl ListedServer {
    fn is_at(&self, name: &str) -> bool {
        self.backend
            .as_deref()
            .is_none_or(|backend| backend == name)
    }

    /// Whether both stand for one server at some backend.
    fn is_double(&self, other: &Self) -> bool {
        let is_at_one = match (&self.backend, &other.backend) {
            (Some(one), Some(another)) => one == another,
            _ => true,
        };
        self.address == other.address && is_at_one
    }
}

impl ServerList {
    /// The servers at the backend called `backend`. One that several lines name comes as often.
    pub fn at(&self, backend: &str) -> impl Iterator<Item = SocketAddr> {
        let entries = self.0.iter().filter(|entry| entry.is_at(backend));
        entries.map(|entry| entry.address)
    }

    /// The number of lines with a server.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it lists no server.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The file's content, with a byte more than the bound if it is too long.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    // A pipe would have nothing to read for as long as nobody writes.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
#[path = "servers_file_tests.rs"]
mod tests;
