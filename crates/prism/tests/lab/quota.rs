//! Quotas of buckets in a cluster whose connections move and whose processes end. The ways of
//! writing are tests of `prism-objects`.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::refill::ctl;
use crate::support::client::{Answer, Client, Request};
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, eventually, turn};

/// The time after which a backend knows of writes at the others: an interval, and the answers.
const HEARD: Duration = Duration::from_millis(1600);
/// The longest time until a condition holds.
const PATIENCE: Duration = Duration::from_secs(20);
/// The smallest part of an upload that is not the last.
const PART: usize = 5 << 20;

/// The quota of the bucket and its usage, after a change if one is named.
fn quota(cluster: &Cluster, change: &[&str]) -> Value {
    let command = ["bucket", "quota", BUCKET, "--json"];
    let text = ctl(cluster, &[&command, change].concat());
    serde_json::from_str(&text).unwrap()
}

/// Bytes and objects of the bucket.
fn usage(cluster: &Cluster) -> (u64, u64) {
    let usage = &quota(cluster, &[])["usage"];
    let number = |name: &str| usage[name].as_u64().unwrap();
    (number("bytes"), number("objects"))
}

fn limit_bytes(cluster: &Cluster, bytes: u64) {
    quota(cluster, &["--bytes", &bytes.to_string()]);
}

/// Allows `more` bytes beside the present ones, and waits until every backend knows these.
fn leave_bytes(cluster: &Cluster, more: u64) {
    limit_bytes(cluster, usage(cluster).0 + more);
    std::thread::sleep(HEARD);
}

fn assert_refused(what: &str, answer: &Answer) {
    let text = answer.text();
    assert_eq!(answer.status(), 403, "{what}: {text}");
    assert!(text.contains("<Code>QuotaExceeded<"), "{what}: {text}");
    assert!(
        text.contains("The quota of the bucket is"),
        "{what}: {text}"
    );
}

fn assert_done(what: &str, answer: &Answer) {
    assert!(answer.status() < 300, "{what}: {}", answer.text());
}

/// A connection of a client, and its way to say what it wants.
struct User<'c> {
    cluster: &'c Cluster,
    client: Client,
}

impl<'c> User<'c> {
    fn new(cluster: &'c Cluster) -> Self {
        let client = cluster.connect();
        Self { cluster, client }
    }

    fn ask(&mut self, request: Request<'_>, body: &[u8]) -> Answer {
        let request = request.header("Content-Length", body.len().to_string());
        let head = request.encode(self.cluster);
        let answer = self.client.call(&[&head, body].concat());
        if !answer.keep_alive() {
            self.client = self.cluster.connect();
        }
        answer
    }

    fn put(&mut self, target: &str, len: usize) -> Answer {
        let body = vec![b'q'; len];
        self.ask(Request::new("PUT", target).signing(&body), &body)
    }
}

#[test]
fn the_backend_that_gets_a_connection_refuses_at_the_limit() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    leave_bytes(&cluster, 1000);
    let before = cluster.sum("handoff", "exports_moved");
    let mut user = User::new(&cluster);
    for n in 0..10 {
        let key = cluster.key_on(["be0", "be1"][n % 2], "moving");
        assert_refused(&key, &user.put(&format!("/{key}"), 1001));
    }
    let moved = cluster.sum("handoff", "exports_moved") - before;
    assert!(moved >= 9, "{moved} hand-offs");
}

