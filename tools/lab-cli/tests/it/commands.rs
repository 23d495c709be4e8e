//! The commands that build, use and remove a lab.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use prism_lab::testing::{say, turn};
use serde_json::Value;

use crate::prism_lab;

#[test]
fn a_lab_whose_processes_were_killed_goes_away_without_a_trace() {
    let Some(_turn) = turn() else { return };
    let name = format!("gone{}", std::process::id());
    let links = host_links();
    let guard = Down(&name);
    output_of(&["up", "--name", &name, "--backends", "2"]);
    assert!(
        !traces(&name).is_empty(),
        "the lab left no trace while it was up"
    );
    let pids = pids(&name);
    assert_eq!(pids.len(), 4, "{pids:?}");
    for pid in pids.values() {
        let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    output_of(&["down", "--name", &name]);
    assert_eq!(traces(&name), [] as [String; 0]);
    assert_eq!(host_links(), links);
    drop(guard);
}

#[test]
fn one_host_is_stopped_and_started_again() {
    let Some(_turn) = turn() else { return };
    let name = format!("stop{}", std::process::id());
    let guard = Down(&name);
    output_of(&["up", "--name", &name, "--backends", "2"]);
    let before = pids(&name);
    output_of(&["stop", "--name", &name, "be1"]);
    let mut others = before.clone();
    others.remove("be1");
    assert_eq!(pids(&name), others);
    let log = std::fs::read_to_string(format!("/run/prism-lab/{name}/log/be1.log"));
    assert!(
        log.unwrap().contains("stopping"),
        "SIGTERM lets a node end in order"
    );

    let again = prism_lab().args(["stop", "--name", &name, "be1"]).output();
    let again = again.unwrap();
    let said = String::from_utf8_lossy(&again.stderr);
    assert!(!again.status.success() && said.contains("be1"), "{said}");

    output_of(&["start", "--name", &name, "be1"]);
    let after = pids(&name);
    assert!(after.contains_key("be1") && after["be1"] != before["be1"]);
    output_of(&["down", "--name", &name]);
    drop(guard);
}

#[test]
fn a_lab_without_the_program_prism_says_how_to_have_it() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("prism-lab");
    std::fs::copy(env!("CARGO_BIN_EXE_prism-lab"), &alone).unwrap();
    let missing = directory.path().join("prism").display().to_string();
    for arguments in [&["up"][..], &["demo"], &["bench", "handoff"]] {
        let output = Command::new(&alone).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        for part in [&missing, "cargo build --release -p prism", "--prism PATH"] {
            assert!(said.contains(part), "{arguments:?}: {said}");
        }
    }
}

#[test]
fn a_lab_that_lacks_etcd_says_which_package_has_it() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = std::env::var_os("PATH").unwrap();
    for program in ["ip", "tc", "nsenter", "sysctl", "mount", "curl"] {
        let mut found = std::env::split_paths(&path).map(|dir| dir.join(program));
        let found = found.find(|file| file.exists()).unwrap();
        std::os::unix::fs::symlink(found, directory.path().join(program)).unwrap();
    }
    let name = format!("n{}", std::process::id());
    let mut up = prism_lab();
    up.args(["up", "--etcd", "--name", &name]);
    let up = up.env("PATH", directory.path()).output().unwrap();
    let said = String::from_utf8_lossy(&up.stderr);
    assert!(
        !up.status.success() && said.contains("apt-get install etcd-server"),
        "{said}"
    );
}

/// The lab's processes by host.
fn pids(name: &str) -> BTreeMap<String, u64> {
    let status = output_of(&["status", "--json", "--name", name]);
    let status: Value = serde_json::from_str(&status).unwrap();
    let hosts = status["hosts"].as_array().unwrap().iter();
    let with_pid = hosts.filter_map(|host| Some((host["name"].as_str()?, host["pid"].as_u64()?)));
    with_pid.map(|(name, pid)| (name.to_owned(), pid)).collect()
}

/// Takes the lab down where the test fails.
struct Down<'n>(&'n str);

impl Drop for Down<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let down = prism_lab().args(["down", "--name", self.0]).output();
            say(&format!("{down:?}"));
        }
    }
}

fn output_of(arguments: &[&str]) -> String {
    let output = prism_lab().args(arguments).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Everything on this machine that bears the lab's name: namespaces,
/// directories, pins, cgroups, mounts and processes.
fn traces(name: &str) -> Vec<String> {
    let own = format!("prism-lab-{name}");
    let mut found = Vec::new();
    let places = [
        (Path::new("/run/netns"), format!("prism-{name}-")),
        (Path::new("/run/prism-lab"), name.to_owned()),
        (Path::new("/dev/shm"), own.clone()),
        (Path::new("/sys/fs/bpf"), own.clone()),
        (Path::new("/sys/fs/cgroup"), own),
    ];
    for (place, prefix) in places {
        let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let ours = paths.filter(|path| file_name(path).starts_with(&prefix));
        found.extend(ours.map(|path| path.display().to_string()));
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    found.extend(
        mounts
            .lines()
            .filter(|m| m.contains(name))
            .map(str::to_owned),
    );
    found.extend(processes(name));
    found
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Processes that name the lab's files on their command line.
fn processes(name: &str) -> Vec<String> {
    let files = format!("/run/prism-lab/{name}");
    let commands = std::fs::read_dir("/proc").unwrap().flatten();
    let commands = commands.map(|entry: std::fs::DirEntry| -> PathBuf { entry.path() });
    let lines = commands.filter_map(|path| std::fs::read(path.join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(&files)).collect()
}

/// The interfaces of the machine's own network.
fn host_links() -> String {
    let output = Command::new("ip").args(["-o", "link"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter_map(|line| line.split(": ").nth(1));
    names.collect::<Vec<_>>().join(" ")
}
