//! Whether a lab serves: every process runs and answers, every node has heard
//! from the switch, and the service answers a client.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use prism_config::{ConfigFile, Switch};

use crate::error::LabError;
use crate::files::{
    ETCD_PORT, config_path, joining_config_path, log_path, log_tail, nodes_config_path,
    switch_config_path,
};
use crate::interrupt::go_on;
use crate::mode::host_of;
use crate::name::LabName;
use crate::network::has_program;
use crate::plan::{HostKind, HostLink, first, url};
use crate::state::{HealthCondition, State};
use crate::tls::ca_file;
use crate::tool::{in_namespace, run};

/// The pause between two checks of a host that is not yet healthy.
const POLL: Duration = Duration::from_millis(20);
/// The time in which a broken program ends on an idle machine.
const SETTLE: Duration = Duration::from_millis(400);
/// The further time on a busy machine until a program ends or is idle.
const MAX_BUSY: Duration = Duration::from_secs(5);
/// The longest wait for a process's counters.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest answer that is read: 1,000 times the length of the counters.
const MAX_ADMIN_BYTES: u64 = 16 << 20;
/// Lines of a log that an error quotes.
const LOG_LINES: usize = 15;

/// Waits until every host is healthy.
pub(crate) fn wait_all(
    state: &State,
    timeout: Duration,
    cancel: &AtomicBool,
) -> Result<(), LabError> {
    let deadline = Instant::now() + timeout;
    if state.health == HealthCondition::Running {
        settle(state);
    }
    let spawned = |host: &&String| state.processes.contains_key(*host);
    for host in state.programs.keys().filter(spawned) {
        wait(state, host, deadline, cancel, || host_fault(state, host))?;
    }
    if state.health == HealthCondition::Serving {
        let frontend = state
            .plan
            .links
            .iter()
            .find(|link| link.kind == HostKind::Frontend);
        let host = frontend.map_or("client", |link| link.host.as_str());
        wait(state, host, deadline, cancel, || service_fault(state))?;
    }
    Ok(())
}

/// Waits until unknown programs have shown whether they work.
fn settle(state: &State) {
    std::thread::sleep(SETTLE);
    let until = Instant::now() + MAX_BUSY;
    let is_busy = || state.processes.values().any(|process| process.is_busy());
    while is_busy() && Instant::now() < until {
        std::thread::sleep(POLL);
    }
}

/// Waits until `host` is healthy.
pub(crate) fn wait_host(state: &State, host: &str, timeout: Duration) -> Result<(), LabError> {
    let never = AtomicBool::new(false);
    let deadline = Instant::now() + timeout;
    wait(state, host, deadline, &never, || host_fault(state, host))
}

