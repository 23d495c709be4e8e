//! Unmodified clients against a whole cluster: the AWS command line, boto3, curl and wrk.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use prism_lab::Family;

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{BUCKET, Cluster, say, turn};

/// Runs a program to its end and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}{errors}");
    text
}

#[test]
fn the_aws_command_line_moves_real_files() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let watch = Watch::all(&cluster, "aws");
    for family in Family::ALL {
        move_files_by_aws(&cluster, family);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

fn move_files_by_aws(cluster: &Cluster, family: Family) {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let sources = [("program", 7 << 20), ("text", 12_345), ("empty", 0)];
    for (name, len) in sources {
        let bytes = std::fs::read(env!("CARGO_BIN_EXE_prism")).unwrap();
        std::fs::write(file(name), &bytes[..len]).unwrap();
    }
    let aws = |arguments: &[&str]| {
        let mut command = cluster.lab.command("client", "aws").unwrap();
        // Debian 12's aws-cli ignores the endpoint in its environment.
        command.args(["--endpoint-url", &cluster.endpoint_over(family, false)]);
        run(command.args(arguments))
    };
    aws(&["s3", "mb", "s3://photos"]);
    for (name, _) in sources {
        aws(&["s3", "cp", &file(name), &format!("s3://photos/a/{name}")]);
    }
    let list = aws(&["s3", "ls", "s3://photos/a/"]);
    for (name, len) in sources {
        let line = list
            .lines()
            .find(|line| line.ends_with(&format!(" {name}")));
        assert!(line.unwrap().contains(&format!(" {len} ")), "{list}");
    }
    aws(&["s3", "cp", "--recursive", "s3://photos/a/", &file("back")]);
    for (name, _) in sources {
        let sent = std::fs::read(file(name)).unwrap();
        assert!(
            sent == std::fs::read(file(&format!("back/{name}"))).unwrap(),
            "{name}"
        );
    }
    aws(&["s3", "rm", "--recursive", "s3://photos/a/"]);
    assert_eq!(aws(&["s3", "ls", "s3://photos/"]), "");
    aws(&["s3", "rb", "s3://photos"]);
    assert!(!aws(&["s3", "ls"]).contains("photos"));
}

const BOTO3: &str = r#"
import boto3, hashlib, os, random
s3 = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"])
random.seed(4)
bodies = {f"dir/key {n}": random.randbytes(random.choice([1, 100, 5000, 70000, 900000])) for n in range(15)}
s3.create_bucket(Bucket="boto")
for key, body in bodies.items():
    answer = s3.put_object(Bucket="boto", Key=key, Body=body, Metadata={"n": str(len(body))})
    assert answer["ETag"] == '"' + hashlib.md5(body).hexdigest() + '"', answer
for key, body in bodies.items():
    head = s3.head_object(Bucket="boto", Key=key)
    assert head["ContentLength"] == len(body) and head["Metadata"] == {"n": str(len(body))}, head
    assert s3.get_object(Bucket="boto", Key=key)["Body"].read() == body
    part = s3.get_object(Bucket="boto", Key=key, Range="bytes=-1")
    assert part["Body"].read() == body[-1:]
pages = s3.get_paginator("list_objects_v2").paginate(Bucket="boto", PaginationConfig={"PageSize": 4})
assert [o["Key"] for page in pages for o in page["Contents"]] == sorted(bodies)
assert s3.list_objects_v2(Bucket="boto", Delimiter="/")["CommonPrefixes"] == [{"Prefix": "dir/"}]
try:
    s3.delete_bucket(Bucket="boto")
    raise SystemExit("a bucket with objects was deleted")
except s3.exceptions.ClientError as error:
    assert error.response["Error"]["Code"] == "BucketNotEmpty", error.response
for key in bodies:
    s3.delete_object(Bucket="boto", Key=key)
try:
    s3.get_object(Bucket="boto", Key="dir/key 0")
    raise SystemExit("a deleted object was read")
except s3.exceptions.NoSuchKey:
    pass
s3.delete_bucket(Bucket="boto")
print("done")
"#;

#[test]
fn boto3_works_with_its_pool_of_connections() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let watch = Watch::all(&cluster, "boto3");
    for family in Family::ALL {
        let accepted = cluster.sum("handoff", "accepted");
        let mut python = cluster.lab.command("client", "python3").unwrap();
        python.env("AWS_ENDPOINT_URL", cluster.endpoint_over(family, false));
        let printed = run(python.args(["-c", BOTO3]));
        assert_eq!(printed, "done\n");
        let accepted = cluster.sum("handoff", "accepted") - accepted;
        say(&format!("boto3 used {accepted} connections of {family}"));
        assert!(accepted < 10, "{accepted} connections: they are not kept");
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

#[test]
fn curl_fetches_objects_of_all_backends_over_one_connection() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let objects = cluster.one_on_each("curl", |n| 300_000 + n as u64);
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::all(&cluster, "curl");
    for family in Family::ALL {
        fetch_by_curl(&cluster, &objects, family);
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

fn fetch_by_curl(cluster: &Cluster, objects: &[Object], family: Family) {
    let dir = tempfile::tempdir().unwrap();
    let mut curl = cluster.lab.command("client", "curl").unwrap();
    let urls: Vec<&Object> = objects.iter().cycle().take(9).collect();
    for (n, object) in urls.iter().enumerate() {
        if n > 0 {
            curl.arg("--next");
        }
        curl.args(["--silent", "--show-error", "--fail", "--noproxy", "*"]);
        curl.args(["--write-out", "%{num_connects} %{local_port}\\n"]);
        for line in header_lines(cluster, object) {
            curl.args(["--header", &line]);
        }
        curl.arg("--output").arg(dir.path().join(n.to_string()));
        curl.arg(format!(
            "{}/{BUCKET}/{}",
            cluster.endpoint_over(family, false),
            object.key
        ));
    }
    let printed = run(&mut curl);
    let connects: Vec<&str> = printed.lines().map(|line| &line[..1]).collect();
    assert_eq!(
        connects,
        ["1", "0", "0", "0", "0", "0", "0", "0", "0"],
        "{printed}"
    );
    for (n, object) in urls.iter().enumerate() {
        let got = std::fs::read(dir.path().join(n.to_string())).unwrap();
        assert_eq!(got.len() as u64, object.len);
        object.check(0, &got);
    }
}

/// The signed header fields of a GET. `Host` is one: curl would leave out `:80`.
fn header_lines(cluster: &Cluster, object: &Object) -> Vec<String> {
    let head = String::from_utf8(Request::get(object).encode(cluster)).unwrap();
    let lines = head.lines().skip(1).filter(|line| !line.is_empty());
    lines.map(str::to_owned).collect()
}

#[test]
fn wrk_gets_no_error_from_any_backend() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(3);
    let mut objects = cluster.one_on_each("wrk", |_| 1000);
    objects.extend(cluster.one_on_each("wrk-large", |_| 200_000));
    cluster.put_all(&objects);
    cluster.assert_no_flows();
    let watch = Watch::events(&cluster, "wrk");
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("requests.lua");
    std::fs::write(&script, lua(&cluster, &objects)).unwrap();
    for family in Family::ALL {
        let moved = cluster.sum("handoff", "exports_moved");
        let report = wrk(&cluster, &script, family);
        let moved = cluster.sum("handoff", "exports_moved") - moved;
        let rate = report.lines().find(|line| line.starts_with("Requests/sec"));
        say(&format!(
            "wrk over {family}: {}, {moved} hand-offs",
            rate.unwrap()
        ));
        assert!(!report.contains("Socket errors"), "{report}");
        assert!(!report.contains("Non-2xx"), "{report}");
        assert!(moved > 100, "{moved} hand-offs");
    }
    cluster.assert_no_flows();
    watch.finish(ClientResets::AtItsEnd);
}

/// A script that asks for the objects in turn.
fn lua(cluster: &Cluster, objects: &[Object]) -> String {
    let mut script = "local requests = {\n".to_owned();
    for object in objects {
        let head = String::from_utf8(Request::get(object).encode(cluster)).unwrap();
        writeln!(script, "  {:?},", head).unwrap();
    }
    script +=
        "}\nlocal n = 0\nfunction request()\n  n = n % #requests + 1\n  return requests[n]\nend\n";
    script
}

fn wrk(cluster: &Cluster, script: &Path, family: Family) -> String {
    let mut wrk = cluster.lab.command("client", "wrk").unwrap();
    wrk.args(["-t1", "-c8", "-d2", "-s"]).arg(script);
    run(wrk.arg(cluster.endpoint_over(family, false)))
}
