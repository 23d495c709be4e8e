//! Thousands of idle connections, while backends go: each answers again.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prism_config::ConfigFile;
use prism_lab::{LabSpec, Mode};
use rustix::process::{Pid, Resource, Signal, getrlimit, kill_process, setrlimit};

use super::PATIENCE;
use super::behind::{Behind, pattern};
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, eventually, output, say, turn};

/// Connections, unless `PRISM_IDLE_CONNECTIONS` says otherwise.
const CONNECTIONS: usize = 10_000;
/// Threads of the client. Each asks on one connection at a time.
const THREADS: usize = 8;
const BODY_BYTES: usize = 200;
const REQUEST: &[u8] = b"GET /bytes?n=200 HTTP/1.1\r\nHost: h\r\n\r\n";

/// Sends a request, and returns the backend whose application has answered.
fn ask(stream: &mut TcpStream, body: &[u8]) -> String {
    stream.write_all(REQUEST).unwrap();
    let mut answer = Vec::with_capacity(1024);
    while !answer.ends_with(body) {
        let mut piece = [0; 1024];
        let read = stream.read(&mut piece).unwrap();
        assert!(read > 0, "the connection has ended");
        answer.extend_from_slice(&piece[..read]);
    }
    let (head, _) = answer.split_at(answer.len() - body.len());
    let head = String::from_utf8_lossy(head);
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    assert!(
        head.ends_with("\r\n\r\n") && !head.contains("Connection: close"),
        "{head}"
    );
    let backend = head
        .lines()
        .find_map(|line| line.strip_prefix("X-Backend: "));
    backend.unwrap().to_owned()
}

/// Asks on each of `connections`, and returns the backends that have answered.
fn ask_all(connections: &mut [TcpStream]) -> Vec<String> {
    let (body, each) = (pattern(BODY_BYTES), connections.len().div_ceil(THREADS));
    let answered = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for some in connections.chunks_mut(each) {
            scope.spawn(|| {
                let by: Vec<String> = some.iter_mut().map(|one| ask(one, &body)).collect();
                answered.lock().unwrap().extend(by);
            });
        }
    });
    answered.into_inner().unwrap()
}

fn open(cluster: &Cluster, count: usize) -> Vec<TcpStream> {
    let services: Vec<_> = cluster.lab.services().collect();
    cluster.in_client(|| {
        let connect = |n: usize| {
            let mut stream = TcpStream::connect(services[n % services.len()]).unwrap();
            stream.set_nodelay(true).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            // At once: connections without a request are bounded for each client.
            ask(&mut stream, &pattern(BODY_BYTES));
            stream
        };
        std::thread::scope(|scope| {
            let some =
                |first| scope.spawn(move || (first..count).step_by(THREADS).map(connect).collect());
            let threads: Vec<_> = (0..THREADS).map(some).collect();
            let opened = threads.into_iter().map(|thread| thread.join().unwrap());
            opened
                .collect::<Vec<Vec<_>>>()
                .into_iter()
                .flatten()
                .collect()
        })
    })
}

/// Bytes in the memory of all nodes that are of no file.
fn memory(cluster: &Cluster) -> u64 {
    let of = |host: &String| {
        let pid = cluster.lab.pid(host).unwrap();
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib: u64 = line
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib << 10
    };
    cluster.nodes().iter().map(of).sum()
}

/// The number of connections, within the limit of open files, which the nodes inherit.
fn count() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let named = std::env::var("PRISM_IDLE_CONNECTIONS");
    let count = named.map_or(CONNECTIONS, |count| count.parse().unwrap());
    let most = limit
        .maximum
        .map_or(count, |max| usize::try_from(max).unwrap() / 2);
    if most < count {
        say(&format!(
            "{most} connections instead of {count}, by the limit of open files"
        ));
    }
    count.min(most)
}

#[test]
fn idle_connections_outlast_a_failed_check_and_a_drain() {
    let Some(_turn) = turn() else { return };
    idle_connections_last(Mode::Switch);
}

#[test]
fn idle_connections_of_host_mode_outlast_a_failed_check_and_a_drain() {
    let Some(_turn) = turn() else { return };
    idle_connections_last(Mode::Host);
}

fn idle_connections_last(mode: Mode) {
    let count = count();
    let health = "[service.upstream.health]\npath = \"/health\"\ninterval_s = 1\n";
    // Every connection is with a backend.
    let up = |spec: &mut LabSpec| {
        let lasts = |config: &mut ConfigFile| {
            (config.limits.idle_timeout_s, config.limits.drain_timeout_s) = (300, 30);
        };
        spec.mode = mode;
        spec.configure_nodes = Some(Box::new(lasts));
    };
    let behind = Behind::up(up, health);
    let cluster = &behind.cluster;
    let watch = Watch::events(cluster, "idle");
    let (before, begun) = (memory(cluster), Instant::now());
    let mut connections = open(cluster, count);
    let opened = begun.elapsed();
    std::thread::sleep(Duration::from_millis(500));
    let bytes = memory(cluster).saturating_sub(before) / count as u64;
    say(&format!(
        "{count} connections in {opened:.1?}, {bytes} bytes each in all nodes"
    ));
    let open_at = |host: &str| cluster.counter(host, "handoff", "connections_open");
    let each = cluster.nodes();
    let each: Vec<_> = each
        .iter()
        .map(|host| format!("{host}: {}", open_at(host)))
        .collect();
    say(&each.join(", "));

    behind.set_bad("be1", true);
    let drained = Instant::now();
    let pid = cluster.lab.pid("be2").unwrap().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    eventually("be2 has ended", Duration::from_secs(35), || {
        cluster.lab.pid("be2").is_none()
    });
    let drained = drained.elapsed();
    eventually("be1 is out", PATIENCE, || {
        let mut curl = cluster.lab.command("be1", "curl").unwrap();
        let metrics = output(curl.args(["--silent", "http://127.0.0.1:9464/metrics"]));
        assert!(metrics.contains("prism_http_requests_total{operation=\"GET\",code=\"200\""));
        metrics.contains("prism_upstream_up{upstream=\"/\",address=\"127.0.0.1:9000\"} 0")
    });
    // Other nodes learn it by its next report.
    std::thread::sleep(Duration::from_secs(2));
    let begun = Instant::now();
    let by = ask_all(&mut connections);
    let answered = begun.elapsed();
    assert_eq!(by.len(), count);
    assert!(
        by.iter().all(|backend| backend == "be0"),
        "another one than be0 has answered"
    );
    say(&format!(
        "drained in {drained:.1?}, all asked again in {answered:.1?}"
    ));
    behind.set_bad("be1", false);
    watch.finish(ClientResets::None);
}
