//! S3 as clients use it beyond GET and PUT, against a whole cluster of several
//! backends: uploads in parts, copies, listings, deletions, presigned URLs. The
//! clients are as they are installed; every byte is compared.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    reason = "test code"
)]

mod support;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::client::Request;
use support::packets::{ClientResets, Watch};
use support::{Cluster, say, turn};

/// Runs a program to its end and gives what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn boto3(cluster: &Cluster, script: &str) {
    let path = format!("{}/tests/objects/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut python = cluster.lab.command("client", "python3").unwrap();
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
fn the_aws_command_line_moves_and_copies_files_of_many_parts() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let mut bytes = vec![0; 60 << 20];
    fastrand::Rng::with_seed(11).fill(&mut bytes);
    std::fs::write(file("large"), &bytes).unwrap();
    std::fs::create_dir(file("tree")).unwrap();
    for n in 0..40 {
        std::fs::write(file(&format!("tree/{n}")), &bytes[n..2 * n + 3]).unwrap();
    }
    // Some versions presign with version 2 unless told.
    let config = "[default]\ns3 =\n  signature_version = s3v4\n";
    std::fs::write(file("config"), config).unwrap();
    let aws = |arguments: &[&str]| {
        let mut command = cluster.lab.command("client", "aws").unwrap();
        command.env("AWS_CONFIG_FILE", file("config"));
        // Debian 12's is older than its endpoint in the environment.
        command.args(["--endpoint-url", &cluster.lab.endpoint()]);
        run(command.args(arguments))
    };
    aws(&["s3", "mb", "s3://many"]);
    aws(&["s3", "cp", &file("large"), "s3://many/large"]);
    aws(&["s3", "cp", "s3://many/large", "s3://many/copy of large"]);
    aws(&["s3", "cp", "s3://many/copy of large", &file("back")]);
    assert!(std::fs::read(file("back")).unwrap() == bytes);
    aws(&["s3", "sync", &file("tree"), "s3://many/tree/"]);
    aws(&["s3", "sync", "s3://many/tree/", &file("again")]);
    for n in 0..40 {
        let got = std::fs::read(file(&format!("again/{n}"))).unwrap();
        assert!(got == bytes[n..2 * n + 3], "{n}");
    }
    aws(&["s3", "mv", "s3://many/large", "s3://many/moved"]);
    let list = aws(&["s3", "ls", "s3://many/"]);
    assert!(
        list.contains("copy of large") && list.contains("moved"),
        "{list}"
    );
    assert!(
        !list.contains(" large\n") || list.contains("copy of large\n"),
        "{list}"
    );
    let url = aws(&["s3", "presign", "s3://many/moved"]);
    let mut curl = cluster.lab.command("client", "curl").unwrap();
    curl.args([
        "--silent",
        "--fail",
        "--noproxy",
        "*",
        "--output",
        &file("signed"),
    ]);
    run(curl.arg(url.trim()));
    assert!(std::fs::read(file("signed")).unwrap() == bytes);
    aws(&["s3", "rm", "--recursive", "s3://many/"]);
    aws(&["s3", "rb", "s3://many"]);
    cluster.assert_no_flows();
}

#[test]
fn s3cmd_works_with_its_defaults() {
    let Some(_turn) = turn() else { return };
    let found = Command::new("s3cmd").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CI").is_none(), "CI must have s3cmd");
        say("SKIPPED: s3cmd is not installed");
        return;
    }
    let cluster = Cluster::up(3);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let mut bytes = vec![0; 33 << 20];
    fastrand::Rng::with_seed(12).fill(&mut bytes);
    std::fs::write(file("large"), &bytes).unwrap();
    std::fs::write(file("config"), "").unwrap();
    let host = cluster.service.to_string();
    let s3cmd = |arguments: &[&str]| {
        let credential = cluster.lab.credential();
        let mut command = cluster.lab.command("client", "s3cmd").unwrap();
        command.args(["--config", &file("config"), "--no-ssl", "--no-progress"]);
        command.args(["--host", &host, "--host-bucket", &host]);
        command.args(["--access_key", &credential.access_key]);
        command.args(["--secret_key", &credential.secret_key]);
        run(command.args(arguments))
    };
    s3cmd(&["mb", "s3://cmd"]);
    // In parts of 15 MiB.
    s3cmd(&["put", &file("large"), "s3://cmd/dir/large"]);
    s3cmd(&["cp", "s3://cmd/dir/large", "s3://cmd/copy"]);
    s3cmd(&["get", "s3://cmd/copy", &file("back")]);
    assert!(std::fs::read(file("back")).unwrap() == bytes);
    let list = s3cmd(&["ls", "s3://cmd/"]);
    assert!(
        list.contains("DIR") && list.contains("s3://cmd/copy"),
        "{list}"
    );
    s3cmd(&["del", "--recursive", "--force", "s3://cmd/"]);
    s3cmd(&["rb", "s3://cmd"]);
    cluster.assert_no_flows();
}

/// While objects are written and deleted, others try to delete their bucket: a
/// write that was answered is there, and a bucket that was deleted has nothing.
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
            let call = |method: &str, client: &mut support::client::Client| {
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
                // Answered, so it is there, and with it its bucket.
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
