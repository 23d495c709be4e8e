//! Uploads as the AWS tools make them over HTTPS: the body in chunks, with a
//! checksum behind it, signed or not. The connections move between nodes
//! meanwhile, so the node that verifies is not the one that knew the caller.

use std::process::Command;

use prism_lab::{Lab, LabName, LabSpec};

use crate::support::packets::{ClientResets, Watch};
use crate::support::{Cluster, say, turn};

/// Bodies for which boto3 was told which checksum to send, whatever its
/// version does of its own accord.
const TOLD_A_CHECKSUM: u32 = 24;

/// Runs a program to its end and gives what it printed.
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
    let mut python = cluster.lab.command("client", "python3").unwrap();
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
    let endpoint = cluster.lab.https_endpoint().unwrap();
    let aws = |arguments: &[&str]| {
        let mut command = cluster.lab.command("client", "aws").unwrap();
        // Debian 12's is older than its endpoint in the environment.
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
        cluster.lab.endpoint(),
        cluster.lab.https_endpoint().unwrap(),
    ] {
        let moved = cluster.sum("handoff", "exports_moved");
        let mut python = cluster.lab.command("client", "python3").unwrap();
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
    let name: LabName = format!("e{}", std::process::id()).parse().unwrap();
    let spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    // Where nobody is: without a switch nothing can be handed off.
    let spec = spec.configure_nodes(|config| {
        if let Some(switch) = &mut config.switch {
            switch.control.set_port(switch.control.port() + 1);
        }
    });
    let lab = Lab::up(spec).unwrap();
    let mut python = lab.command("client", "python3").unwrap();
    let printed = run(python.args([&script("chunks.py"), &lab.endpoint()]));
    assert_eq!(printed, "done\n");
    let relayed = lab.admin("fe0").unwrap()["requests"]["relayed"].as_u64();
    assert!(relayed.unwrap() > 100, "{relayed:?}");
}
