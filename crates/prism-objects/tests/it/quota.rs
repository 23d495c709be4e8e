//! Quotas of buckets: each way of writing is refused at the limit, whichever node the client is
//! connected to, and deletions free what they delete.

use std::time::Duration;

use prism_replicas::QuotaChange;

use crate::nodes::{Client, Nodes};
use crate::support::Answer;

/// The time after which a backend knows of writes at the others: an interval, and the answers.
const HEARD: Duration = Duration::from_millis(1600);

/// Allows `bytes` and `objects` beside the present ones, and waits until every backend knows
/// these.
fn leave(nodes: &Nodes, bytes: Option<u64>, objects: Option<u64>) {
    let usage = nodes.quota(0, None).usage;
    let change = QuotaChange {
        bytes: Some(bytes.map(|more| usage.bytes + more)),
        objects: Some(objects.map(|more| usage.objects + more)),
    };
    nodes.quota(0, Some(change));
    std::thread::sleep(HEARD);
}

fn assert_refused(what: &str, answer: &Answer) {
    let text = answer.text();
    assert_eq!(answer.status, 403, "{what}: {text}");
    assert_eq!(answer.elements("Code"), ["QuotaExceeded"], "{what}");
    assert!(
        text.contains("The quota of the bucket is"),
        "{what}: {text}"
    );
}

fn assert_done(what: &str, answer: &Answer) {
    assert!(answer.status < 300, "{what}: {}", answer.text());
}

/// A client, and its ways of writing.
struct Writer(Client);

impl Writer {
    fn put(&mut self, target: &str, len: usize) -> Answer {
        let body = vec![b'q'; len];
        self.0.send(&format!("PUT /bkt/{target}"), &[], &body)
    }

    fn copy(&mut self, target: &str, source: &str) -> Answer {
        let source = format!("/bkt/{source}");
        let fields = [("x-amz-copy-source", source.as_str())];
        self.0.send(&format!("PUT /bkt/{target}"), &fields, &[])
    }

    fn delete(&mut self, key: &str) {
        let deleted = self.0.send(&format!("DELETE /bkt/{key}"), &[], &[]);
        assert_eq!(deleted.status, 204, "{}", deleted.text());
    }

    fn begin(&mut self, key: &str) -> Answer {
        self.0.send(&format!("POST /bkt/{key}?uploads"), &[], &[])
    }

    /// Completes an upload of its first part.
    fn complete(&mut self, key: &str, upload: &str, etag: &str) -> Answer {
        let part = format!("<Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>");
        let list = format!("<CompleteMultipartUpload>{part}</CompleteMultipartUpload>");
        let start = format!("POST /bkt/{key}?uploadId={upload}");
        self.0.send(&start, &[], list.as_bytes())
    }
}

