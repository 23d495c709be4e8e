//! Clients as their users have them, while backends and servers come and go: they notice nothing
//! but what a kill of a server has to cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prism_config::{ConfigFile, RelayUpTo};
use prism_lab::{LabSpec, Mode};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use super::PATIENCE;
use super::behind::Behind;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Stop, eventually, output, say, turn};

/// A drained backend ends its tunnels after this time.
const DRAIN_S: u32 = 4;
/// Events of a stream that curl reads, 50 ms each.
const EVENTS: usize = 40;

/// The document that `clients.mjs` prints: what each client saw.
type Report = BTreeMap<String, Seen>;

#[derive(Debug, Deserialize)]
struct Seen {
    sockets: Vec<Socket>,
    answered: BTreeMap<String, u64>,
    ids: Vec<String>,
    returns: u64,
    failures: Vec<Failure>,
}

#[derive(Debug, Deserialize)]
struct Socket {
    at: String,
    messages: u64,
    /// In ms since 1970; 0 if it lived on.
    ended: u64,
    code: u16,
}

#[derive(Debug, Deserialize)]
struct Failure {
    at: u64,
    kind: String,
    status: u16,
    reason: String,
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// A client of another make that runs beside the test, and is ended with it.
struct Beside(Child);

impl Beside {
    fn start(behind: &Behind, program: &str, arguments: &[&str]) -> Self {
        let mut command = behind.cluster.lab.command("client", program).unwrap();
        if let Some(ca) = behind.cluster.lab.ca_file() {
            command.env("NODE_EXTRA_CA_CERTS", ca);
        }
        command.args(arguments).stdin(Stdio::piped());
        Self(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// All that it prints, after it was asked to end.
    fn finish(mut self) -> String {
        drop(self.0.stdin.take());
        let mut text = String::new();
        let mut stdout = self.0.stdout.take().unwrap();
        stdout.read_to_string(&mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Chromium and node, which have begun.
fn start_clients(behind: &Behind) -> Beside {
    let lab = &behind.cluster.lab;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/upstreams/clients.mjs");
    let (http, https) = (lab.endpoint(), lab.https_endpoints().last().unwrap());
    let script = script.to_str().unwrap();
    let mut clients = Beside::start(behind, "node", &[script, &http, &https]);
    let stdout = clients.0.stdout.as_mut().unwrap();
    let mut line = [0; 6];
    stdout.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"ready\n");
    clients
}

/// curl at the client, by the name of its namespace.
fn curl(namespace: &str, arguments: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "curl", "--silent"]);
    command.args(arguments.split(' '));
    command
}

/// Streams of events by curl until `stop`. Returns the ends of those that were cut, in ms since
/// 1970, and their servers.
fn read_events(namespace: &str, url: &str, stop: &AtomicBool) -> Vec<(u64, String)> {
    let mut cut = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let mut curl = curl(namespace, &format!("--no-buffer {url}/ticks?n={EVENTS}"));
        let read = curl.output().unwrap();
        let text = String::from_utf8_lossy(&read.stdout);
        let ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
        let in_order = ids.zip(1..).take_while(|(id, n)| *id == n.to_string());
        if in_order.count() != EVENTS || !read.status.success() {
            let server = text.lines().find_map(|line| line.strip_prefix("data: "));
            cut.push((now_ms(), server.unwrap_or_default().to_owned()));
        }
    }
    cut
}

/// Requests on connections of their own by curl until `stop`, with identifiers.
fn ask_anew(namespace: &str, url: &str, stop: &AtomicBool) -> u64 {
    let mut count = 0;
    while !stop.load(Ordering::Relaxed) {
        let form = "--show-error --output /dev/null --write-out %{http_code}:%{size_download}";
        let mut curl = curl(namespace, &format!("{form} {url}/bytes?n=100"));
        curl.args(["--header", &format!("X-Id: curl-get-{count}")]);
        assert_eq!(output(&mut curl), "200:100");
        count += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    count
}

/// The times of faults, in ms since 1970.
#[derive(Default)]
struct Times {
    drain_begun: u64,
    drain_ended: u64,
    killed: u64,
}

/// Waits until the server of a backend has got some more requests, or none for a while.
fn wait_for_requests(behind: &Behind, host: &str, gets_some: bool) {
    let what = format!("{host} gets requests: {gets_some}");
    eventually(&what, PATIENCE, || {
        let before = behind.apps.count(host);
        std::thread::sleep(Duration::from_millis(300));
        gets_some == (behind.apps.count(host) > before)
    });
}

/// A backend is out by its health check and is then replaced by a successor, the next one is
/// drained and restarted, and the server of the last one is killed and started.
fn faults(behind: &mut Behind) -> Times {
    let mut times = Times::default();
    behind.set_bad("be1", true);
    wait_for_requests(behind, "be1", false);
    behind.set_bad("be1", false);
    wait_for_requests(behind, "be1", true);
    let lab = &behind.cluster.lab;
    let mut ctl = lab.command("be1", env!("CARGO_BIN_EXE_prism")).unwrap();
    ctl.args(["ctl", "take-over", "be1", "--config"]);
    output(ctl.arg(lab.config_path()));
    times.drain_begun = now_ms();
    let pid = behind.cluster.lab.pid("be2").unwrap().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    eventually("be2 has ended", PATIENCE, || {
        behind.cluster.lab.pid("be2").is_none()
    });
    times.drain_ended = now_ms();
    behind.cluster.lab.restart("be2").unwrap();
    wait_for_requests(behind, "be2", true);
    times.killed = now_ms();
    behind.apps.kill("be0");
    wait_for_requests(behind, "be0", false);
    behind.apps.start("be0");
    wait_for_requests(behind, "be0", true);
    times
}

#[test]
fn unmodified_clients_notice_only_what_a_kill_has_to_cut() {
    let Some(_turn) = turn() else { return };
    clients_notice_only_cuts(Mode::Switch);
}

#[test]
fn unmodified_clients_of_host_mode_notice_only_what_a_kill_has_to_cut() {
    let Some(_turn) = turn() else { return };
    clients_notice_only_cuts(Mode::Host);
}

fn clients_notice_only_cuts(mode: Mode) {
    let health = "[service.upstream.health]\npath = \"/health\"\ninterval_s = 1\n";
    let up = |spec: &mut LabSpec| {
        (spec.mode, spec.tls, spec.relay_up_to) = (mode, true, RelayUpTo::default());
        let drains = |config: &mut ConfigFile| config.limits.drain_timeout_s = DRAIN_S;
        spec.configure_nodes = Some(Box::new(drains));
    };
    let mut behind = Behind::up(up, health);
    let lab = &behind.cluster.lab;
    let (namespace, url) = (format!("prism-{}-client", lab.name()), lab.endpoint());
    let mut watch = Watch::events(&behind.cluster, "faults");
    let clients = start_clients(&behind);
    let short = format!("{url}/bytes?n=1000&ms=5");
    let wrk = Beside::start(&behind, "wrk", &["-t1", "-c6", "-d60", &short]);
    let h2load = Beside::start(&behind, "h2load", &["--h1", "-t1", "-c6", "-D20", &short]);
    let stop = AtomicBool::new(false);
    let (times, cut) = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let streams = [(); 3].map(|()| scope.spawn(|| read_events(&namespace, &url, &stop)));
        let anew = scope.spawn(|| ask_anew(&namespace, &url, &stop));
        std::thread::sleep(Duration::from_secs(1));
        let times = faults(&mut behind);
        stop.store(true, Ordering::Relaxed);
        say(&format!("{} connections of curl", anew.join().unwrap()));
        let cut = streams.map(|stream| stream.join().unwrap()).concat();
        (times, cut)
    });
    let is_meant = |(at, server): &(u64, String)| *at >= times.killed && server == "be0";
    assert!(cut.iter().all(is_meant), "cut: {cut:?}");
    check_wrk(wrk);
    check_h2load(h2load);
    let text = clients.finish();
    let report: Report = serde_json::from_str(&text).unwrap();
    for (client, seen) in &report {
        let Seen {
            answered, returns, ..
        } = seen;
        say(&format!(
            "{client}: {answered:?}, streams continued {returns}"
        ));
        check_seen(seen, &times);
    }
    check_sockets(report.values().flat_map(|seen| &seen.sockets), &times);
    check_counts(&behind, &report);
    watch.servers_killed(times.killed);
    watch.finish(ClientResets::AtItsEnd);
}

fn check_wrk(wrk: Beside) {
    let pid = wrk.0.id().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::INT).unwrap();
    let text = wrk.finish();
    assert!(text.contains("requests in"), "{text}");
    assert!(!text.contains("Socket errors"), "{text}");
    assert!(!text.contains("Non-2xx"), "{text}");
}

