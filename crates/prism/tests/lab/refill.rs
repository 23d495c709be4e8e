//! Backends that were away, that are new, and that leave, in clusters whose state is in etcd.
//! Each receives exactly its objects while clients read and write. Then the stores are
//! compared.
//!
//! `PRISM_REFILL_ROUNDS=<n>` repeats the kills of backends, and the judged histories of reads
//! and writes, n times.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_config::ConfigFile;
use prism_history::{Action, OPERATIONS_MAX, Operation, is_linearizable};
use prism_store::{Body, PageRequest, Scope, Store};
use serde_json::Value;

use crate::replicas;
use crate::support::client::Request;
use crate::support::{BUCKET, Cluster, eventually, say, turn};

/// The longest time until a cluster has moved everything to its place.
pub(crate) const SETTLED: Duration = Duration::from_secs(40);
/// Keys written while a backend is away.
const KEYS: usize = 240;

pub(crate) fn up(backends: usize, members: usize, replicas: u16) -> Cluster {
    Cluster::up_with(backends, |spec| {
        spec.etcd = true;
        spec.members = Some(members);
        spec.configure = Some(Box::new(move |config| {
            config.cluster.replicas = replicas;
        }));
    })
}

pub(crate) fn seen_by(cluster: &Cluster, host: &str) -> Value {
    cluster.lab.ask(host, "cluster").unwrap()
}

fn backend<'a>(seen: &'a Value, name: &str) -> &'a Value {
    let backends = seen["backends"].as_array().unwrap();
    let found = backends.iter().find(|b| b["name"] == name);
    found.unwrap_or(&Value::Null)
}

pub(crate) fn status_of(cluster: &Cluster, name: &str) -> String {
    let seen = seen_by(cluster, "fe0");
    backend(&seen, name)["status"]
        .as_str()
        .unwrap_or("")
        .to_owned()
}

pub(crate) fn fetched_by(cluster: &Cluster, name: &str) -> u64 {
    let seen = seen_by(cluster, "fe0");
    let progress = &backend(&seen, name)["catching_up"];
    progress["fetched"].as_u64().unwrap_or(0)
}

