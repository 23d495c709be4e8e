//! Buckets and objects of several nodes: what was answered by one holds at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::nodes::{Client, Nodes};

/// Uploads under way in a bucket that is deleted.
const UPLOADS: usize = 2_000;

#[test]
fn an_object_is_the_same_at_every_node() {
    let nodes = Nodes::with_bucket(2);
    let mut clients = nodes.clients();
    for n in 0..30 {
        let body = vec![n; 1000 * usize::from(n)];
        let start = format!("/bkt/k{n}");
        let writer = usize::from(n % 3);
        let put = clients[writer].send(&format!("PUT {start}"), &[], &body);
        assert_eq!(put.status, 200, "{}", put.text());
        for client in &mut clients {
            let got = client.send(&format!("GET {start}"), &[], &[]);
            assert_eq!((got.status, got.body == body), (200, true), "{start}");
            assert_eq!(got.header("etag"), put.header("etag"));
        }
    }
    for client in &mut clients {
        let listed = client.send("GET /bkt?list-type=2", &[], &[]);
        assert_eq!(listed.elements("Key").len(), 30, "{}", listed.text());
        assert_eq!(listed.elements("ChecksumAlgorithm"), ["CRC64NVME"; 30]);
    }
    assert_eq!(clients[1].send("DELETE /bkt/k7", &[], &[]).status, 204);
    for client in &mut clients {
        assert_eq!(client.send("GET /bkt/k7", &[], &[]).status, 404);
    }
}

#[test]
fn the_node_that_reads_a_request_decides_which_bucket_its_host_names() {
    let nodes = Nodes::with_bucket(1);
    let mut clients = nodes.clients();
    let host = [("Host", "bkt.memory:80")];
    for owner in 0..3 {
        let key = nodes.key_of(owner, "dir/host");
        let put = clients[0].send(&format!("PUT /{key}"), &host, b"here");
        assert_eq!(put.status, 200, "{}", put.text());
        for client in &mut clients {
            assert_eq!(
                client.send(&format!("GET /bkt/{key}"), &[], &[]).text(),
                "here"
            );
        }
        let got = clients[0].send(&format!("GET /{key}"), &host, &[]);
        assert_eq!(got.text(), "here");
        // These nodes have no domains.
        for client in &mut clients[1..] {
            let got = client.send(&format!("GET /bkt/{key}"), &host, &[]);
            assert_eq!(got.text(), "here");
        }
    }
    let listed = clients[0].send("GET /?list-type=2", &host, &[]);
    assert_eq!(listed.elements("Key").len(), 3, "{}", listed.text());
}

#[test]
fn every_owner_of_a_key_hides_that_it_is_missing_as_the_node_that_read_the_request_says() {
    let nodes = Nodes::with_bucket(1);
    let mut clients = nodes.clients();
    let policy = "{\"Version\":\"2012-10-17\",\"Statement\":[{\"Effect\":\"Allow\",\
                  \"Principal\":\"*\",\"Action\":\"s3:GetObject\",\
                  \"Resource\":\"arn:aws:s3:::bkt/*\"}]}";
    let put = clients[0].send("PUT /bkt?policy", &[], policy.as_bytes());
    assert_eq!(put.status, 204, "{}", put.text());
    // The time for which nodes remember that there was no policy.
    std::thread::sleep(Duration::from_secs(1));
    for owner in 0..3 {
        let start = format!("GET /bkt/{}", nodes.key_of(owner, "none"));
        for client in &mut clients {
            assert_eq!(client.send_unsigned(&start).status, 403, "{start}");
            assert_eq!(client.send(&start, &[], &[]).status, 404, "{start}");
        }
    }
}

/// Clients try to delete a bucket while others write and delete its objects. An answered write
/// is there, and a deleted bucket has no objects.
#[test]
fn a_bucket_is_deleted_with_nothing_in_it_or_not_at_all() {
    let nodes = Nodes::with_bucket(1);
    let over = AtomicBool::new(false);
    let delete_again_and_again = || {
        let mut statuses = Vec::new();
        let mut clients = nodes.clients();
        for n in (0..3).cycle() {
            if over.load(Ordering::Relaxed) {
                break;
            }
            let client: &mut Client = &mut clients[n];
            statuses.push(client.send("DELETE /bkt", &[], &[]).status);
            if statuses.last() == Some(&204) {
                assert_eq!(client.send("PUT /bkt", &[], &[]).status, 200);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        statuses
    };
    let (stored, statuses) = std::thread::scope(|scope| {
        let mut clients = nodes.clients();
        let deleting = scope.spawn(delete_again_and_again);
        let mut stored = 0;
        for n in 0..400 {
            let client: &mut Client = &mut clients[n % 3];
            let mut call = |method: &str| client.send(&format!("{method} /bkt/k{n}"), &[], &[]);
            let status = call("PUT").status;
            assert!([200, 404, 503].contains(&status), "PUT {n}: {status}");
            if status == 200 {
                stored += 1;
                // The write was answered, so the object and its bucket are there.
                assert_eq!(call("GET").status, 200, "object {n} is gone");
                assert_eq!(call("DELETE").status, 204);
            }
        }
        over.store(true, Ordering::Relaxed);
        (stored, deleting.join().unwrap())
    });
    let deleted = statuses.iter().filter(|status| **status == 204).count();
    println!(
        "{stored} objects stored, {deleted} of {} deletions",
        statuses.len()
    );
    for status in &statuses {
        assert!([204, 404, 409].contains(status), "{status}");
    }
    assert!(stored > 0 && deleted > 0, "{stored} and {deleted}");
}

#[test]
fn a_bucket_with_many_uploads_is_deleted_at_once_and_is_empty_when_it_is_made_again() {
    let nodes = Nodes::with_bucket(2);
    let mut clients = nodes.clients();
    let cors = b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET\
        </AllowedMethod></CORSRule></CORSConfiguration>";
    assert_eq!(clients[1].send("PUT /bkt?cors", &[], cors).status, 200);
    for n in 0..UPLOADS {
        let begun = clients[n % 3].send(&format!("POST /bkt/u{n}?uploads"), &[], &[]);
        assert_eq!(begun.status, 200, "{}", begun.text());
    }
    let deleted = clients[2].send("DELETE /bkt", &[], &[]);
    assert_eq!(deleted.status, 204, "{}", deleted.text());
    for client in &mut clients {
        for query in ["", "?versioning", "?uploads", "?cors"] {
            assert_eq!(
                client.send(&format!("GET /bkt{query}"), &[], &[]).status,
                404
            );
        }
    }
    assert_eq!(clients[0].send("PUT /bkt", &[], &[]).status, 200);
    for client in &mut clients {
        let listed = client.send("GET /bkt?uploads", &[], &[]);
        assert_eq!(listed.status, 200, "{}", listed.text());
        assert!(listed.elements("Upload").is_empty(), "{}", listed.text());
        assert_eq!(client.send("GET /bkt?cors", &[], &[]).status, 404);
    }
    assert_eq!(clients[1].send("PUT /bkt/k", &[], b"k").status, 200);
    assert_eq!(clients[2].send("DELETE /bkt/k", &[], &[]).status, 204);
    assert_eq!(clients[0].send("DELETE /bkt", &[], &[]).status, 204);
}
