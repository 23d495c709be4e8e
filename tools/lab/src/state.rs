//! What a lab remembers between two commands: `lab.json` in its directory.
//!
//! Only for what cannot be seen: which processes are which host's, and the
//! credentials. Taking a lab down works without it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::SocketAddrV4;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use prism_config::Credential;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::name::{LabName, root_dir};
use crate::plan::Plan;
use crate::process::ProcessId;
use crate::ready::Health;

/// Longer than any build or removal of a lab.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// What a lab remembers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) plan: Plan,
    /// The process whose lab it is while `kept` is false.
    pub(crate) owner: ProcessId,
    /// The lab outlives its owner.
    pub(crate) kept: bool,
    /// What makes its hosts healthy.
    pub(crate) health: Health,
    /// It has been healthy.
    pub(crate) ready: bool,
    /// The command line of each host that runs something.
    pub(crate) programs: BTreeMap<String, Vec<String>>,
    /// The process of each host.
    pub(crate) processes: BTreeMap<String, ProcessId>,
    /// The lab's own directory of stores.
    pub(crate) store_dir: PathBuf,
    pub(crate) credential: Credential,
    pub(crate) region: String,
    /// Where HTTPS is served.
    #[serde(default)]
    pub(crate) https: Option<SocketAddrV4>,
}

impl State {
    /// The state of lab `name`, if there is one that can be read.
    pub(crate) fn load(name: &LabName) -> Option<Self> {
        let text = std::fs::read(file(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces the file as a whole, so that a reader never sees half of it.
    pub(crate) fn save(&self) -> Result<(), LabError> {
        let path = file(&self.plan.name);
        let doing = || format!("writing {}", path.display());
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| LabError::io(doing())(std::io::Error::other(error)))?;
        let next = path.with_extension("json.next");
        write_private(&next, &text)?;
        std::fs::rename(&next, &path).map_err(LabError::io(doing()))
    }

    /// Nobody needs this lab: it belongs to a process that has ended, or was
    /// kept and nothing of it runs.
    pub(crate) fn is_abandoned(&self) -> bool {
        let runs = || self.processes.values().any(|process| process.is_alive());
        !(self.owner.is_alive() || self.kept && runs())
    }
}

fn file(name: &LabName) -> PathBuf {
    name.state_dir().join("lab.json")
}

/// Writes a file that only its owner can read.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), LabError> {
    let doing = || format!("writing {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let mut file = options.open(path).map_err(LabError::io(doing()))?;
    file.write_all(bytes).map_err(LabError::io(doing()))
}

/// Makes a directory that only its owner can enter, and its parents.
pub(crate) fn create_private_dir(path: &Path) -> Result<(), LabError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder
        .create(path)
        .map_err(LabError::io(format!("creating {}", path.display())))
}

/// Held while networks are built or removed. The kernel lets go of it when the
/// process ends, however it ends.
pub(crate) struct Lock {
    directory: File,
}

impl Lock {
    /// Waits for the lock, but no longer than a minute.
    pub(crate) fn take() -> Result<Self, LabError> {
        let root = root_dir();
        create_private_dir(&root)?;
        let doing = || format!("locking {}", root.display());
        let directory = File::open(&root).map_err(LabError::io(doing()))?;
        let give_up = Instant::now() + LOCK_TIMEOUT;
        loop {
            match directory.try_lock() {
                Ok(()) => {
                    return Ok(Self { directory });
                }
                Err(TryLockError::Error(error)) => return Err(LabError::io(doing())(error)),
                Err(TryLockError::WouldBlock) if Instant::now() >= give_up => {
                    return Err(LabError::Busy {
                        seconds: LOCK_TIMEOUT.as_secs(),
                    });
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// A descriptor that holds the lock too, as long as a child has it.
    pub(crate) fn share(&self) -> Result<Stdio, LabError> {
        let directory = self.directory.try_clone();
        directory
            .map(Stdio::from)
            .map_err(LabError::io("sharing the lock"))
    }
}
