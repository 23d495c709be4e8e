//! Tests of `prism-lab demo`: its output, and that it leaves nothing behind, interrupted or
//! not.

use std::io::{BufRead, BufReader, Read};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use prism_lab::testing::{say, turn};

/// The longest time of the demo, and of its end after an interrupt.
pub(super) const DEMO_TIMEOUT: Duration = Duration::from_secs(60);
const END_TIMEOUT: Duration = Duration::from_secs(15);
/// The demo's checks in their order.
const CHECKS: [&str; 7] = [
    "client connections",
    "answers compared",
    "answered by",
    "resets at client",
    "client talked to",
    "through frontend",
    "time of hand-off",
];

/// A running demo. A test that fails ends it, and it cleans up.
pub(super) struct Demo {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

/// The receivers of the signal.
#[derive(Clone, Copy, Debug)]
enum By {
    /// The demo alone.
    Kill,
    /// The demo and its children, as by Ctrl-C in a terminal.
    Keyboard,
}

impl Demo {
    fn start(rounds: &str) -> Self {
        Self::start_with(rounds, &[])
    }

    pub(super) fn start_with(rounds: &str, more: &[&str]) -> Self {
        let mut child = crate::prism_lab()
            .args(["demo", "--rounds", rounds, "--dir"])
            .arg(env!("CARGO_MANIFEST_DIR"))
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Reads on until a line has `text` in it.
    fn read_until(&mut self, text: &str) {
        let mut line = String::new();
        while !line.contains(text) {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "no {text:?}");
        }
    }

    fn interrupt(&self, by: By) {
        let pid = Pid::from_child(&self.child);
        match by {
            By::Kill => kill_process(pid, Signal::INT).unwrap(),
            By::Keyboard => kill_process_group(pid, Signal::INT).unwrap(),
        }
    }

    /// Waits for the end. Returns the status and the unread output.
    pub(super) fn end(&mut self, timeout: Duration) -> (ExitStatus, String, String) {
        let deadline = Instant::now() + timeout;
        // The whole output fits into the pipes.
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "not over after {timeout:?}");
            std::thread::sleep(Duration::from_millis(10));
        };
        let (mut output, mut errors) = (String::new(), String::new());
        self.output.read_to_string(&mut output).unwrap();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut errors).unwrap();
        (status, output, errors)
    }

    /// Namespaces and directories of its lab.
    pub(super) fn left(&self) -> Vec<PathBuf> {
        let name = format!("demo-{}", self.child.id());
        let namespaces = std::fs::read_dir("/run/netns").into_iter().flatten();
        let prefix = format!("prism-{name}-");
        let mut left: Vec<_> = namespaces
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains(&prefix))
            .collect();
        let places = [
            format!("/run/prism-lab/{name}"),
            format!("/dev/shm/prism-lab-{name}"),
            format!("/sys/fs/bpf/prism-lab-{name}"),
        ];
        let directories = places.iter().map(Path::new).filter(|path| path.exists());
        left.extend(directories.map(Path::to_owned));
        left
    }

    /// The demo ends at once, names the cause, and leaves nothing.
    fn ends_interrupted(mut self, when: &str, by: By) {
        assert!(!self.left().is_empty(), "{when}: nothing to clean up");
        self.interrupt(by);
        let start = Instant::now();
        let (status, output, errors) = self.end(END_TIMEOUT);
        say(&format!(
            "interrupted {when} ({by:?}): over {:.1?} later",
            start.elapsed()
        ));
        assert!(
            status.code().is_some_and(|code| code > 0),
            "{when}: {status}"
        );
        assert!(!output.contains("All of it"), "{when}: {output}");
        assert!(errors.contains("interrupted"), "{when}: {errors}");
        assert_eq!(self.left(), [] as [PathBuf; 0], "{when}: left behind");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_none()) {
            self.interrupt(By::Kill);
            let _ = self.child.wait();
        }
    }
}

/// The output about each connection.
pub(super) fn parts(output: &str) -> impl Iterator<Item = &str> {
    output.split("The same over ")
}

/// The value of a check that holds.
pub(super) fn value<'o>(output: &'o str, check: &str) -> &'o str {
    let of_check = |line: &'o str| {
        let rest = line.trim_start().strip_prefix("ok")?;
        rest.trim_start().strip_prefix(check).map(str::trim)
    };
    let found = output.lines().find_map(of_check);
    found.unwrap_or_else(|| panic!("{check} does not hold:\n{output}"))
}

#[test]
fn the_demo_shows_one_connection_answered_by_all_backends() {
    let Some(_turn) = turn() else { return };
    let mut demo = Demo::start("2");
    let (status, output, errors) = demo.end(DEMO_TIMEOUT);
    assert!(status.success(), "{status}\n{output}\n{errors}");
    assert!(
        !output.contains("FAIL") && !output.contains("WRONG"),
        "{output}"
    );
    assert_eq!(parts(&output).count(), 3, "{output}");
    for (part, is_v6) in parts(&output).zip([false, true, true]) {
        check_part(part, is_v6);
    }
    assert_eq!(demo.left(), [] as [PathBuf; 0], "left behind");
}

fn check_part(output: &str, is_v6: bool) {
    check_connection(output, is_v6);
    let shares = value(output, "answered by");
    for backend in ["be0", "be1", "be2"] {
        assert!(shares.contains(backend), "{shares}");
    }
}

pub(super) fn check_connection(output: &str, is_v6: bool) {
    for check in CHECKS {
        assert_ne!(value(output, check), "", "{check}");
    }
    let connections = value(output, "client connections");
    assert!(connections.starts_with("1, "), "{connections}");
    let compared = value(output, "answers compared");
    let counts: Vec<usize> = compared.split(' ').filter_map(|w| w.parse().ok()).collect();
    // Twelve found files and three made ones, twice.
    assert_eq!(counts, [30, 30], "{compared}");
    let shares = value(output, "answered by");
    assert!(!shares.contains("fe0") && !shares.contains('+'), "{shares}");
    assert_eq!(value(output, "resets at client"), "0");
    let service: IpAddr = value(output, "client talked to").parse().unwrap();
    assert_eq!(service.is_ipv6(), is_v6, "{output}");
    say(value(output, "time of hand-off"));
}

#[test]
fn an_interrupted_demo_removes_its_lab() {
    let Some(_turn) = turn() else { return };
    let moments = [
        ("while aws-cli stores", "1. the lab is up"),
        ("while curl fetches", "2. aws-cli has stored"),
    ];
    let moments_of_upstream = [
        ("while curl fetches from servers", "2. beside each backend"),
        ("while a server is away", "6. the server"),
    ];
    for by in [By::Kill, By::Keyboard] {
        for (when, line) in moments_of_upstream {
            let mut demo = Demo::start_with("2", &["--upstream"]);
            demo.read_until(line);
            demo.ends_interrupted(when, by);
        }
        for (when, line) in moments {
            let mut demo = Demo::start("100");
            demo.read_until(line);
            std::thread::sleep(Duration::from_millis(200));
            demo.ends_interrupted(when, by);
        }
        let demo = Demo::start("100");
        let start = Instant::now();
        while demo.left().is_empty() && start.elapsed() < END_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
        demo.ends_interrupted("while the lab comes up", by);
    }
}
