//! Quotas of buckets: each way of writing is refused at the limit, whichever node has the
//! connection, and deletions free what they delete.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::refill::ctl;
use crate::support::client::{Answer, Client, Request};
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, eventually, say, turn};

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

fn leave_objects(cluster: &Cluster, more: u64) {
    let limit = usage(cluster).1 + more;
    quota(
        cluster,
        &["--bytes", "none", "--objects", &limit.to_string()],
    );
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

    /// A body whose length is not said.
    fn put_chunked(&mut self, target: &str, len: usize) -> Answer {
        let put = Request::new("PUT", target).unsigned();
        let head = put
            .header("Transfer-Encoding", "chunked")
            .encode(self.cluster);
        let body = format!("{len:x}\r\n{}\r\n0\r\n\r\n", "q".repeat(len));
        let answer = self.client.call(&[&head, body.as_bytes()].concat());
        if !answer.keep_alive() {
            self.client = self.cluster.connect();
        }
        answer
    }

    fn copy(&mut self, target: &str, source: &str) -> Answer {
        let source = format!("/{BUCKET}/{source}");
        let copy = Request::new("PUT", target).signed_header("x-amz-copy-source", source);
        self.ask(copy, b"")
    }

    fn delete(&mut self, key: &str) {
        let answer = self.ask(Request::new("DELETE", &format!("/{key}")), b"");
        assert_eq!(answer.status(), 204, "{}", answer.text());
    }

    fn begin(&mut self, key: &str) -> Answer {
        self.ask(Request::new("POST", &format!("/{key}?uploads")), b"")
    }

    /// Completes an upload of its first part.
    fn complete(&mut self, key: &str, upload: &str, etag: &str) -> Answer {
        let part = format!("<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>");
        let list = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        let target = format!("/{key}?uploadId={upload}");
        let request = Request::new("POST", &target).signing(list.as_bytes());
        self.ask(request, list.as_bytes())
    }
}

/// The id in the answer to a begin of an upload.
fn upload_id(begun: &Answer) -> String {
    let text = begun.text();
    let id = text
        .split("<UploadId>")
        .nth(1)
        .unwrap_or_else(|| panic!("{text}"));
    id.split('<').next().unwrap().to_owned()
}

/// Every way of writing at `host`, by one connection.
fn writes_are_refused_at(cluster: &Cluster, host: &str, label: &str) {
    quota(cluster, &["--none"]);
    let key = |name: &str| cluster.key_on(host, &format!("{label}-{name}"));
    let target = |name: &str| format!("/{}", key(name));
    let mut user = User::new(cluster);
    assert_done("the source", &user.put(&target("source"), 100_000));
    let id = upload_id(&user.begin(&key("upload")));
    let part = |number: u16| format!("{}?partNumber={number}&uploadId={id}", target("upload"));
    let sent = user.put(&part(1), 50_000);
    assert_done("a part", &sent);
    let source = key("source");
    leave_bytes(cluster, 60_000);
    for (what, answer) in [
        ("PutObject", user.put(&target("new"), 60_001)),
        ("CopyObject", user.copy(&target("copy"), &source)),
        ("UploadPart", user.put(&part(2), 60_001)),
        ("UploadPart again", user.put(&part(1), 110_001)),
        ("UploadPartCopy", user.copy(&part(2), &source)),
        ("PutObject over one", user.put(&target("source"), 160_001)),
    ] {
        assert_refused(&format!("{host}: {what}"), &answer);
    }
    let answer = user.put_chunked(&target("chunked"), 60_001);
    assert_eq!(answer.status(), 403, "{}", answer.text());
    assert!(answer.text().contains("60000 bytes"), "{}", answer.text());
    for (what, answer) in [
        ("PutObject", user.put(&target("new"), 60_000)),
        ("PutObject over one", user.put(&target("source"), 100_000)),
        ("UploadPart again", user.put(&part(1), 50_000)),
        ("CompleteMultipartUpload", {
            user.complete(&key("upload"), &id, sent.header("etag"))
        }),
    ] {
        assert_done(&format!("{host}: {what}"), &answer);
    }
    assert_refused("nothing is left", &user.put(&target("more"), 1));
    user.delete(&key("new"));
    assert_done("room that was freed", &user.put(&target("more"), 60_000));
    let late = key("late");
    let id = upload_id(&user.begin(&late));
    let sent = user.put(&format!("/{late}?partNumber=1&uploadId={id}"), 0);
    leave_objects(cluster, 0);
    for (what, answer) in [
        ("PutObject", user.put(&target("new"), 0)),
        ("CopyObject", user.copy(&target("copy"), &source)),
        ("CreateMultipartUpload", user.begin(&key("another"))),
        ("CompleteMultipartUpload", {
            user.complete(&late, &id, sent.header("etag"))
        }),
    ] {
        assert_refused(&format!("{host}, objects: {what}"), &answer);
    }
    assert_done("over one", &user.put(&target("source"), 200_000));
    user.delete(&key("more"));
    let done = user.complete(&late, &id, sent.header("etag"));
    assert_done("CompleteMultipartUpload", &done);
    assert_refused("one too many", &user.put(&target("new"), 0));
}