/// Writes objects of `owner`, over a connection to another node.
fn writes_are_refused(nodes: &Nodes, owner: usize, connected: usize) {
    leave(nodes, None, None);
    let key = |name: &str| nodes.key_of(owner, &format!("{name}-{connected}"));
    let mut writer = Writer(Client::connect(nodes.nodes[connected].address));
    let source = key("source");
    assert_done("the source", &writer.put(&source, 100_000));
    let upload = key("upload");
    let id = writer.begin(&upload).elements("UploadId")[0].to_owned();
    let part = |number: u16| format!("{upload}?partNumber={number}&uploadId={id}");
    let sent = writer.put(&part(1), 50_000);
    assert_done("a part", &sent);
    leave(nodes, Some(60_000), None);
    for (what, answer) in [
        ("PutObject", writer.put(&key("new"), 60_001)),
        ("CopyObject", writer.copy(&key("copy"), &source)),
        ("UploadPart", writer.put(&part(2), 60_001)),
        ("UploadPart again", writer.put(&part(1), 110_001)),
        ("UploadPartCopy", writer.copy(&part(2), &source)),
        ("PutObject over one", writer.put(&source, 160_001)),
    ] {
        assert_refused(what, &answer);
    }
    let start = format!("PUT /bkt/{}", key("chunked"));
    let chunked = writer.0.send_chunked(&start, &[b'q'; 60_001]);
    assert_eq!(chunked.status, 403, "{}", chunked.text());
    assert!(chunked.text().contains("60000 bytes"), "{}", chunked.text());
    for (what, answer) in [
        ("PutObject", writer.put(&key("new"), 60_000)),
        ("PutObject over one", writer.put(&source, 100_000)),
        ("UploadPart again", writer.put(&part(1), 50_000)),
        ("CompleteMultipartUpload", {
            writer.complete(&upload, &id, sent.header("etag"))
        }),
    ] {
        assert_done(what, &answer);
    }
    assert_refused("nothing is left", &writer.put(&key("more"), 1));
    writer.delete(&key("new"));
    assert_done("room that was freed", &writer.put(&key("more"), 60_000));
    let late = key("late");
    let id = writer.begin(&late).elements("UploadId")[0].to_owned();
    let sent = writer.put(&format!("{late}?partNumber=1&uploadId={id}"), 0);
    leave(nodes, None, Some(0));
    for (what, answer) in [
        ("PutObject", writer.put(&key("new"), 0)),
        ("CopyObject", writer.copy(&key("copy"), &source)),
        ("CreateMultipartUpload", writer.begin(&key("another"))),
        ("CompleteMultipartUpload", {
            writer.complete(&late, &id, sent.header("etag"))
        }),
    ] {
        assert_refused(&format!("objects: {what}"), &answer);
    }
    assert_done("over one", &writer.put(&source, 200_000));
    writer.delete(&key("more"));
    let done = writer.complete(&late, &id, sent.header("etag"));
    assert_done("CompleteMultipartUpload", &done);
    assert_refused("one too many", &writer.put(&key("new"), 0));
}

#[test]
fn every_way_of_writing_is_refused_at_the_limit_here_and_at_another_node() {
    let nodes = Nodes::with_bucket(1);
    writes_are_refused(&nodes, 0, 0);
    writes_are_refused(&nodes, 1, 0);
}

/// Ends writes that were begun, of which one fits in the quota, and returns those that were done.
fn ended(mut held: Vec<Client>, body: &[u8]) -> usize {
    let answers = held.iter_mut().map(|client| client.end_put(body));
    let answers: Vec<_> = answers.collect();
    for answer in answers.iter().filter(|answer| answer.status != 200) {
        assert_refused("held open", answer);
    }
    answers.iter().filter(|answer| answer.status == 200).count()
}

#[test]
fn overwrites_that_are_held_open_count_whole_once_their_objects_are_deleted() {
    for replicas in [1, 2] {
        let nodes = Nodes::with_bucket(replicas);
        let address = nodes.nodes[0].address;
        let mut writer = Writer(Client::connect(address));
        for len in [1_000, 100_000] {
            leave(&nodes, Some(2 * len as u64 - 1), None);
            let begin = |n: usize| {
                let key = nodes.key_of(0, &format!("held-{len}-{n}"));
                assert_done(&key, &writer.put(&key, len));
                let mut client = Client::connect(address);
                client.begin_put(&format!("/bkt/{key}"), Some(len));
                writer.delete(&key);
                client
            };
            let held = (0..4).map(begin).collect();
            assert_eq!(ended(held, &vec![b'q'; len]), 1, "{replicas} {len}");
        }
    }
}

#[test]
fn a_part_that_is_held_open_counts_whole_once_the_part_before_is_replaced() {
    let nodes = Nodes::with_bucket(1);
    leave(&nodes, Some(199_999), None);
    let address = nodes.nodes[0].address;
    let mut writer = Writer(Client::connect(address));
    let key = nodes.key_of(0, "parts");
    let id = writer.begin(&key).elements("UploadId")[0].to_owned();
    let part = format!("{key}?partNumber=1&uploadId={id}");
    assert_done("a part", &writer.put(&part, 100_000));
    let mut held = Client::connect(address);
    held.begin_put(&format!("/bkt/{part}"), Some(100_000));
    assert_done("a smaller part", &writer.put(&part, 1));
    let other = nodes.key_of(0, "other");
    assert_done("the freed room", &writer.put(&other, 150_000));
    assert_eq!(ended(vec![held], &[b'q'; 100_000]), 0);
}

