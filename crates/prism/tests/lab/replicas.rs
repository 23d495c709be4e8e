//! Clusters with several replicas of each object. Clients see no difference while all is well.
//! Reads go on while a backend is down; writes are then refused and change nothing. After kills
//! at any moment, the operations on each key could have happened one after the other, and the
//! replicas end up the same.
//!
//! `PRISM_REPLICA_KILLS=<n>` kills that many backends instead of a few.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::refill::digest;
use crate::support::client::{Client, Request};
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, eventually, python, say, turn};
use prism_config::ConfigFile;
use prism_history::{Action, OPERATIONS_MAX, Operation, is_linearizable};
use prism_http::{BodyReader, Limits, Method, ResponseHead};
use prism_store::{Position, Step, Store};

/// The longest time until replicas know the outcome of open changes.
const SETTLED: Duration = Duration::from_secs(15);

pub(crate) fn attempt(cluster: &Cluster, head: &[u8], body: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let (head, data) = attempt_whole(cluster, head, body)?;
    Ok((head.status(), data))
}

/// A request over a connection of its own, which may break.
pub(crate) fn attempt_whole(
    cluster: &Cluster,
    head: &[u8],
    body: &[u8],
) -> io::Result<(ResponseHead, Vec<u8>)> {
    attempt_over(&cluster.connect(), head, body)
}

/// The same over `client`.
pub(crate) fn attempt_over(
    client: &Client,
    head: &[u8],
    body: &[u8],
) -> io::Result<(ResponseHead, Vec<u8>)> {
    let mut stream = client.stream();
    stream.set_read_timeout(Some(Duration::from_secs(8)))?;
    stream.write_all(&[head, body].concat())?;
    let mut bytes = Vec::new();
    let (head, len) = loop {
        if let Some(read) = ResponseHead::parse(&bytes, &Limits::DEFAULT).unwrap() {
            break read;
        }
        more(&mut stream, &mut bytes)?;
    };
    let method = match head.status() {
        204 => Method::DELETE,
        _ => Method::GET,
    };
    let mut reader = BodyReader::new(head.framing(&method).unwrap(), u64::MAX);
    let (mut at, mut data) = (len, Vec::new());
    while !reader.is_done() {
        if at == bytes.len() {
            more(&mut stream, &mut bytes)?;
        }
        let step = reader.consume(&bytes[at..]).map_err(io::Error::other)?;
        data.extend_from_slice(&bytes[at..][step.data]);
        at += step.consumed;
    }
    Ok((head, data))
}

fn more(stream: &mut impl Read, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 16 << 10];
    match stream.read(&mut buffer)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        n => {
            bytes.extend_from_slice(&buffer[..n]);
            Ok(())
        }
    }
}

pub(crate) fn put(cluster: &Cluster, key: &str, data: &[u8]) -> io::Result<(u16, Vec<u8>)> {
    let put = Request::new("PUT", &format!("/{key}"))
        .signing(data)
        .header("Content-Length", data.len().to_string());
    attempt(cluster, &put.encode(cluster), data)
}

pub(crate) fn call(cluster: &Cluster, method: &str, target: &str) -> io::Result<(u16, Vec<u8>)> {
    attempt(cluster, &cluster.request(method, target), &[])
}

/// No backend has open changes.
fn settle(cluster: &Cluster) {
    eventually("all changes are over", SETTLED, || {
        let backends = cluster.backends();
        backends
            .iter()
            .all(|host| cluster.counter(host, "store", "open_changes") == 0)
    });
}

