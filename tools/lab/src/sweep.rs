//! Takes a lab down: removes everything with its name, without its state.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::error::LabError;
use crate::groups;
use crate::name::{LabName, netns_file, root_dir};
use crate::process::{ProcessId, end_all, in_namespaces};
use crate::state::{Lock, State};
use crate::tool::run;

/// The longest time of processes to end by themselves.
const GRACE: Duration = Duration::from_secs(3);
/// After this time a program that was being started when the lab's owner was killed is in its
/// namespace, or has failed to enter it.
const SETTLE: Duration = Duration::from_millis(50);
/// A process may fork while it is being ended, so the sweep looks several times.
const ROUNDS: usize = 5;

/// Removes all remains of lab `name`. It is no error when there are none. The caller holds the
/// lock.
pub(crate) fn remove(name: &LabName, _lock: &Lock) -> Result<(), LabError> {
    let state = State::load(name);
    let mut left = Vec::new();
    let namespaces = name.namespaces();
    end_processes(&namespaces, state.as_ref(), &mut left);
    for namespace in &namespaces {
        if let Err(error) = remove_namespace(namespace) {
            left.push(error.to_string());
        }
    }
    let stores = state.map(|state| state.store_dir);
    let default_stores = Path::new("/dev/shm").join(name.directory_name());
    // Everything that is deleted has the lab's name.
    let stores = stores.filter(|path| path.ends_with(name.directory_name()));
    let directories = stores
        .into_iter()
        .chain([default_stores])
        .chain(name.pin_paths())
        .chain(groups::of_lab(name))
        // The directory goes last, as it leads to the rest.
        .chain([name.state_dir()]);
    for directory in directories {
        let is_cgroup = directory.starts_with("/sys/fs/cgroup");
        let removed = if is_cgroup {
            groups::remove(&directory)
        } else {
            remove_tree(&directory)
        };
        if let Err(error) = removed {
            left.push(format!("{}: {error}", directory.display()));
        }
    }
    if left.is_empty() {
        Ok(())
    } else {
        Err(LabError::Leftover {
            name: name.to_string(),
            what: left.join("; "),
        })
    }
}

/// Removes the labs whose owners have ended without removing them.
pub(crate) fn remove_abandoned(lock: &Lock) {
    let Ok(entries) = std::fs::read_dir(root_dir()) else {
        return;
    };
    let names = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    for name in names {
        let is_abandoned =
            State::load(&name).is_some_and(|state| !state.kept && state.is_abandoned());
        if is_abandoned && let Err(error) = remove(&name, lock) {
            tracing::warn!(%error, "an abandoned lab is not removed in full");
        }
    }
}

fn end_processes(namespaces: &[String], state: Option<&State>, left: &mut Vec<String>) {
    let paths: Vec<PathBuf> = namespaces
        .iter()
        .map(|namespace| netns_file(namespace))
        .collect();
    let mut processes: BTreeSet<ProcessId> = state
        .into_iter()
        .flat_map(|state| state.processes.values().copied())
        .collect();
    if state.is_some_and(|state| !state.ready && !state.owner.is_alive()) {
        std::thread::sleep(SETTLE);
    }
    for _ in 0..ROUNDS {
        processes.extend(in_namespaces(&paths));
        processes.retain(|process| process.is_alive());
        if processes.is_empty() {
            return;
        }
        end_all(&processes, GRACE);
    }
    let pids: Vec<String> = processes
        .iter()
        .map(|process| process.pid.to_string())
        .collect();
    left.push(format!("processes {}", pids.join(", ")));
}

fn remove_namespace(namespace: &str) -> Result<(), LabError> {
    match run(Command::new("ip").args(["netns", "delete", namespace])) {
        Ok(_) => Ok(()),
        // A name without a namespace: its maker was killed between the two steps. `ip` cannot
        // unmount it, and leaves the file.
        Err(error) => std::fs::remove_file(netns_file(namespace)).map_err(|_| error),
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