#[test]
fn every_way_of_writing_is_refused_at_the_limit_at_the_owner_of_the_connection() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let moved = cluster.sum("handoff", "exports_moved");
    for host in ["be0", "be1"] {
        writes_are_refused_at(&cluster, host, "direct");
    }
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    assert!(moved >= 2, "{moved} hand-offs");
    // From one backend to the other, each with the refusal as its first answer there.
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
fn every_way_of_writing_is_refused_at_the_limit_behind_a_relay() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::relaying(2);
    for host in ["be0", "be1"] {
        writes_are_refused_at(&cluster, host, "relayed");
    }
    assert_eq!(cluster.sum("handoff", "exports_moved"), 0);
}

#[test]
fn an_object_counts_once_whatever_the_number_of_its_replicas_and_at_every_backend() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::replicated(3, 2);
    let (bytes, objects) = usage(&cluster);
    limit_bytes(&cluster, bytes + 1_000_000);
    let filling: Vec<Object> = (0..40)
        .map(|n| Object::new(format!("filling-{n}"), 20_000))
        .collect();
    // Twice that is beyond the quota.
    cluster.put_all(&filling);
    assert_eq!(usage(&cluster), (bytes + 800_000, objects + 40));
    std::thread::sleep(HEARD);
    let mut user = User::new(&cluster);
    for host in cluster.backends() {
        let target = format!("/{}", cluster.key_on(&host, "more"));
        assert_refused(&host, &user.put(&target, 200_001));
    }
    for host in cluster.backends() {
        let key = cluster.key_on(&host, "more");
        assert_done(&host, &user.put(&format!("/{key}"), 200_000));
        user.delete(&key);
        std::thread::sleep(HEARD);
    }
    assert_eq!(usage(&cluster), (bytes + 800_000, objects + 40));
}

#[test]
fn many_writes_at_once_at_one_backend_do_not_exceed_the_quota_together() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let (bytes, _) = usage(&cluster);
    limit_bytes(&cluster, bytes + 5_000_000);
    let done: usize = std::thread::scope(|scope| {
        let cluster = &cluster;
        let threads: Vec<_> = (0..16)
            .map(|n| {
                scope.spawn(move || {
                    let object =
                        Object::new(cluster.key_on("be1", &format!("many-{n}")), 1_000_000);
                    let answer = cluster.connect().try_to_put(cluster, &object);
                    match answer.status() {
                        200 => 1,
                        _ => {
                            assert_refused(&object.key, &answer);
                            0
                        }
                    }
                })
            })
            .collect();
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.sum()
    });
    say(&format!("{done} of 16 objects were stored"));
    assert!((4..=5).contains(&done), "{done} objects");
    let used = usage(&cluster).0 - bytes;
    assert_eq!(used, done as u64 * 1_000_000);
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
