//! Uploads as the AWS tools make them over HTTPS: the body in chunks, with a checksum behind
//! it, signed or not. The connections move meanwhile, so another node verifies than the one
//! that authenticated the caller.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prism_config::ConfigFile;
use prism_lab::Family;
use prism_store::{ObjectMeta, Store, UploadName};

use crate::support::packets::{ClientResets, Watch};
use crate::support::{BUCKET, Cluster, eventually, python, say, turn};

/// The longest time until a condition holds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Bodies for which the test tells boto3 which checksum to send, whatever its version does by
/// itself.
const TOLD_A_CHECKSUM: u32 = 24;

/// Runs a program to its end and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

fn script(name: &str) -> String {
    format!("{}/tests/lab/uploads/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn https_cluster() -> Cluster {
    Cluster::up_with(3, |spec| spec.tls = true)
}

#[test]
fn boto3_uploads_over_https_in_chunks_with_checksums() {
    let Some(_turn) = turn() else { return };
    let cluster = https_cluster();
    let watch = Watch::all(&cluster, "boto3-uploads");
    let moved = cluster.sum("handoff", "exports_moved");
    let mut python = python(&cluster.lab);
    let printed = run(python.arg(script("boto.py")));
    let moved = cluster.sum("handoff", "exports_moved") - moved;
    let chunked: u32 = printed.trim().parse().unwrap();
    say(&format!("{chunked} bodies in chunks, {moved} hand-offs"));
    assert!(chunked >= TOLD_A_CHECKSUM, "{chunked} bodies in chunks");
    assert!(moved > 10, "{moved} hand-offs");
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
}

#[test]
fn the_aws_command_line_uploads_over_https() {
    let Some(_turn) = turn() else { return };
    let cluster = https_cluster();
    let watch = Watch::all(&cluster, "aws-uploads");
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let endpoint = cluster.endpoint_over(Family::V6, true);
    let aws = |arguments: &[&str]| {
        let mut command = cluster.lab.command("client", "aws").unwrap();
        // Debian 12's aws-cli ignores the endpoint in its environment.
        command.args(["--endpoint-url", &endpoint]);
        run(command.args(arguments))
    };
    let program = std::fs::read(env!("CARGO_BIN_EXE_prism")).unwrap();
    aws(&["s3", "mb", "s3://uploads"]);
    for len in [0, 1, 100 << 10, 3 << 20] {
        let (name, url) = (file("sent"), format!("s3://uploads/{len}"));
        std::fs::write(&name, &program[..len]).unwrap();
        aws(&["s3", "cp", &name, &url]);
        aws(&["s3", "cp", &url, &file("back")]);
        assert!(
            std::fs::read(file("back")).unwrap() == program[..len],
            "{len}"
        );
        let key = format!("sha256/{len}");
        let put = [
            "s3api",
            "put-object",
            "--bucket",
            "uploads",
            "--body",
            &name,
        ];
        let sum = ["--checksum-algorithm", "SHA256", "--key", &key];
        let printed = aws(&[&put[..], &sum].concat());
        assert!(printed.contains("ChecksumSHA256"), "{printed}");
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
}

#[test]
fn chunks_of_every_form_are_verified_behind_a_hand_off() {
    let Some(_turn) = turn() else { return };
    let cluster = https_cluster();
    for endpoint in [
        cluster.endpoint_over(Family::V4, false),
        cluster.endpoint_over(Family::V6, true),
    ] {
        let moved = cluster.sum("handoff", "exports_moved");
        let mut python = python(&cluster.lab);
        let printed = run(python.args([&script("chunks.py"), &endpoint]));
        assert_eq!(printed, "done\n");
        let moved = cluster.sum("handoff", "exports_moved") - moved;
        say(&format!("{endpoint}: {moved} hand-offs"));
        assert!(moved > 10, "{moved} hand-offs");
    }
}

#[test]
fn chunks_of_every_form_are_verified_behind_a_relay() {
    let Some(_turn) = turn() else { return };
    relays_only("chunks.py");
}

#[test]
fn a_presigned_url_stores_no_other_body_where_it_is_served_or_handed_off_to() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let (moved, served) = (
        cluster.sum("handoff", "exports_moved"),
        cluster.sum("requests", "served_direct"),
    );
    let mut python = python(&cluster.lab);
    let printed = run(python.args([
        &script("presigned.py"),
        &cluster.endpoint_over(Family::V6, false),
    ]));
    assert_eq!(printed, "done\n");
    assert!(cluster.sum("handoff", "exports_moved") - moved > 10);
    assert!(cluster.sum("requests", "served_direct") - served > 50);
}

#[test]
fn a_presigned_url_stores_no_other_body_behind_a_relay() {
    let Some(_turn) = turn() else { return };
    relays_only("presigned.py");
}

/// Runs a script against a cluster that hands nothing off.
fn relays_only(name: &str) {
    let cluster = Cluster::relaying(3);
    let mut python = python(&cluster.lab);
    let printed = run(python.args([&script(name), &cluster.lab.endpoint()]));
    assert_eq!(printed, "done\n");
    let relayed = cluster.counter("fe0", "requests", "relayed");
    assert!(relayed > 100, "{relayed}");
}

#[test]
fn an_upload_that_nobody_goes_on_with_is_gone_after_its_days_and_no_other() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| {
        spec.configure = Some(Box::new(|config| config.store.expire_uploads_days = 7));
    });
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let [abandoned, slow, young] =
        ["abandoned", "slow", "young"].map(|label| cluster.key_on("be0", label));
    cluster.lab.stop("be0").unwrap();
    let path = &config.node("be0").unwrap().store;
    let store = Store::open(path, prism_store::Config::default()).unwrap();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let now_ms = u64::try_from(now_ms.as_millis()).unwrap();
    let days_ago = |days: u64| ObjectMeta {
        created_ms: now_ms - days * 86_400_000,
        ..ObjectMeta::default()
    };
    for (key, begun, filled) in [(&abandoned, 9, 8), (&slow, 9, 6), (&young, 6, 6)] {
        let id = store
            .uploads()
            .create(BUCKET, key, days_ago(begun))
            .unwrap();
        let bucket = BUCKET;
        let part = store
            .uploads()
            .begin_part(UploadName { bucket, key, id }, 1, Some(0));
        part.unwrap().commit(days_ago(filled)).unwrap();
    }
    drop(store);
    cluster.lab.restart("be0").unwrap();
    let mut listed = String::new();
    eventually("the abandoned one is gone", PATIENCE, || {
        let answer = cluster.connect().call(&cluster.request("GET", "?uploads="));
        let status = answer.status();
        listed = String::from_utf8(answer.body).unwrap();
        status == 200 && !listed.contains(&format!("<Key>{abandoned}</Key>"))
    });
    for key in [slow, young] {
        assert!(listed.contains(&format!("<Key>{key}</Key>")), "{listed}");
    }
}