/// Stops the cluster and compares its backends' stores: every object is on `replicas` of them,
/// as it was written.
pub(crate) fn compare(mut cluster: Cluster, replicas: usize) -> BTreeMap<(String, String), u64> {
    settle(&cluster);
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let mut found: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    let mut lengths = BTreeMap::new();
    let mut buckets = BTreeSet::new();
    for host in cluster.backends() {
        cluster.lab.stop(&host).unwrap();
        let path = &config.node(&host).unwrap().store;
        let store = Store::open(path, prism_store::Config::default()).unwrap();
        assert_eq!(store.recovery().orphans_removed, 0, "{host}");
        assert_eq!(store.recovery().dangling, 0, "{host}");
        let names = store.buckets().list().unwrap().into_iter().map(|b| b.name);
        let names: Vec<String> = names.collect();
        buckets.insert(names.clone());
        for bucket in names {
            let mut keys = Vec::new();
            let listed = store.scan(&bucket, "", Position::Start, |entry| {
                keys.push(entry.key);
                Step::Entry
            });
            listed.unwrap();
            for key in keys {
                let object = store.get(&bucket, &key).unwrap().unwrap();
                digest(&object.body);
                let line = format!("{} {} {:?}", object.stamp, object.len, object.meta);
                let id = (bucket.clone(), key);
                lengths.insert(id.clone(), object.len);
                found.entry(id).or_default().push(line);
            }
            let (uploads, _) = store.uploads().list(&bucket, "", None, 10).unwrap();
            assert!(uploads.is_empty(), "{host}: {uploads:?}");
        }
    }
    assert_eq!(buckets.len(), 1, "{buckets:?}");
    for (id, lines) in &found {
        assert_eq!(lines.len(), replicas, "{id:?}");
        assert!(
            lines.iter().all(|line| *line == lines[0]),
            "{id:?}: {lines:#?}"
        );
    }
    lengths
}

#[test]
fn boto3_sees_no_difference_and_every_object_is_on_two_of_three_backends() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::replicated(3, 2);
    for script in ["many.py", "parts.py", "versions.py"] {
        let path = format!("{}/tests/lab/objects/{script}", env!("CARGO_MANIFEST_DIR"));
        let output = python(&cluster.lab).arg(path).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(printed.lines().last(), Some("done"), "{printed}{errors}");
    }
    let objects = compare(cluster, 2);
    say(&format!(
        "{} objects on two of three backends",
        objects.len()
    ));
    // The scripts delete their objects.
    assert!(objects.len() >= 3);
}

/// boto3's result for each key of one DeleteObjects request.
fn delete_all(cluster: &Cluster, keys: &[String]) -> BTreeMap<String, String> {
    const SCRIPT: &str = r#"
import boto3, os, sys
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
objects = [{"Key": key} for key in sys.argv[2:]]
answer = s3.delete_objects(Bucket=sys.argv[1], Delete={"Objects": objects})
for deleted in answer.get("Deleted", []):
    print(deleted["Key"], "Deleted")
for error in answer.get("Errors", []):
    print(error["Key"], error["Code"])
"#;
    let mut python = python(&cluster.lab);
    let output = python.args(["-c", SCRIPT, BUCKET]).args(keys).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().map(|line| line.split_once(' ').unwrap());
    lines.map(|(key, said)| (key.into(), said.into())).collect()
}

#[test]
fn of_many_deletions_each_has_its_own_answer_while_a_backend_is_down() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::replicated(3, 2);
    let keys: Vec<String> = (0..30).map(|n| format!("o{n:02}")).collect();
    for key in &keys {
        assert_eq!(put(&cluster, key, &[7; 30_000]).unwrap().0, 200);
    }
    cluster.lab.kill("be1").unwrap();
    let said = delete_all(&cluster, &keys);
    assert_eq!(said.len(), keys.len(), "{said:?}");
    let mut refused = 0;
    for (key, said) in &said {
        // The other replica may serve an object whose primary is down.
        let (status, _) = call(&cluster, "GET", &format!("/{key}")).unwrap();
        let expected = match said.as_str() {
            "Deleted" => 404,
            "ServiceUnavailable" => 200,
            other => panic!("{key}: {other}"),
        };
        assert_eq!(status, expected, "{key}: {said}");
        refused += usize::from(status == 200);
    }
    say(&format!("{refused} of {} refused", keys.len()));
    assert!((1..keys.len()).contains(&refused));
    cluster.lab.restart("be1").unwrap();
    eventually("the others are deleted", Duration::from_secs(10), || {
        let left: Vec<String> = delete_all(&cluster, &keys).into_values().collect();
        left.iter().all(|said| said == "Deleted")
    });
    let left = compare(cluster, 2);
    assert!(!left.keys().any(|(_, key)| keys.contains(key)), "{left:?}");
}

