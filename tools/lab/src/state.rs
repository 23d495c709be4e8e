//! The state of a lab between two commands: `lab.json` in its directory.
//!
//! It has only facts that cannot be observed: the process of each host, and the credentials.
//! Taking a lab down works without it.

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use prism_config::Credential;
use serde::{Deserialize, Serialize};

use crate::error::LabError;
use crate::name::{LabName, root_dir};
use crate::plan::LabPlan;
use crate::process::ProcessId;

/// It is longer than any build or removal of a lab.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// The condition of a healthy host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HealthCondition {
    /// It runs a moment after its start.
    Running,
    /// It runs and does its part in a Prism cluster.
    Serving,
}

/// The state of a lab.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) plan: LabPlan,
    /// The process that owns the lab while `kept` is false.
    pub(crate) owner: ProcessId,
    /// Whether the lab outlives its owner.
    pub(crate) kept: bool,
    /// The condition of a healthy host.
    pub(crate) health: HealthCondition,
    /// Whether the lab has been healthy.
    pub(crate) ready: bool,
    /// The command line of each host that runs a program.
    pub(crate) programs: BTreeMap<String, Vec<String>>,
    /// The process of each host.
    pub(crate) processes: BTreeMap<String, ProcessId>,
    /// The lab's own directory of stores.
    pub(crate) store_dir: PathBuf,
    pub(crate) credential: Credential,
    pub(crate) region: String,
    /// The addresses of HTTPS.
    #[serde(default)]
    pub(crate) https: Vec<SocketAddr>,
}

impl State {
    /// The state of lab `name`, if it can be read.
    pub(crate) fn load(name: &LabName) -> Option<Self> {
        let text = std::fs::read(file(name)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Replaces the whole file, so that no reader sees half of it.
    pub(crate) fn save(&self) -> Result<(), LabError> {
        let path = file(&self.plan.name);
        let doing = || format!("writing {}", path.display());
        let text = serde_json::to_vec_pretty(self)
            .map_err(|error| LabError::io(doing())(std::io::Error::other(error)))?;
        let next = path.with_extension("json.next");
        write_private(&next, &text)?;
        std::fs::rename(&next, &path).map_err(LabError::io(doing()))
    }

    /// Whether the lab is abandoned: its owner has ended, or it was kept and no process of it
    /// runs.
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

/// The lock of builds and removals of networks. The kernel releases it when the process ends.
pub(crate) struct Lock {
    directory: File,
}

impl Lock {
    /// Waits for the lock for up to a minute.
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

    /// A descriptor that also holds the lock, for a child process.
    pub(crate) fn share(&self) -> Result<Stdio, LabError> {
        let directory = self.directory.try_clone();
        directory
            .map(Stdio::from)
            .map_err(LabError::io("sharing the lock"))
    }
}
