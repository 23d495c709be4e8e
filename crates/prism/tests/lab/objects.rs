//! S3 beyond GET and PUT by unmodified clients, against a cluster of several backends: uploads
//! in parts, copies, listings, deletions, presigned URLs. Every byte is compared.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::client::{Client, Request};
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, python, say, turn};

/// Runs a program to its end and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn boto3(cluster: &Cluster, script: &str) {
    let path = format!("{}/tests/lab/objects/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut python = python(&cluster.lab);
    let printed = run(python.arg(path));
    assert_eq!(printed.lines().last(), Some("done"), "{printed}");
    for line in printed.lines().filter(|line| *line != "done") {
        say(line);
    }
}

#[test]
fn boto3_uploads_in_parts_and_reads_every_way() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let watch = Watch::all(&cluster, "boto3-parts");
    let moved = cluster.sum("handoff", "exports_moved");
    boto3(&cluster, "parts.py");
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    say(&format!("{moved} hand-offs"));
    assert!(moved >= 3, "{moved} hand-offs");
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
}

#[test]
fn boto3_copies_lists_deletes_and_tags_over_all_backends() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let watch = Watch::all(&cluster, "boto3-many");
    boto3(&cluster, "many.py");
    // urllib has the server close first, and such a flow lasts a minute.
    watch.finish(ClientResets::AtItsEnd);
}

#[test]
fn boto3_keeps_versions_of_objects_on_all_backends() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let watch = Watch::events(&cluster, "boto3-versions");
    boto3(&cluster, "versions.py");
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
}

/// Clients try to delete a bucket while others write and delete its objects. An answered write
/// is there, and a deleted bucket has no objects.
#[test]
fn a_bucket_is_deleted_with_nothing_in_it_or_not_at_all() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let over = AtomicBool::new(false);
    let statuses = std::thread::scope(|scope| {
        let deleting = scope.spawn(|| {
            let mut statuses = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let mut client = cluster.connect();
                let delete = Request::new("DELETE", "").bucket("contested");
                statuses.push(client.call(&delete.encode(&cluster)).status());
                if statuses.last() == Some(&204) {
                    let create = Request::new("PUT", "").bucket("contested");
                    assert_eq!(client.call(&create.encode(&cluster)).status(), 200);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            statuses
        });
        let mut client = cluster.connect();
        let create = Request::new("PUT", "").bucket("contested");
        assert_eq!(client.call(&create.encode(&cluster)).status(), 200);
        let mut stored = 0;
        for n in 0..400 {
            let target = format!("/key-{n}");
            let call = |method: &str, client: &mut Client| {
                let request = Request::new(method, &target).bucket("contested");
                let request = match method {
                    "PUT" => request.header("Content-Length", "0"),
                    _ => request,
                };
                client.call(&request.encode(&cluster)).status()
            };
            let status = call("PUT", &mut client);
            assert!([200, 404, 503].contains(&status), "PUT {n}: {status}");
            if status == 200 {
                stored += 1;
                // The write was answered, so the object and its bucket are there.
                assert_eq!(call("GET", &mut client), 200, "object {n} is gone");
                assert_eq!(call("DELETE", &mut client), 204);
            }
        }
        over.store(true, Ordering::Relaxed);
        (stored, deleting.join().unwrap())
    });
    let (stored, statuses) = statuses;
    let deleted = statuses.iter().filter(|status| **status == 204).count();
    say(&format!(
        "{stored} objects stored, {deleted} of {} deletions",
        statuses.len()
    ));
    for status in &statuses {
        assert!([204, 404, 409].contains(status), "{status}");
    }
    assert!(
        stored > 0 && deleted > 0,
        "{stored} stored, {deleted} deleted"
    );
    cluster.assert_no_flows();
}