/// The output of `prism ctl cluster`, and whether all backends are in reach.
fn ctl_cluster(cluster: &Cluster) -> (serde_json::Value, bool) {
    let output = Command::new(env!("CARGO_BIN_EXE_prism"))
        .args(["ctl", "cluster", "--json", "--node", "fe0", "--config"])
        .arg(cluster.lab.config_path())
        .output()
        .unwrap();
    let seen = serde_json::from_slice(&output.stdout).unwrap();
    (seen, output.status.success())
}

#[test]
fn with_a_backend_down_reads_and_listings_go_on_and_writes_are_refused() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::replicated(3, 3);
    let objects: Vec<Object> = (0..12)
        .map(|n| Object::new(format!("o{n:02}"), [10, 30_000, 1_500_000][n % 3]))
        .collect();
    cluster.put_all(&objects);
    let copies: u64 = cluster.sum("requests", "prepared");
    assert!(copies >= 2 * objects.len() as u64, "{copies}");

    cluster.lab.kill("be1").unwrap();
    let (seen, is_all) = ctl_cluster(&cluster);
    assert!(!is_all);
    assert_eq!(seen["replicas"], 3);
    let away: Vec<_> = seen["backends"].as_array().unwrap().iter().collect();
    assert_eq!(
        (&away[1]["name"], &away[1]["in_reach"]),
        (&"be1".into(), &false.into())
    );
    assert_eq!((&away[2]["in_reach"], away.len()), (&true.into(), 3));
    let mut refused = 0;
    for round in 0..2 {
        for object in &objects {
            let (status, data) = call(&cluster, "GET", &format!("/{}", object.key)).unwrap();
            assert_eq!(status, 200, "{}", String::from_utf8_lossy(&data));
            object.check(0, &data);
            let (status, text) = match round {
                0 => put(&cluster, &object.key, b"new").unwrap(),
                _ => call(&cluster, "DELETE", &format!("/{}", object.key)).unwrap(),
            };
            assert_eq!(status, 503, "{}", String::from_utf8_lossy(&text));
            refused += 1;
        }
    }
    say(&format!("{refused} writes refused with a backend down"));
    let (status, listing) = call(&cluster, "GET", "?list-type=2&max-keys=5&prefix=o").unwrap();
    let text = String::from_utf8_lossy(&listing).into_owned();
    assert_eq!(status, 200, "{text}");
    let listed: Vec<_> = text.split("<Key>").skip(1).map(|rest| &rest[..3]).collect();
    assert_eq!(listed, ["o00", "o01", "o02", "o03", "o04"]);

    cluster.lab.restart("be1").unwrap();
    eventually("all are in reach", Duration::from_secs(5), || {
        ctl_cluster(&cluster).1
    });
    eventually("writes are taken again", Duration::from_secs(5), || {
        objects
            .iter()
            .all(|object| put(&cluster, &object.key, b"after").is_ok_and(|(s, _)| s == 200))
    });
    for object in &objects {
        for _ in 0..4 {
            let (status, data) = call(&cluster, "GET", &format!("/{}", object.key)).unwrap();
            assert_eq!((status, data.as_slice()), (200, &b"after"[..]));
        }
    }
    let deleted = call(&cluster, "DELETE", "/o03").unwrap();
    assert_eq!(deleted.0, 204);
    let gone = call(&cluster, "GET", "/o03").unwrap();
    assert_eq!(gone.0, 404);
    let left = compare(cluster, 3);
    assert!(!left.contains_key(&(BUCKET.to_owned(), "o03".to_owned())));
    assert_eq!(left[&(BUCKET.to_owned(), "o04".to_owned())], 5);
}

const KEYS: usize = 6;
const CLIENTS: usize = 4;

/// The clients' operations on each key.
struct Seen {
    begun: Instant,
    by_key: Vec<Mutex<Vec<Operation>>>,
    next: AtomicU64,
    answered: AtomicU64,
}