fn wait(
    state: &State,
    host: &str,
    deadline: Instant,
    cancel: &AtomicBool,
    fault: impl Fn() -> Option<HostFault>,
) -> Result<(), LabError> {
    loop {
        go_on(cancel)?;
        let Some(fault) = fault() else { return Ok(()) };
        if fault.is_final || Instant::now() >= deadline {
            return Err(LabError::Unhealthy {
                host: host.into(),
                fault: fault.what,
                log: log_path(&state.plan.name, host),
                log_tail: log_tail(&state.plan.name, host, LOG_LINES),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// The fault of a host.
struct HostFault {
    what: String,
    /// Waiting does not help.
    is_final: bool,
}

fn host_fault(state: &State, host: &str) -> Option<HostFault> {
    let not_yet = |what: String| {
        Some(HostFault {
            what,
            is_final: false,
        })
    };
    if !is_running(state, host) {
        return Some(HostFault {
            what: "its process has ended".into(),
            is_final: true,
        });
    }
    if state.health == HealthCondition::Running {
        return None;
    }
    if state.plan.switch(host).is_some() || host_of(host) != host {
        return switch_fault(state, host);
    }
    if let Some(link) = state.plan.etcd().find(|link| link.host == host) {
        return etcd_fault(state, link);
    }
    let socket = admin_socket(state, host);
    match ask(&socket, "counters") {
        Err(fault) => not_yet(format!("{}: {fault}", socket.display())),
        Ok(counters) => steering_fault(state, host, &counters).and_then(not_yet),
    }
}

fn is_running(state: &State, host: &str) -> bool {
    let process = state.processes.get(host);
    process.is_some_and(|process| process.is_alive())
}

/// A node relays until it has heard from the switch, and its death would go unnoticed.
fn steering_fault(state: &State, host: &str, counters: &serde_json::Value) -> Option<String> {
    let name = &state.plan.name;
    let config = ConfigFile::load(&config_path(name)).ok()?;
    let config = match config.node(host) {
        Some(_) => config,
        None => ConfigFile::load(&joining_config_path(name)).ok()?,
    };
    let control = config.switch.as_ref()?.control;
    // Nodes with their own way to the switch may not reach it yet.
    if let Ok(nodes) = ConfigFile::load(&nodes_config_path(name))
        && nodes.switch.is_none_or(|switch| switch.control != control)
    {
        return None;
    }
    let workers = match config.node(host)?.workers {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => usize::from(n),
    };
    let gauges = counters.get("handoff");
    let count = |name: &str| {
        let value = gauges.and_then(|gauges| gauges.get(name)?.as_u64());
        value.unwrap_or(0)
    };
    let workers = u64::try_from(workers).unwrap_or(u64::MAX);
    let lacks = |gauge: &&str| count(gauge) < workers;
    // The agent grants leases. The eBPF programs answer commands without it.
    let switches = state.plan.switches.iter().map(|switch| switch.name.clone());
    let mut switches = switches.chain(state.plan.agents());
    let wanted: &[&str] = if switches.any(|switch| is_running(state, &switch)) {
        &["workers_steering", "workers_leased"]
    } else {
        &["workers_steering"]
    };
    let gauge = wanted.iter().copied().find(lacks)?;
    Some(format!("{gauge} is {} of {workers}", count(gauge)))
}

/// The switch's program has to be on every interface before a node uses it.
fn switch_fault(state: &State, host: &str) -> Option<HostFault> {
    let name = &state.plan.name;
    let attached = ConfigFile::load(&switch_config_path(name, host))
        .map_err(|error| error.to_string())
        .and_then(|config| is_attached(name, host, config.switch.as_ref()));
    attached.err().map(|what| HostFault {
        what,
        is_final: false,
    })
}

fn is_attached(name: &LabName, host: &str, switch: Option<&Switch>) -> Result<(), String> {
    let Some(switch) = switch else { return Ok(()) };
    let pins = Path::new("/sys/fs/bpf").join(&switch.pin_dir);
    if !std::fs::read_dir(&pins).is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(format!("it has pinned nothing in {}", pins.display()));
    }
    for interface in &switch.interfaces {
        let has = has_program(name, host_of(host), interface, switch.mode)
            .map_err(|error| error.to_string())?;
        if !has {
            return Err(format!("its program is not attached to {interface}"));
        }
    }
    Ok(())
}

/// Checks that this member of etcd has a leader.
fn etcd_fault(state: &State, member: &HostLink) -> Option<HostFault> {
    let url = url("http", (first(&member.address), ETCD_PORT).into()) + "/health";
    let namespace = state.plan.name.namespace_path(&member.host);
    let mut curl = in_namespace(&namespace, "curl");
    let quietly = ["--silent", "--fail", "--noproxy", "*", "--max-time", "2"];
    let answer = run(curl.args(quietly).args(["--output", "/dev/null"]).arg(url));
    answer.err().map(|error| HostFault {
        what: format!("it is not healthy: {error}"),
        is_final: false,
    })
}

/// Checks the service from the client. Any HTTP answer is good, on each port.
fn service_fault(state: &State) -> Option<HostFault> {
    let http = state.plan.services().map(|address| url("http", address));
    let https = state.https.iter().map(|address| url("https", *address));
    let mut urls = http.chain(https);
    urls.find_map(|url| url_fault(state, &url))
}

fn url_fault(state: &State, url: &str) -> Option<HostFault> {
    let mut curl = in_namespace(&state.plan.name.namespace_path("client"), "curl");
    curl.args([
        "--silent",
        "--noproxy",
        "*",
        "--max-time",
        "2",
        "--output",
        "/dev/null",
    ]);
    if !state.https.is_empty() {
        curl.arg("--cacert").arg(ca_file(&state.plan.name));
    }
    let answer = run(curl.arg(url));
    answer.err().map(|error| HostFault {
        what: format!("no answer from {url} to the client: {error}"),
        is_final: false,
    })
}

/// The Unix socket on which the process of `host` answers commands.
pub(crate) fn admin_socket(state: &State, host: &str) -> std::path::PathBuf {
    state
        .plan
        .name
        .state_dir()
        .join("admin")
        .join(format!("{host}.sock"))
}

/// The answer of the process behind `socket` to `command`.
pub(crate) fn ask(socket: &Path, command: &str) -> Result<serde_json::Value, String> {
    let mut text = Vec::new();
    let answer = UnixStream::connect(socket).and_then(|mut stream| {
        stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
        stream.set_write_timeout(Some(ADMIN_TIMEOUT))?;
        stream.write_all(format!("{command}\n").as_bytes())?;
        stream.shutdown(Shutdown::Write)?;
        stream.take(MAX_ADMIN_BYTES).read_to_end(&mut text)
    });
    answer.map_err(|error| error.to_string())?;
    serde_json::from_slice(&text).map_err(|error| format!("answer is not JSON: {error}"))
}
