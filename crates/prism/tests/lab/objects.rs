//! S3 beyond GET and PUT by unmodified clients, against a cluster of several backends: uploads
//! in parts, copies, listings, deletions, presigned URLs. Every byte is compared.

use std::process::Command;

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