#[test]
fn bodies_without_a_length_do_not_exceed_the_quota_together() {
    let nodes = Nodes::with_bucket(1);
    leave(&nodes, Some(199_999), None);
    let begin = |n: usize| {
        let mut client = Client::connect(nodes.nodes[0].address);
        let key = nodes.key_of(0, &format!("chunked-{n}"));
        client.begin_put(&format!("/bkt/{key}"), None);
        client
    };
    let held = (0..4).map(begin).collect();
    let size = format!("{:x}\r\n", 100_000);
    let body = [size.as_bytes(), &[b'q'; 100_000], b"\r\n0\r\n\r\n"].concat();
    assert_eq!(ended(held, &body), 1);
}

#[test]
fn a_bucket_that_is_deleted_and_created_again_has_the_quota_of_its_name() {
    let nodes = Nodes::with_bucket(1);
    leave(&nodes, Some(1_000), None);
    let mut writer = Writer(Client::connect(nodes.nodes[1].address));
    let mut status = |start: &str| writer.0.send(start, &[], &[]).status;
    assert_eq!(status("DELETE /bkt"), 204);
    let unused = nodes.quota(2, None);
    assert_eq!((unused.exists, unused.quota.bytes), (false, Some(1_000)));
    assert_eq!(status("PUT /bkt"), 200);
    let key = nodes.key_of(0, "k");
    assert_refused("the next bucket", &writer.put(&key, 1_001));
    assert_eq!(writer.0.send("DELETE /bkt", &[], &[]).status, 204);
    let none = QuotaChange {
        bytes: Some(None),
        objects: None,
    };
    nodes.quota(0, Some(none));
    assert_eq!(writer.0.send("PUT /bkt", &[], &[]).status, 200);
    assert_done("without a quota", &writer.put(&key, 1_001));
}

#[test]
fn an_object_counts_once_whatever_the_number_of_its_replicas_and_at_every_backend() {
    let nodes = Nodes::with_bucket(2);
    leave(&nodes, Some(1_000_000), None);
    let mut writer = Writer(nodes.clients().remove(0));
    for n in 0..40 {
        // Twice that is beyond the quota.
        assert_done("filling", &writer.put(&format!("filling-{n}"), 20_000));
    }
    let used = |nodes: &Nodes| {
        let usage = nodes.quota(1, None).usage;
        (usage.bytes, usage.objects)
    };
    assert_eq!(used(&nodes), (800_000, 40));
    std::thread::sleep(HEARD);
    for owner in 0..3 {
        let key = nodes.key_of(owner, "more");
        assert_refused(&key, &writer.put(&key, 200_001));
    }
    for owner in 0..3 {
        let key = nodes.key_of(owner, "more");
        assert_done(&key, &writer.put(&key, 200_000));
        writer.delete(&key);
        std::thread::sleep(HEARD);
    }
    assert_eq!(used(&nodes), (800_000, 40));
}

#[test]
fn many_writes_at_once_at_one_backend_do_not_exceed_the_quota_together() {
    let nodes = Nodes::with_bucket(1);
    leave(&nodes, Some(5_000_000), None);
    let done: u64 = std::thread::scope(|scope| {
        let nodes = &nodes;
        let write = |n: usize| {
            let key = nodes.key_of(1, &format!("many-{n}"));
            let mut writer = Writer(Client::connect(nodes.nodes[n % 3].address));
            let answer = writer.put(&key, 1_000_000);
            if answer.status != 200 {
                assert_refused(&key, &answer);
            }
            u64::from(answer.status == 200)
        };
        let threads: Vec<_> = (0..16).map(|n| scope.spawn(move || write(n))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    assert!((4..=5).contains(&done), "{done} objects");
    assert_eq!(nodes.quota(0, None).usage.bytes, done * 1_000_000);
}