#[test]
fn a_quota_changes_while_the_cluster_runs_and_outlives_its_processes() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| spec.etcd = true);
    let before = usage(&cluster);
    limit_bytes(&cluster, before.0 + 300_000);
    let mut user = User::new(&cluster);
    let keys = ["be0", "be1"].map(|host| cluster.key_on(host, "k"));
    for key in &keys {
        assert_done(key, &user.put(&format!("/{key}"), 100_000));
    }
    drop(user);
    for (n, host) in ["be0", "be1"].into_iter().enumerate() {
        match n {
            0 => cluster.lab.kill(host).unwrap(),
            _ => cluster.lab.stop(host).unwrap(),
        }
        cluster.lab.restart(host).unwrap();
    }
    eventually("both backends write", PATIENCE, || {
        keys.iter().all(|key| {
            let put = Object::new(key.clone(), 100_000);
            cluster.connect().try_to_put(&cluster, &put).status() == 200
        })
    });
    assert_eq!(usage(&cluster), (before.0 + 200_000, before.1 + 2));
    std::thread::sleep(HEARD);
    let mut user = User::new(&cluster);
    let targets = ["be0", "be1"].map(|host| format!("/{}", cluster.key_on(host, "more")));
    for target in &targets {
        assert_refused(target, &user.put(target, 100_001));
    }
    // A change counts with its answer.
    limit_bytes(&cluster, before.0 + 600_000);
    for target in &targets {
        assert_done(target, &user.put(target, 150_000));
    }
    let shown = ctl(&cluster, &["bucket", "info", BUCKET]);
    let line = format!("bytes   {}  of {}", before.0 + 500_000, before.0 + 600_000);
    assert!(shown.contains(&line), "{shown}");
    let text = ctl(&cluster, &["bucket", "info", BUCKET, "--json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(shown["quota"]["bytes"], before.0 + 600_000, "{text}");
    assert_eq!(shown["usage"]["objects"], before.1 + 4, "{text}");
    let removed = quota(&cluster, &["--none"]);
    assert_eq!(removed["quota"], serde_json::json!({}), "{removed}");
    for target in &targets {
        assert_done(target, &user.put(target, 3_000_000));
    }
}

#[test]
fn the_aws_command_line_is_told_of_the_quota() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("sent");
    std::fs::write(&file, vec![7; 4 * PART]).unwrap();
    let aws = |arguments: &[&str]| {
        let mut command: Command = cluster.lab.command("client", "aws").unwrap();
        command.args(["--endpoint-url", &cluster.lab.endpoint()]);
        let output = command.args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let sent = file.to_str().unwrap();
    let put = |key: &str| {
        let put = ["s3api", "put-object", "--bucket", BUCKET, "--body", sent];
        aws(&[&put[..], &["--key", key]].concat())
    };
    limit_bytes(&cluster, 30_000_000);
    // In one request, and in parts.
    let (done, said) = put("first");
    assert!(done, "{said}");
    std::thread::sleep(HEARD);
    let url = format!("s3://{BUCKET}/parts");
    for (done, said) in [put("second"), aws(&["s3", "cp", sent, &url])] {
        assert!(!done && said.contains("QuotaExceeded"), "{said}");
        assert!(
            said.contains("The quota of the bucket is 30000000 bytes"),
            "{said}"
        );
    }
    let (done, said) = aws(&["s3", "rm", &format!("s3://{BUCKET}/first")]);
    assert!(done, "{said}");
    std::thread::sleep(HEARD);
    let (done, said) = aws(&["s3", "cp", sent, &url]);
    assert!(done, "{said}");
}

#[test]
fn a_quota_stays_with_its_name_in_etcd_until_an_administrator_removes_it() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.etcd = true);
    let mut user = User::new(&cluster);
    let body = vec![b'q'; 1001];
    let mut ask = |method: &'static str, target: &str, body: &[u8]| {
        let request = Request::new(method, target).bucket("left");
        user.ask(request.signing(body), body)
    };
    assert_done("CreateBucket", &ask("PUT", "", b""));
    ctl(&cluster, &["bucket", "quota", "left", "--bytes", "1000"]);
    assert_done("DeleteBucket", &ask("DELETE", "", b""));
    let listed = || ctl(&cluster, &["bucket", "quota", "--json"]);
    let list: Value = serde_json::from_str(&listed()).unwrap();
    let left = serde_json::json!([{
        "bucket": "left", "exists": false, "quota": { "bytes": 1000 }, "estimate": null,
    }]);
    assert_eq!(list["quotas"], left);
    let shown = ctl(&cluster, &["bucket", "info", "left"]);
    assert!(shown.contains("exists  no"), "{shown}");
    assert!(shown.contains("of 1000"), "{shown}");
    assert_done("CreateBucket", &ask("PUT", "", b""));
    assert_refused("the next bucket", &ask("PUT", "/k", &body));
    assert_done("DeleteBucket", &ask("DELETE", "", b""));
    ctl(&cluster, &["bucket", "quota", "left", "--none"]);
    assert!(!listed().contains("left"));
    assert_done("CreateBucket", &ask("PUT", "", b""));
    assert_done("without a quota", &ask("PUT", "/k", &body));
}
