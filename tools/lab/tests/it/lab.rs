//! Labs on the real kernel. Needs root; without it each test says so and
//! passes, except under CI, where it fails.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::turn;
use prism_lab::{Families, Lab, LabError, LabName, LabSpec, ProcessId, Programs};

/// Reads what a connection sends (`up`), or sends what it asks for (`down`).
const TRANSFER_SERVER: &str = r#"
import socket
server = socket.create_server(("0.0.0.0", 8000))
data = b"x" * (1 << 20)
while True:
    peer, _ = server.accept()
    with peer:
        way, _, size = peer.recv(64).decode().partition(" ")
        if way == "up":
            while peer.recv(1 << 20): pass
        else:
            for _ in range(int(size) >> 20): peer.sendall(data)
"#;
/// Moves some MiB one way and prints the goodput in bits per second.
const TRANSFER_CLIENT: &str = r#"
import socket, sys, time
host, way, size = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20
data = b"x" * (1 << 20)
peer = socket.create_connection((host, 8000), timeout=20)
peer.sendall(f"{way} {size}".encode())
if way == "up":
    time.sleep(0.1)
    start, moved = time.monotonic(), size
    for _ in range(size >> 20): peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
else:
    peer.recv(1)
    start, moved = time.monotonic(), 0
    while part := peer.recv(1 << 20): moved += len(part)
print(moved * 8 / (time.monotonic() - start))
"#;

pub(crate) fn new_name() -> LabName {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("t{}-{number}", std::process::id()).parse().unwrap()
}

fn line(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// A lab with one host of each kind, and `programs` on them.
pub(crate) fn small(name: &LabName, programs: &[(&str, Vec<String>)]) -> LabSpec {
    let programs: BTreeMap<_, _> = programs
        .iter()
        .map(|(host, line)| ((*host).to_owned(), line.clone()))
        .collect();
    let mut spec = LabSpec::with_programs(name.clone(), Programs::Custom(programs));
    spec.backends = 1;
    spec
}

/// Sleeps, with a command line that no other lab's process has.
fn sleeper(name: &LabName) -> Vec<String> {
    let script = "import time; time.sleep(600)";
    line(&["python3", "-c", script, name.as_str()])
}

fn http_server() -> Vec<String> {
    line(&[
        "python3",
        "-m",
        "http.server",
        "80",
        "--bind",
        // IPv4 too.
        "::",
        "--directory",
        "/var/empty",
    ])
}

pub(crate) fn ping(lab: &Lab, from: &str, to: &str) -> bool {
    let mut ping = lab.command(from, "ping").unwrap();
    ping.args(["-c1", "-W2", to])
        .stdout(Stdio::null())
        .status()
        .unwrap()
        .success()
}

fn mentions(program: &str, arguments: &[&str], text: &str) -> bool {
    let output = Command::new(program).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains(text)
}

/// Checks that nothing on this machine has the lab's name, and that no process of it runs.
fn assert_gone(name: &LabName, processes: &[u32]) {
    assert!(
        !mentions("ip", &["netns"], &format!("prism-{name}-")),
        "a namespace is left"
    );
    assert!(
        !mentions("ip", &["link"], name.as_str()),
        "an interface is left"
    );
    for directory in [
        "/run/prism-lab/",
        "/sys/fs/bpf/prism-lab-",
        "/dev/shm/prism-lab-",
    ] {
        let path = format!("{directory}{name}");
        assert!(!Path::new(&path).exists(), "{path} is left");
    }
    for hierarchy in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        assert!(
            !hierarchy.path().join(format!("prism-lab-{name}")).exists(),
            "a cgroup is left"
        );
    }
    for pid in processes {
        assert!(ProcessId::of(*pid).is_none(), "process {pid} is left");
    }
}

#[test]
fn the_service_is_answered_and_programs_get_the_credentials() {
    let Some(_turn) = turn() else { return };
    let mut spec = small(&new_name(), &[("fe0", http_server())]);
    spec.family = Families::Dual;
    let lab = Lab::up(spec).unwrap();
    assert_eq!(lab.endpoints().next(), Some(lab.endpoint()));
    let script = "for url in $AWS_ENDPOINT_URL $PRISM_ENDPOINT_V4 $PRISM_ENDPOINT_V6; do \
                  curl -s -o /dev/null --retry 9 --retry-connrefused --retry-delay 1 \
                  -w '%{http_code}-%{remote_ip} ' $url/none; done; \
                  echo $AWS_ACCESS_KEY_ID $AWS_DEFAULT_REGION";
    let output = lab
        .command("client", "sh")
        .unwrap()
        .args(["-c", script])
        .output()
        .unwrap();
    let [v4, v6] = [lab.services().next(), lab.services().nth(1)].map(|a| a.unwrap().ip());
    assert!(v4.is_ipv4() && v6.is_ipv6());
    let key = &lab.credential().access_key;
    let expected = format!("404-{v4} 404-{v4} 404-{v6} {key} us-east-1\n");
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    let status = lab.status();
    let client = status
        .hosts
        .iter()
        .find(|host| host.name == "client")
        .unwrap();
    assert!(client.bytes.unwrap().rx > 100 && client.bytes.unwrap().tx > 100);
    assert!(matches!(
        lab.command("be7", "true"),
        Err(LabError::UnknownHost { .. })
    ));
    lab.down().unwrap();
}

