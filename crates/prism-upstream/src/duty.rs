//! The duties of servers, as operators set them. Each backend keeps those of its own servers, in a
//! file, so that they outlive reloads, restarts and upgrades.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::node_file::NodeFile;

/// The requests that a server is to get, whatever its health.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Duty {
    /// All requests that are chosen for it.
    #[default]
    Up,
    /// Requests of clients that are its own, by the upstream's cookie or by a login.
    Drain,
    /// No requests.
    Down,
}

impl Duty {
    /// The duty of this name.
    pub fn named(word: &str) -> Option<Self> {
        Some(match word {
            "up" => Self::Up,
            "drain" => Self::Drain,
            "down" => Self::Down,
            _ => return None,
        })
    }

    /// Its name.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Drain => "drain",
            Self::Down => "down",
        }
    }
}

/// The servers of a node that are not up, also those that the configuration does not name any more.
type Table = BTreeMap<SocketAddr, Duty>;

/// The duties of the servers of a node.
#[derive(Debug, Default)]
pub(crate) struct Duties {
    /// `None`: they end with the process.
    file: Option<NodeFile<Table>>,
    table: Mutex<Table>,
}

impl Duties {
    /// The duties that the file has; without a file every server is up.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed.
    pub(crate) fn open(file: &Path) -> io::Result<Self> {
        let (file, table) = NodeFile::open(file)?;
        Ok(Self {
            file: Some(file),
            table: table.into(),
        })
    }

    pub(crate) fn of(&self, server: SocketAddr) -> Duty {
        self.table.lock().get(&server).copied().unwrap_or_default()
    }

    /// Reads the file if it is a new one: another process of this node may have written it during a
    /// take-over. Returns whether it is.
    ///
    /// # Errors
    /// The file cannot be read, or is malformed. The duties are as before, and the next call waits
    /// for another version.
    pub(crate) fn refresh(&self) -> io::Result<bool> {
        match &self.file {
            Some(file) => file.refresh(&mut self.table.lock()),
            None => Ok(false),
        }
    }

    /// Sets the duty of these servers. The file has it before anybody acts by it.
    ///
    /// # Errors
    /// The file cannot be written, or is malformed. The duties are as before.
    pub(crate) fn set(&self, servers: &[SocketAddr], duty: Duty) -> io::Result<()> {
        let mut table = self.table.lock();
        if let Some(file) = &self.file {
            file.refresh(&mut table)?;
        }
        let mut new = table.clone();
        for server in servers {
            match duty {
                Duty::Up => new.remove(server),
                Duty::Drain | Duty::Down => new.insert(*server, duty),
            };
        }
        if let Some(file) = &self.file {
            file.write(&new)?;
        }
        *table = new;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn duties_outlive_the_process_and_a_malformed_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("new/servers-be0.json");
        let [first, second] = [9, 10].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let duties = Duties::open(&file).unwrap();
        duties.set(&[first, second], Duty::Down).unwrap();
        duties.set(&[second], Duty::Drain).unwrap();
        let again = Duties::open(&file).unwrap();
        assert_eq!(again.of(first), Duty::Down);
        assert_eq!(again.of(second), Duty::Drain);
        again.set(&[first], Duty::Up).unwrap();
        let again = Duties::open(&file).unwrap();
        assert_eq!(again.of(first), Duty::Up);
        assert_eq!(again.of(second), Duty::Drain);
        std::fs::write(&file, "{\"127.0.0.1:9\": \"left\"}").unwrap();
        let error = Duties::open(&file).unwrap_err().to_string();
        assert!(error.contains("unknown variant `left`"), "{error}");
    }

    #[test]
    fn two_processes_of_a_node_see_each_others_duties() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers-be0.json");
        let [first, second] = [9, 10].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let [former, new] = [Duties::open(&file).unwrap(), Duties::open(&file).unwrap()];
        former.set(&[first], Duty::Down).unwrap();
        assert!(new.refresh().unwrap() && !new.refresh().unwrap());
        assert_eq!(new.of(first), Duty::Down);
        // Neither takes back what the other one has set.
        new.set(&[second], Duty::Drain).unwrap();
        former.set(&[second], Duty::Down).unwrap();
        new.refresh().unwrap();
        for duties in [&former, &new] {
            assert_eq!(duties.of(first), Duty::Down);
            assert_eq!(duties.of(second), Duty::Down);
        }
        std::fs::write(&file, "{").unwrap();
        new.refresh().unwrap_err();
        assert!(!new.refresh().unwrap());
        assert_eq!(new.of(first), Duty::Down);
    }

    #[test]
    fn a_duty_that_cannot_be_kept_is_not_acted_by() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("servers-be0.json");
        let server = SocketAddr::from(([127, 0, 0, 1], 9));
        let duties = Duties::open(&file).unwrap();
        duties.set(&[server], Duty::Drain).unwrap();
        std::fs::create_dir(prism_config::with_name(&file, "~new")).unwrap();
        duties.set(&[server], Duty::Down).unwrap_err();
        assert_eq!(duties.of(server), Duty::Drain);
        assert_eq!(Duties::open(&file).unwrap().of(server), Duty::Drain);
    }

    #[test]
    fn each_duty_has_a_name() {
        for duty in [Duty::Up, Duty::Drain, Duty::Down] {
            assert_eq!(Duty::named(duty.word()), Some(duty));
            let json = serde_json::to_string(&duty).unwrap();
            assert_eq!(json, format!("\"{}\"", duty.word()));
        }
        assert_eq!(Duty::named("UP"), None);
    }
}
