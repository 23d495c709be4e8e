//! Processes by identity, so that a recycled process number is never hit.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

/// The pause between two checks of an ending process.
const POLL: Duration = Duration::from_millis(10);

/// A process: its number and its start time, as numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process number.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/<pid>/stat`, field 22).
    pub start_ticks: u64,
}

impl ProcessId {
    /// The process with number `pid`, unless it has ended.
    #[must_use]
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self::read(pid)?.0)
    }

    /// The process, and the state of its first thread: a letter of proc(5).
    fn read(pid: u32) -> Option<(Self, char)> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may itself hold any character.
        let (_, fields) = stat.rsplit_once(')')?;
        let mut fields = fields.split_ascii_whitespace();
        // Fields 3 (state), 20 (threads) and 22 (start time) of proc(5). After the end of the
        // first thread the other threads still hold files and locks.
        let state = fields.next()?.chars().next()?;
        let threads: u32 = fields.nth(16)?.parse().ok()?;
        let is_dead = matches!(state, 'Z' | 'X') && threads <= 1;
        let start_ticks = fields.nth(1)?.parse().ok()?;
        (!is_dead).then_some((Self { pid, start_ticks }, state))
    }

    /// This process.
    #[must_use]
    pub fn own() -> Self {
        let pid = std::process::id();
        Self::of(pid).unwrap_or(Self {
            pid,
            start_ticks: 0,
        })
    }

    /// Whether it runs. A zombie does not.
    #[must_use]
    pub fn is_alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }

    /// Whether its first thread runs, or waits for a processor or a disk.
    pub(crate) fn is_busy(self) -> bool {
        Self::read(self.pid).is_some_and(|(now, state)| now == self && matches!(state, 'R' | 'D'))
    }

    /// Sends `signal`. Returns false when the process is gone.
    pub(crate) fn signal(self, signal: Signal) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            return false;
        };
        // The check comes after the handle is open. A handle from before the check cannot be
        // that of another process.
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        self.is_alive() && pidfd_send_signal(&handle, signal).is_ok()
    }

    /// Waits until it has ended. Returns false at `deadline`.
    pub(crate) fn wait_gone(self, deadline: Instant) -> bool {
        while self.is_alive() {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
        true
    }
}

/// Ends all `processes` by SIGTERM, and by SIGKILL after `grace`. Returns those that still run.
pub(crate) fn end_all(processes: &BTreeSet<ProcessId>, grace: Duration) -> Vec<ProcessId> {
    for process in processes {
        process.signal(Signal::TERM);
    }
    let asked_until = Instant::now() + grace;
    for process in processes {
        if !process.wait_gone(asked_until) {
            process.signal(Signal::KILL);
        }
    }
    let killed_until = Instant::now() + Duration::from_secs(2);
    processes
        .iter()
        .copied()
        .filter(|process| !process.wait_gone(killed_until))
        .collect()
}

/// The processes in one of the namespaces at `paths`, without this one. Processes of this
/// process's own namespace are never among them.
pub(crate) fn in_namespaces(paths: &[impl AsRef<Path>]) -> BTreeSet<ProcessId> {
    let Some(own) = identity(Path::new("/proc/self/ns/net")) else {
        return BTreeSet::new();
    };
    let wanted: BTreeSet<_> = paths
        .iter()
        .filter_map(|path| identity(path.as_ref()))
        // A name that was never mounted is a plain file on another device.
        .filter(|namespace| *namespace != own && namespace.0 == own.0)
        .collect();
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            identity(Path::new(&format!("/proc/{pid}/ns/net"))).is_some_and(|n| wanted.contains(&n))
        })
        .filter_map(ProcessId::of)
        .collect()
}

/// Device and inode of the namespace at `path`.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::metadata(path)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "test code")]
    use super::*;

    #[test]
    fn a_recycled_number_is_another_process() {
        let own = ProcessId::own();
        assert!(own.is_alive());
        let predecessor = ProcessId {
            start_ticks: own.start_ticks - 1,
            ..own
        };
        assert!(!predecessor.is_alive());
        assert!(!predecessor.signal(Signal::KILL));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_process_lives_until_its_last_thread_has_ended() {
        // 60 is exit(2), which ends one thread.
        let script = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=[1]).start()
ctypes.CDLL(None).syscall(60, 0)";
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .spawn()
            .unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let process = ProcessId::of(child.id()).unwrap();
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(process.is_alive(), "its second thread sleeps");
        assert!(process.wait_gone(Instant::now() + Duration::from_secs(5)));
        child.wait().unwrap();
    }

    #[test]
    fn processes_of_the_own_namespace_are_never_claimed() {
        assert!(in_namespaces(&["/proc/self/ns/net", "/etc/hostname"]).is_empty());
    }

    #[test]
    fn a_process_that_ignores_the_request_is_made_to_end() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "trap '' TERM; while :; do sleep 0.05; done"])
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let process = ProcessId::of(child.id()).unwrap();
        let left = end_all(&BTreeSet::from([process]), Duration::from_millis(200));
        assert!(left.is_empty() && !process.is_alive());
        child.wait().unwrap();
    }
}