#[test]
fn two_labs_stand_side_by_side() {
    let Some(_turn) = turn() else { return };
    let (one, two) = (new_name(), new_name());
    let first = Lab::up(small(&one, &[("fe0", http_server())])).unwrap();
    let second = Lab::up(small(&two, &[("fe0", http_server())])).unwrap();
    assert_ne!(first.service(), second.service());
    assert!(matches!(
        Lab::up(small(&one, &[])),
        Err(LabError::Exists { .. })
    ));
    let pid = second.pid("fe0").unwrap();
    first.down().unwrap();
    assert_eq!(
        second.pid("fe0"),
        Some(pid),
        "one lab's end touched the other"
    );
    assert!(ping(
        &second,
        "client",
        &second.address("be0").unwrap().to_string()
    ));
    drop(second);
    assert_gone(&one, &[]);
    assert_gone(&two, &[pid]);
}

#[test]
fn a_program_can_be_killed_and_restarted() {
    let Some(_turn) = turn() else { return };
    let mut lab = Lab::up(small(&new_name(), &[("be0", line(&["sleep", "600"]))])).unwrap();
    let first = lab.pid("be0").unwrap();
    lab.kill("be0").unwrap();
    assert_eq!(lab.pid("be0"), None);
    lab.restart("be0").unwrap();
    let second = lab.pid("be0").unwrap();
    assert_ne!(first, second);
    let mut attached = Lab::attach(lab.name()).unwrap();
    attached.restart("be0").unwrap();
    assert_eq!(lab.pid("be0"), attached.pid("be0"), "handles disagree");
    assert_ne!(lab.pid("be0"), Some(second));
    assert!(matches!(lab.kill("fe0"), Err(LabError::NoProcess { .. })));
    lab.down().unwrap();
}

#[test]
fn a_program_that_ends_fails_the_start_and_nothing_is_left() {
    let Some(_turn) = turn() else { return };
    let name = new_name();
    let failing = line(&["sh", "-c", "echo cannot find my hat; exit 3"]);
    let spec = small(&name, &[("be0", failing), ("fe0", line(&["sleep", "600"]))]);
    let error = Lab::up(spec).unwrap_err();
    assert!(
        matches!(&error, LabError::Unhealthy { host, .. } if host == "be0"),
        "{error}"
    );
    assert!(
        error.to_string().contains("my hat"),
        "the log is not quoted: {error}"
    );
    assert_gone(&name, &[]);
}

#[test]
fn an_interrupted_start_leaves_nothing() {
    let Some(_turn) = turn() else { return };
    let name = new_name();
    let spec = small(&name, &[("be0", line(&["sleep", "600"]))]);
    spec.cancel.store(true, Ordering::Relaxed);
    assert!(matches!(Lab::up(spec), Err(LabError::Cancelled)));
    assert_gone(&name, &[]);
}

/// Run by `a_killed_owner_leaves_nothing_after_the_next_sweep` as a program.
#[test]
#[ignore = "a part of another test, which runs it"]
fn helper_holds_a_lab() {
    let Some(name) = std::env::var_os("PRISM_LAB_TEST_NAME") else {
        return;
    };
    let name: LabName = name.to_str().unwrap().parse().unwrap();
    let lab = Lab::up(small(&name, &[("be0", sleeper(&name))])).unwrap();
    println!("pid={}", lab.pid("be0").unwrap());
    std::thread::sleep(Duration::from_secs(60));
}

/// A process that holds a lab, and the number of the lab's process.
fn spawn_holder(name: &LabName) -> (std::process::Child, u32) {
    use std::io::BufRead;
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "lab::helper_holds_a_lab",
            "--ignored",
            "--nocapture",
        ])
        .env("PRISM_LAB_TEST_NAME", name.as_str())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = std::io::BufReader::new(holder.stdout.take().unwrap());
    let pid = output
        .lines()
        .find_map(|line| line.unwrap().split_once("pid=")?.1.parse().ok());
    (holder, pid.unwrap())
}

#[test]
fn a_killed_owner_leaves_nothing_after_the_next_sweep() {
    let Some(_turn) = turn() else { return };
    let (by_down, by_up, by_other) = (new_name(), new_name(), new_name());
    let (mut holders, pids): (Vec<_>, Vec<_>) = [&by_down, &by_up, &by_other]
        .into_iter()
        .map(spawn_holder)
        .unzip();
    for holder in &mut holders {
        holder.kill().unwrap();
        holder.wait().unwrap();
    }
    let run = |pid: &u32| ProcessId::of(*pid).is_some();
    assert!(pids.iter().all(run), "labs outlive their owners");
    // The sweep does not need the lab's state.
    std::fs::remove_dir_all(format!("/run/prism-lab/{by_down}")).unwrap();
    Lab::remove(&by_down).unwrap();
    assert_gone(&by_down, &pids[..1]);
    // A lab of the same name takes its place, and every start sweeps.
    let lab = Lab::up(small(&by_up, &[])).unwrap();
    assert_gone(&by_other, &pids);
    assert!(!ping(&lab, "client", "10.255.255.1"));
    lab.down().unwrap();
    assert_gone(&by_up, &pids);
}