/// Waits until all backends have removed the keys that others have now. A backend that could not
/// ask the others tries again after a second.
fn trimmed(cluster: &Cluster) {
    let removed = || {
        let seen = seen_by(cluster, "fe0");
        let progress = |name: &String| backend(&seen, name)["catching_up"]["trimmed"].clone();
        cluster.backends().iter().map(progress).collect::<Vec<_>>()
    };
    let mut last = (removed(), Instant::now());
    eventually("no more keys are removed", SETTLED, || {
        let now = removed();
        if now != last.0 {
            last = (now, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(1500)
    });
}

pub(crate) fn ctl(cluster: &Cluster, arguments: &[&str]) -> String {
    let prism = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command("fe0", prism).unwrap();
    command.arg("ctl").args(arguments).arg("--config");
    command.arg(cluster.lab.config_path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ctl {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// The body that an operation wrote, or nothing.
fn data_of(key: &str, version: u64) -> Vec<u8> {
    let filling = [0, 300, 40_000][usize::try_from(version % 3).unwrap()];
    format!("{key} {version} {}", "x".repeat(filling)).into_bytes()
}

/// The status. A broken connection to its backend counts as 503.
fn put(cluster: &Cluster, key: &str, data: &[u8]) -> u16 {
    replicas::put(cluster, key, data).map_or(503, |(status, _)| status)
}

fn call(cluster: &Cluster, method: &str, target: &str) -> (u16, Vec<u8>) {
    replicas::call(cluster, method, target).unwrap_or((503, Vec::new()))
}

/// Repeats it until it is done, as the cluster may be changing.
pub(crate) fn surely(what: &str, mut attempt: impl FnMut() -> u16, wanted: u16) {
    let begun = Instant::now();
    loop {
        match attempt() {
            status if status == wanted => return,
            503 if begun.elapsed() < SETTLED => std::thread::sleep(Duration::from_millis(20)),
            status => panic!("{what}: {status}"),
        }
    }
}

/// Keys and their contents; none for deleted ones.
type Content = BTreeMap<String, Option<u64>>;

/// Overwrites, deletes and adds.
fn change(cluster: &Cluster, content: &mut Content, version: u64, keys: usize) {
    for n in 0..keys {
        let key = format!("k{n:03}");
        let state = match n % 4 {
            0 if content.contains_key(&key) => None,
            _ => Some(version + n as u64),
        };
        match state {
            Some(version) => {
                let data = data_of(&key, version);
                surely(&key, || put(cluster, &key, &data), 200);
            }
            None => {
                let target = format!("/{key}");
                surely(&key, || call(cluster, "DELETE", &target).0, 204);
            }
        }
        content.insert(key, state);
    }
}

/// An upload of two parts, completed or not.
fn upload(cluster: &Cluster, key: &str, complete: bool) {
    let (status, text) = call(cluster, "POST", &format!("/{key}?uploads"));
    assert_eq!(status, 200);
    let text = String::from_utf8(text).unwrap();
    let id = text.split("<UploadId>").nth(1).unwrap();
    let id = id.split('<').next().unwrap();
    let mut parts = String::new();
    for number in [1, 2] {
        let data = vec![b'a' + number; [0, 5 << 20, 1000][usize::from(number)]];
        let target = format!("/{key}?partNumber={number}&uploadId={id}");
        let put = Request::new("PUT", &target)
            .signing(&data)
            .header("Content-Length", data.len().to_string());
        let answer = cluster
            .connect()
            .call(&[&put.encode(cluster), &data[..]].concat());
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let etag = answer.header("etag");
        parts += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
    }
    if complete {
        let body = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        let request = Request::new("POST", &format!("/{key}?uploadId={id}"))
            .signing(body.as_bytes())
            .header("Content-Length", body.len().to_string());
        let request = [&request.encode(cluster), body.as_bytes()].concat();
        assert_eq!(cluster.connect().call(&request).status(), 200);
    }
}

fn assert_content(cluster: &Cluster, content: &Content) {
    for (key, state) in content {
        let (status, data) = call(cluster, "GET", &format!("/{key}"));
        match state {
            Some(version) => {
                assert_eq!(status, 200, "{key}");
                assert!(data == data_of(key, *version), "{key}");
            }
            None => assert_eq!(status, 404, "{key}"),
        }
    }
}

/// A digest of all bytes, and their number.
pub(crate) fn digest(body: &Body) -> (u64, u64) {
    let mut hash = DefaultHasher::new();
    let files = match body {
        Body::Inline(bytes) => {
            hash.write(bytes);
            return (hash.finish(), bytes.len() as u64);
        }
        Body::File(file) => vec![file.clone()],
        Body::Parts(parts) => (0..parts.count()).map(|n| parts.open(n).unwrap()).collect(),
    };
    let mut len = 0;
    for file in files {
        file.check_all(0, file.len()).unwrap();
        let mut data = vec![0; usize::try_from(file.len()).unwrap()];
        file.file().read_exact_at(&mut data, 0).unwrap();
        hash.write(&data);
        len += file.len();
    }
    (hash.finish(), len)
}

/// Stops the cluster and compares its backends' stores: everything is on `replicas` of them, as
/// it was written. Returns the number of things of each.
pub(crate) fn compare(mut cluster: Cluster, replicas: usize) -> BTreeMap<String, usize> {
    eventually("nothing is open", SETTLED, || {
        let backends = cluster.backends();
        let open = |host: &String| cluster.counter(host, "store", "open_changes");
        backends.iter().all(|host| open(host) == 0)
    });
    trimmed(&cluster);
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let mut found: BTreeMap<Scope, Vec<String>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for host in cluster.backends() {
        cluster.lab.stop(&host).unwrap();
        // Later backends are in no file but their own.
        let path = config.node("be0").unwrap().store.with_file_name(&host);
        let store = Store::open(path, prism_store::Config::default()).unwrap();
        assert_eq!(store.recovery().orphans_removed, 0, "{host}");
        assert_eq!(store.recovery().dangling, 0, "{host}");
        let names: Vec<_> = store
            .buckets()
            .list()
            .unwrap()
            .into_iter()
            .map(|b| b.name)
            .collect();
        assert_eq!(names, [BUCKET], "{host}");
        for uploads in [false, true] {
            let mut after = None;
            loop {
                let request = PageRequest {
                    bucket: BUCKET,
                    uploads,
                    after: after.as_ref(),
                };
                let page = store.catch_up().page(request, |_| true).unwrap();
                for (scope, _) in page.items {
                    let (handed, body) = store.catch_up().hand_over(&scope, None).unwrap().unwrap();
                    let mut line = format!("{handed:?} {:?}", body.as_ref().map(digest));
                    for version in handed.versions.iter().flatten() {
                        // A delete marker has no body to compare.
                        if version.marker_ms.is_none() {
                            let found = store.catch_up().hand_over(&scope, Some(version.at));
                            let (handed, body) = found.unwrap().unwrap();
                            line += &format!("\n{handed:?} {:?}", body.as_ref().map(digest));
                        }
                    }
                    found.entry(scope).or_default().push(line);
                    *counts.entry(host.clone()).or_default() += 1;
                }
                match page.end {
                    Some(end) => after = Some(end),
                    None => break,
                }
            }
        }
    }
    for (scope, lines) in &found {
        assert_eq!(lines.len(), replicas, "{scope:?}: {lines:#?}");
        assert!(
            lines.iter().all(|line| *line == lines[0]),
            "{scope:?}: {lines:#?}"
        );
    }
    counts
}

#[test]
fn a_backend_that_was_away_gets_what_it_missed_while_writes_go_on() {
    let Some(_turn) = turn() else { return };
    for replicas in [2, 3] {
        let mut cluster = up(3, 3, replicas);
        let mut content = Content::new();
        change(&cluster, &mut content, 1, KEYS / 2);
        upload(&cluster, "parts-before", true);
        cluster.lab.kill("be1").unwrap();
        surely(
            "be1 is gone on without",
            || put(&cluster, "first", b"x"),
            200,
        );
        change(&cluster, &mut content, 1000, KEYS);
        upload(&cluster, "parts-meanwhile", true);
        upload(&cluster, "parts-open", false);
        assert_content(&cluster, &content);

        cluster.lab.restart("be1").unwrap();
        let begun = Instant::now();
        let mut version = 10_000;
        while status_of(&cluster, "be1") != "in-sync" {
            assert!(begun.elapsed() < SETTLED, "{:#}", seen_by(&cluster, "be1"));
            change(&cluster, &mut content, version, 20);
            version += 1000;
        }
        let (took, fetched) = (begun.elapsed(), fetched_by(&cluster, "be1"));
        say(&format!(
            "{replicas} replicas: back after {took:?}, {fetched} things fetched"
        ));
        assert!(fetched > 50, "{fetched}");
        let seen = seen_by(&cluster, "fe0");
        let progress = &backend(&seen, "be1")["catching_up"];
        let (parts, done) = (progress["parts"].as_u64(), progress["parts_done"].as_u64());
        assert!(parts > Some(0) && done == parts, "{progress:#}");
        for _ in 0..2 {
            assert_content(&cluster, &content);
        }
        compare(cluster, replicas.into());
    }
}

/// Reads and writes keys until told to stop. Every answered write stays.
fn work(cluster: &Cluster, stop: &AtomicBool, first: usize, operations: &AtomicU64) {
    let (mut content, mut version) = (Content::new(), 1);
    while !stop.load(Ordering::Relaxed) {
        for n in first..first + 10 {
            let key = format!("w{n:02}");
            if let Some(Some(written)) = content.get(&key) {
                let mut data = Vec::new();
                let read = || {
                    let (status, found) = call(cluster, "GET", &format!("/{key}"));
                    data = found;
                    status
                };
                surely(&key, read, 200);
                assert!(data == data_of(&key, *written), "{key} is not {written}");
            }
            let data = data_of(&key, version);
            surely(&key, || put(cluster, &key, &data), 200);
            content.insert(key, Some(version));
            version += 1;
            operations.fetch_add(2, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_backend_is_added_and_another_drained_under_load_and_only_their_share_moves() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up(4, 3, 2);
    let mut content = Content::new();
    change(&cluster, &mut content, 1, KEYS);
    upload(&cluster, "parts", true);
    upload(&cluster, "parts-open", false);
    cluster.lab.restart("be3").unwrap();
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut moved = Vec::new();
    std::thread::scope(|scope| {
        for first in [0, 50] {
            let (cluster, stop, operations) = (&cluster, &stop, &operations);
            scope.spawn(move || work(cluster, stop, first, operations));
        }
        let cluster = &cluster;
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut before: Vec<u64> = vec![0; 4];
            for step in [&["rebalance", "--wait"][..], &["drain", "be0", "--wait"]] {
                let begun = Instant::now();
                ctl(cluster, step);
                assert_content(cluster, &content);
                let now: Vec<u64> = (0..4)
                    .map(|n| fetched_by(cluster, &format!("be{n}")))
                    .collect();
                let by: Vec<u64> = now
                    .iter()
                    .zip(&before)
                    .map(|(n, b)| n.saturating_sub(*b))
                    .collect();
                say(&format!(
                    "{step:?}: {:?}, fetched by each: {by:?}",
                    begun.elapsed()
                ));
                moved.push(by);
                before = now;
            }
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap();
    });
    say(&format!(
        "{} operations meanwhile",
        operations.load(Ordering::Relaxed)
    ));
    // With two replicas on three backends, the fourth backend takes half, and no other takes
    // any.
    let all = content.values().flatten().count() as u64 + 20;
    assert_eq!(moved[0][..3], [0, 0, 0]);
    assert!((all / 3..all).contains(&moved[0][3]), "{moved:?} of {all}");
    // Another backend leaves, and its half is shared.
    assert!(
        moved[1][0] == 0 && moved[1][1..].iter().sum::<u64>() < all,
        "{moved:?} of {all}"
    );
    eventually("be0 has thrown all away", SETTLED, || {
        cluster.counter("be0", "store", "bytes_used") == 0
    });
    let counts = compare(cluster, 2);
    assert!(!counts.contains_key("be0"), "{counts:?}");
    say(&format!("held in the end: {counts:?}"));
}

/// The clients' operations on a few keys.
struct Seen {
    begun: Instant,
    by_key: Vec<Mutex<Vec<Operation>>>,
    next: AtomicU64,
}

impl Seen {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    fn operate(&self, cluster: &Cluster, rng: &mut fastrand::Rng) {
        let number = rng.usize(..self.by_key.len());
        // The most operations that the judge takes.
        if self.by_key[number].lock().unwrap().len() >= OPERATIONS_MAX - 4 {
            return std::thread::sleep(Duration::from_millis(5));
        }
        let (key, called) = (format!("h{number}"), self.now());
        let (action, answered) = match rng.u8(..10) {
            0..4 => {
                let value = self.next.fetch_add(1, Ordering::Relaxed);
                let status = put(cluster, &key, &data_of(&key, value));
                (Action::Write(Some(value)), status == 200)
            }
            4 => {
                let (status, _) = call(cluster, "DELETE", &format!("/{key}"));
                (Action::Write(None), status == 204)
            }
            _ => match call(cluster, "GET", &format!("/{key}")) {
                (200, data) => {
                    let text = String::from_utf8(data).unwrap();
                    let value = text.split(' ').nth(1).unwrap().parse().unwrap();
                    (Action::Read(Some(value)), true)
                }
                (404, _) => (Action::Read(None), true),
                _ => return,
            },
        };
        let answered = answered.then(|| self.now());
        std::thread::sleep(Duration::from_millis(rng.u64(1..30)));
        self.by_key[number].lock().unwrap().push(Operation {
            called,
            answered,
            action,
        });
    }
}

#[test]
fn what_clients_see_could_have_happened_in_order_whoever_goes_and_comes_back() {
    let Some(_turn) = turn() else { return };
    let rounds = std::env::var("PRISM_REFILL_ROUNDS").map_or(1, |n| n.parse().unwrap());
    let mut cluster = up(3, 3, 3);
    let mut rng = fastrand::Rng::new();
    for round in 0..rounds {
        let host = format!("be{}", rng.usize(..3));
        let seen = Seen {
            begun: Instant::now(),
            by_key: (0..8).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(1),
        };
        let stop = AtomicBool::new(false);
        let pid = cluster.lab.pid(&host).unwrap().to_string();
        {
            let cluster = &cluster;
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    let (mut rng, seen, stop) = (rng.fork(), &seen, &stop);
                    scope.spawn(move || {
                        while !stop.load(Ordering::Relaxed) {
                            seen.operate(cluster, &mut rng);
                        }
                    });
                }
                std::thread::sleep(Duration::from_millis(600));
                let killed = std::process::Command::new("kill")
                    .args(["-KILL", &pid])
                    .status();
                assert!(killed.unwrap().success());
                std::thread::sleep(Duration::from_secs(8));
                stop.store(true, Ordering::Relaxed);
            });
        }
        let _ = cluster.lab.kill(&host);
        cluster.lab.restart(&host).unwrap();
        while status_of(&cluster, &host) != "in-sync" {
            assert!(
                seen.begun.elapsed() < SETTLED,
                "{:#}",
                seen_by(&cluster, &host)
            );
            seen.operate(&cluster, &mut rng);
        }
        for _ in 0..40 {
            seen.operate(&cluster, &mut rng);
        }
        let mut answered = 0;
        for (number, history) in seen.by_key.iter().enumerate() {
            let history = history.lock().unwrap();
            answered += history.iter().filter(|op| op.answered.is_some()).count();
            let verdict = is_linearizable(None, &history);
            assert_eq!(
                verdict,
                Some(true),
                "round {round}, h{number}: {history:#?}"
            );
        }
        say(&format!(
            "round {round}: {host} away, {answered} operations answered"
        ));
        assert!(answered > 100);
        for number in 0..8 {
            let target = format!("/h{number}");
            surely(&target, || call(&cluster, "DELETE", &target).0, 204);
        }
    }
    compare(cluster, 3);
}
