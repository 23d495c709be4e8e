//! The audit log: one line for each administrative action, whether it succeeded or not. Each line
//! is written before the action's answer. Strangers can have actions refused without end, so their
//! refusals are bounded: of those beyond [`STRANGERS_PER_INTERVAL`] the log has the number.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, RwLock};
use serde::Serialize;

use crate::access_log::{FILE_MODE, time_text};

/// The most lines about refused actions of anonymous clients in [`INTERVAL`]: some 150 KiB an
/// hour.
const STRANGERS_PER_INTERVAL: u32 = 10;
/// Time after which the number of the others is written.
const INTERVAL: Duration = Duration::from_mins(1);

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

/// The number of refused actions of anonymous clients that have no line.
#[derive(Serialize)]
struct LeftOut<'a> {
    time: &'a str,
    at: &'a str,
    refused_without_a_line: u64,
}

/// An audit log.
#[derive(Debug, Default)]
pub struct AuditLog {
    /// `None`: the actions stand in the process's own log.
    path: RwLock<Option<PathBuf>>,
    strangers: Mutex<Strangers>,
}

/// The refused actions of anonymous clients in the present interval.
#[derive(Debug, Default)]
struct Strangers {
    recorded: u32,
    left_out: u64,
}

impl Strangers {
    /// Whether one more is recorded; if not, it is counted.
    fn admit(&mut self) -> bool {
        let is_recorded = self.recorded < STRANGERS_PER_INTERVAL;
        if is_recorded {
            self.recorded += 1;
        } else {
            self.left_out += 1;
        }
        is_recorded
    }
}

impl AuditLog {
    /// A log in the file at `path`, or in the process's own log if the path is empty.
    pub fn new(path: &Path) -> Self {
        Self {
            path: RwLock::new(file_at(path)),
            strangers: Mutex::default(),
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

    /// Adds a refused action of an anonymous client, or counts it if there were many lately.
    pub fn record_stranger(&self, action: &Action<'_>) {
        if self.strangers.lock().admit() {
            self.record(action);
        }
    }

    /// Writes a line with the number of the actions that were left out, once in each interval at
    /// most. `at` is the name of the node. Never returns.
    pub async fn keep_counting(&self, at: &str) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.end_interval(at);
        }
    }

    fn end_interval(&self, at: &str) {
        let ended = std::mem::take(&mut *self.strangers.lock());
        if ended.left_out > 0 {
            self.write(&LeftOut {
                time: &time_text(SystemTime::now()),
                at,
                refused_without_a_line: ended.left_out,
            });
        }
    }

    /// Adds an action. If the file cannot be written, the action stands in the process's log. The
    /// file is opened each time, so it may be renamed at any time.
    pub fn record(&self, action: &Action<'_>) {
        self.write(&Line {
            time: &time_text(SystemTime::now()),
            action,
        });
    }

    fn write(&self, line: &impl Serialize) {
        let line = serde_json::to_string(line).unwrap_or_default();
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "test code")]
    use serde_json::Value;

    use super::*;

    #[test]
    fn refusals_of_strangers_are_bounded_and_the_others_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let log = AuditLog::new(&path);
        let action = |access_key| Action {
            actor: Actor::Client {
                client: ([192, 0, 2, 1], 9).into(),
                access_key,
                request_id: "1",
            },
            at: "be0",
            action: "DeleteBucket",
            subject: Some("photos"),
            outcome: "403 AccessDenied",
        };
        for _ in 0..1_000 {
            log.record_stranger(&action(None));
        }
        log.record(&action(Some("AK")));
        log.end_interval("be0");
        log.end_interval("be0");
        log.record_stranger(&action(None));
        let text = std::fs::read_to_string(&path).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let most = STRANGERS_PER_INTERVAL as usize;
        assert_eq!(lines.len(), most + 3, "{text}");
        assert_eq!(lines[most]["access_key"], "AK");
        assert_eq!(lines[most + 1]["refused_without_a_line"], 1_000 - most);
        assert_eq!(lines[most + 1]["at"], "be0");
        assert!(lines[most + 2]["access_key"].is_null());
    }
}
