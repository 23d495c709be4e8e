//! The audit log: one line for each administrative action, whether it succeeded or not. There are
//! few, so each line is written before the action's answer, and none is dropped.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use std::time::SystemTime;

use parking_lot::RwLock;
use serde::Serialize;

use crate::access_log::{FILE_MODE, time_text};

/// The person or program that acts.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Actor<'a> {
    /// A user of this host.
    Local {
        /// The user's number, which the kernel vouches for.
        uid: u32,
    },
    /// The sender of a signal, whom the process does not know.
    Signal {
        /// The name of the signal.
        signal: &'static str,
    },
    /// A client of the service.
    Client {
        /// Its address.
        client: SocketAddr,
        /// Its access key; `None` for an anonymous one.
        access_key: Option<&'a str>,
        /// The identifier of its request.
        request_id: &'a str,
    },
}

/// An administrative action.
#[derive(Clone, Debug, Serialize)]
pub struct Action<'a> {
    /// The person or program that acts.
    #[serde(flatten)]
    pub actor: Actor<'a>,
    /// The node or the command that carries it out.
    pub at: &'a str,
    /// The name of the action, such as `DeleteBucket`.
    pub action: &'a str,
    /// The object of the action, if that is not the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<&'a str>,
    /// `done`, or the reason why it was not done.
    pub outcome: &'a str,
}

#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    #[serde(flatten)]
    action: &'a Action<'a>,
}

/// An audit log.
#[derive(Debug, Default)]
pub struct AuditLog {
    /// `None`: the actions stand in the process's own log.
    path: RwLock<Option<PathBuf>>,
}

impl AuditLog {
    /// A log in the file at `path`, or in the process's own log if the path is empty.
    pub fn new(path: &Path) -> Self {
        Self {
            path: RwLock::new(file_at(path)),
        }
    }

    /// Records later actions at another place, as in [`AuditLog::new`].
    ///
    /// # Errors
    /// The file cannot be opened. The log stays as it was.
    pub fn turn_to(&self, path: &Path) -> io::Result<()> {
        Self::new(path).check()?;
        *self.path.write() = file_at(path);
        Ok(())
    }

    fn path(&self) -> Option<PathBuf> {
        let path = self.path.read();
        path.clone()
    }

    /// Checks that the file can be written.
    ///
    /// # Errors
    /// The file cannot be opened.
    pub fn check(&self) -> io::Result<()> {
        self.path().map_or(Ok(()), |path| append(&path, ""))
    }

    /// Adds an action. If the file cannot be written, the action stands in the process's log. The
    /// file is opened each time, so it may be renamed at any time.
    pub fn record(&self, action: &Action<'_>) {
        let line = Line {
            time: &time_text(SystemTime::now()),
            action,
        };
        let line = serde_json::to_string(&line).unwrap_or_default();
        match &self.path() {
            None => tracing::info!(target: "prism::audit", "{line}"),
            Some(path) => {
                if let Err(error) = append(path, &format!("{line}\n")) {
                    let path = path.display();
                    tracing::error!(target: "prism::audit", %path, %error, "cannot write the audit log: {line}");
                }
            }
        }
    }
}

/// The file at a path; `None` for an empty one.
fn file_at(path: &Path) -> Option<PathBuf> {
    Some(path.to_owned()).filter(|path| !path.as_os_str().is_empty())
}

fn append(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let options = options.append(true).create(true).mode(FILE_MODE);
    options.open(path)?.write_all(text.as_bytes())
}