impl Seen {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).unwrap()
    }

    /// One operation on a key, and its outcome.
    fn operate(&self, cluster: &Cluster, rng: &mut fastrand::Rng) {
        let number = rng.usize(..KEYS);
        // The most operations that the judge takes.
        if self.by_key[number].lock().unwrap().len() >= OPERATIONS_MAX - CLIENTS {
            return std::thread::sleep(Duration::from_millis(1));
        }
        let (key, called) = (format!("k{number}"), self.now());
        let mut operation = Operation {
            called,
            answered: None,
            action: Action::Read(None),
        };
        match rng.u8(..10) {
            0..4 => {
                let value = self.next.fetch_add(1, Ordering::Relaxed);
                operation.action = Action::Write(Some(value));
                // Some objects are in the tree, and some in files.
                let filling = "x".repeat([0, 40_000][rng.usize(..2)]);
                let done = put(cluster, &key, format!("{value} {filling}").as_bytes());
                if matches!(done, Ok((200, _))) {
                    operation.answered = Some(self.now());
                }
            }
            4 => {
                operation.action = Action::Write(None);
                let done = call(cluster, "DELETE", &format!("/{key}"));
                if matches!(done, Ok((204, _))) {
                    operation.answered = Some(self.now());
                }
            }
            _ => match call(cluster, "GET", &format!("/{key}")) {
                Ok((200, data)) => {
                    let text = String::from_utf8(data).unwrap();
                    let value = text.split(' ').next().unwrap().parse().unwrap();
                    operation.action = Action::Read(Some(value));
                    operation.answered = Some(self.now());
                }
                Ok((404, _)) => operation.answered = Some(self.now()),
                _ => return std::thread::sleep(Duration::from_millis(5)),
            },
        }
        if operation.answered.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        } else {
            self.answered.fetch_add(1, Ordering::Relaxed);
        }
        self.by_key[number].lock().unwrap().push(operation);
    }
}

#[test]
fn histories_are_linearizable_and_replicas_identical_whatever_is_killed() {
    let Some(_turn) = turn() else { return };
    let kills: u32 = match std::env::var("PRISM_REPLICA_KILLS") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => 4,
    };
    let seed = fastrand::u64(..1 << 32);
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut cluster = Cluster::replicated(3, 3);
    let mut answered = 0;
    for _ in 0..kills {
        let seen = Seen {
            begun: Instant::now(),
            by_key: (0..KEYS).map(|_| Mutex::default()).collect(),
            next: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        };
        let host = format!("be{}", rng.usize(..3));
        let (before, after) = (rng.u64(200..900), rng.u64(200..900));
        round(&mut cluster, &seen, &host, (before, after), &mut rng);
        settle(&cluster);
        for (number, history) in seen.by_key.iter().enumerate() {
            let history = history.lock().unwrap();
            let verdict = is_linearizable(None, &history);
            assert_eq!(verdict, Some(true), "seed {seed}, k{number}: {history:#?}");
        }
        answered += seen.answered.load(Ordering::Relaxed);
        for number in 0..KEYS {
            let (status, _) = call(&cluster, "DELETE", &format!("/k{number}")).unwrap();
            assert_eq!(status, 204);
        }
    }
    say(&format!(
        "{answered} answers over {kills} kills, seed {seed}"
    ));
    assert!(answered > 50 * u64::from(kills), "{answered}");
    compare(cluster, 3);
}

/// Clients at work while `host` is killed and comes back.
fn round(
    cluster: &mut Cluster,
    seen: &Seen,
    host: &str,
    (before, after): (u64, u64),
    rng: &mut fastrand::Rng,
) {
    let stop = AtomicBool::new(false);
    let pid = cluster.lab.pid(host).unwrap().to_string();
    {
        let cluster = &*cluster;
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                let mut rng = rng.fork();
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        seen.operate(cluster, &mut rng);
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(before));
            let killed = Command::new("kill").args(["-KILL", &pid]).status();
            assert!(killed.unwrap().success());
            std::thread::sleep(Duration::from_millis(after));
            stop.store(true, Ordering::Relaxed);
        });
    }
    // It also records its end.
    let _ = cluster.lab.kill(host);
    cluster.lab.restart(host).unwrap();
    // Clients also read while the backend returns.
    let until = Instant::now() + Duration::from_millis(500);
    while Instant::now() < until {
        seen.operate(cluster, rng);
    }
}