fn check_h2load(h2load: Beside) {
    let text = h2load.finish();
    assert!(text.contains(" 0 failed, 0 errored, 0 timeout"), "{text}");
    assert!(text.contains(" 0 3xx, 0 4xx, 0 5xx"), "{text}");
}

/// Nothing fails before the kill. It may then cut a POST that was not answered yet, which nobody
/// may repeat.
fn check_seen(seen: &Seen, times: &Times) {
    for failure in &seen.failures {
        let is_post = ["post", "upload"].contains(&failure.kind.as_str());
        let is_cut = is_post && failure.at >= times.killed && failure.status == 502;
        assert!(is_cut, "{failure:?}: {}", failure.reason);
    }
    assert!(
        seen.answered.values().all(|count| *count > 20),
        "{:?}",
        seen.answered
    );
}

/// A WebSocket ends only with its server, or when its backend's drain time is over.
fn check_sockets<'s>(sockets: impl Iterator<Item = &'s Socket>, times: &Times) {
    let mut ends = BTreeSet::new();
    for socket in sockets {
        if socket.ended == 0 {
            continue;
        }
        assert_eq!(socket.code, 1006, "{socket:?}");
        // One that has just come back from the drained backend has few.
        assert!(socket.messages > 0, "{socket:?}");
        let host = socket.at.as_str();
        ends.insert(host);
        match host {
            "be2" => {
                let drained_for = socket.ended.saturating_sub(times.drain_begun);
                let least = u64::from(DRAIN_S) * 1_000 - 200;
                assert!(
                    drained_for >= least,
                    "{socket:?} ended after {drained_for} ms"
                );
                assert!(socket.ended < times.drain_ended + 200, "{socket:?}");
            }
            "be0" => assert!(socket.ended >= times.killed, "{socket:?}"),
            _ => panic!("{socket:?}"),
        }
    }
    assert_eq!(ends, BTreeSet::from(["be0", "be2"]));
}

/// Each answered request was carried out, and no POST twice.
fn check_counts(behind: &Behind, report: &Report) {
    let counts = behind.counts();
    for id in report.values().flat_map(|seen| &seen.ids) {
        assert!(counts.contains_key(id), "{id} was answered by nobody");
    }
    for (id, count) in &counts {
        assert!(*count == 1 || id.contains("-get-"), "{id}: {count} times");
    }
}