#[test]
fn a_start_that_is_killed_at_any_moment_leaves_nothing() {
    let Some(_turn) = turn() else { return };
    for delay_ms in [2, 5, 10, 20, 30, 40, 60, 80, 100, 130, 160, 200, 300] {
        let name = new_name();
        let mut holder = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "lab::helper_holds_a_lab", "--ignored"])
            .env("PRISM_LAB_TEST_NAME", name.as_str())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        holder.kill().unwrap();
        holder.wait().unwrap();
        Lab::remove(&name).unwrap();
        assert_gone(&name, &[]);
        let found = Command::new("pgrep")
            .args(["-f", &format!("time.sleep.* {name}$")])
            .output();
        let left = String::from_utf8(found.unwrap().stdout).unwrap();
        assert_eq!(left, "", "killed after {delay_ms} ms: a process is left");
    }
}

#[test]
fn a_half_made_namespace_is_removed() {
    let Some(_turn) = turn() else { return };
    let name = new_name();
    std::fs::create_dir_all("/run/netns").unwrap();
    std::fs::write(format!("/run/netns/prism-{name}-be3"), "").unwrap();
    Lab::remove(&name).unwrap();
    assert_gone(&name, &[]);
}

/// The goodput of a link, as a share of its rate. Headers leave 0.95.
const MOST_OF_A_LINK: f64 = 0.85;
const MAX_TRANSFERS: usize = 20;

/// Goodput in bits per second.
fn transfer(lab: &Lab, address: &str, way: &str, mebibytes: u64) -> f64 {
    let mut client = lab.command("client", "python3").unwrap();
    client.args(["-c", TRANSFER_CLIENT, address, way, &mebibytes.to_string()]);
    let output = client.output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .unwrap_or_else(|_| {
            panic!(
                "transfer failed: {}",
                String::from_utf8_lossy(&output.stderr)
            )
        })
}

#[test]
fn links_carry_what_they_are_shaped_to() {
    let Some(_turn) = turn() else { return };
    for rate in ["200mbit", "1gbit"] {
        let server = line(&["python3", "-c", TRANSFER_SERVER]);
        let mut spec = small(&new_name(), &[("be0", server)]);
        spec.link = Some(rate.parse().unwrap());
        let bits_per_s = spec.link.unwrap().bits_per_s() as f64;
        let lab = Lab::up(spec).unwrap();
        let address = lab.address("be0").unwrap().to_string();
        std::thread::sleep(Duration::from_millis(500));
        let mebibytes = (bits_per_s / 8e6 * 0.7) as u64;
        for way in ["up", "down"] {
            // Other work on this machine only slows it, so one good run is enough.
            let mut best = 0.0;
            for _ in 0..MAX_TRANSFERS {
                let share = transfer(&lab, &address, way, mebibytes) / bits_per_s;
                assert!(share <= 1.0, "{rate} {way}: {share:.2} of the rate");
                best = f64::max(best, share);
                if best >= MOST_OF_A_LINK {
                    break;
                }
            }
            println!("{rate} {way}: {best:.2} of the rate");
            assert!(best >= MOST_OF_A_LINK, "{rate} {way}: at best {best:.2}");
        }
        lab.down().unwrap();
    }
}

#[test]
fn a_capture_holds_what_the_host_sent_and_received() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("client.pcap");
    let mut spec = small(&new_name(), &[]);
    spec.family = Families::Dual;
    let lab = Lab::up(spec).unwrap();
    let echo = "icmp or (icmp6 and (ip6[40] = 128 or ip6[40] = 129))";
    let capture = lab.capture("client", &file, echo).unwrap();
    for address in lab.addresses("be0").unwrap().iter() {
        assert!(ping(&lab, "client", &address.to_string()));
    }
    let stats = capture.stop().unwrap();
    assert_eq!((stats.captured, stats.dropped), (4, 0));
    for reply in ["ICMP echo reply", "ICMP6, echo reply"] {
        let arguments = ["-n", "-r", file.to_str().unwrap()];
        assert!(mentions("tcpdump", &arguments, reply), "{reply}");
    }
    assert!(lab.capture("client", &file, "no such filter").is_err());
    lab.down().unwrap();
}

#[test]
fn building_and_removing_is_quick() {
    let Some(_turn) = turn() else { return };
    let name = new_name();
    let mut spec = small(&name, &[]);
    spec.backends = 8;
    spec.link = Some("1gbit".parse().unwrap());
    let start = Instant::now();
    let lab = Lab::up(spec).unwrap();
    let built = start.elapsed();
    lab.down().unwrap();
    println!(
        "10 hosts: built in {built:?}, removed in {:?}",
        start.elapsed() - built
    );
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_gone(&name, &[]);
}
