//! Keys with limited rights: each request is judged by its own key, at every node that reads it,
//! and a right that is taken away is gone within a second.

mod cases;

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use prism_config::RelayUpTo;
use prism_signer::{Body, Signer};
use serde_json::Value;
use time::OffsetDateTime;

use crate::refill::ctl;
use crate::support::client::{Answer, Client, Request, signed};
use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, eventually, say, turn};
use cases::{CASES, Case, GET, HEAD, SOURCE};

/// The time within which a change of a right counts everywhere: a second, and the requests that
/// find it out.
const WITHIN: Duration = Duration::from_millis(1100);

/// A cluster that hands every GET off, so that a connection is at the owner of its last object.
fn up() -> Cluster {
    Cluster::up_with(2, |spec| {
        spec.etcd = true;
        spec.relay_up_to = RelayUpTo::Bytes(0);
    })
}

/// Makes a key without rights.
pub fn new_key(cluster: &Cluster, name: &str) -> Signer {
    let text = ctl(cluster, &["key", "new", name, "--json"]);
    let made: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(made["admin"], false, "{text}");
    let secret = made["secret_key"].as_str().unwrap();
    Signer::new(name, secret, "us-east-1")
}

/// Makes a key with these rights on the bucket.
fn key_with(cluster: &Cluster, name: &str, rights: &[&str]) -> Signer {
    let signer = new_key(cluster, name);
    if !rights.is_empty() {
        let command = ["bucket", "allow", BUCKET, "--key", name];
        ctl(cluster, &[&command, rights].concat());
    }
    signer
}

/// A request with its body, signed by a key, or by nobody.
fn request(cluster: &Cluster, signer: Option<&Signer>, case: &Case, target: &str) -> Vec<u8> {
    let host = cluster.service.to_string();
    let mut head = Vec::new();
    match signer {
        Some(signer) => {
            let mut request = Request::new(case.method, target).signing(case.body);
            if case.method.starts_with('P') {
                request = request.header("Content-Length", case.body.len().to_string());
            }
            for (name, value) in case.fields {
                request = request.signed_header(name, *value);
            }
            head.extend(request.encode_by(signer, cluster.service));
        }
        None => {
            let length = case.body.len();
            let start = format!("{} /{BUCKET}{target} HTTP/1.1\r\n", case.method);
            head.extend(format!("{start}Host: {host}\r\nContent-Length: {length}\r\n").bytes());
            for (name, value) in case.fields {
                head.extend(format!("{name}: {value}\r\n").bytes());
            }
            head.extend(b"\r\n");
        }
    }
    [head, case.body.to_vec()].concat()
}

/// Whether the answer is that of an allowed request. Any other denial than `AccessDenied` fails.
fn is_allowed(what: &str, answer: &Answer) -> bool {
    let status = answer.status();
    assert!(status < 500, "{what}: {status} {}", answer.text());
    if status == 403 && !answer.body.is_empty() {
        assert!(
            answer.text().contains("<Code>AccessDenied<"),
            "{what}: {}",
            answer.text()
        );
    }
    status != 403
}

/// Brings a connection to the backend `host`; one at the frontend is a new one.
fn bring_to(cluster: &Cluster, client: &mut Client, host: &str) {
    if host == "fe0" {
        *client = cluster.connect();
    } else {
        client.get(cluster, &Object::new(cluster.key_on(host, "at"), 100));
    }
}

#[test]
fn each_request_of_a_connection_is_judged_by_its_own_key_at_every_node() {
    let Some(_turn) = turn() else { return };
    let cluster = up();
    let objects = ["at", "k"].map(|label| cluster.one_on_each(label, |_| 100));
    cluster.put_all(&objects.concat());
    cluster.put_all(&[Object::new(SOURCE.to_owned(), 100)]);
    let keys = [
        ("none", key_with(&cluster, "none", &[])),
        ("read", key_with(&cluster, "read", &["--read"])),
        ("write", key_with(&cluster, "write", &["--write"])),
        ("owner", key_with(&cluster, "owner", &["--owner"])),
        ("both", key_with(&cluster, "both", &["--read", "--write"])),
    ];
    known_everywhere(&cluster, &keys[4].1);
    let mut judged = 0;
    for place in ["fe0", "be0", "be1"] {
        for owner in ["be0", "be1"] {
            let key = cluster.key_on(owner, "k");
            let mut client = cluster.connect();
            for case in CASES {
                let target = case.target.replace("KEY", &key);
                for (name, signer) in &keys {
                    let what = format!("{} {target} by {name} at {place}", case.method);
                    if place == "fe0" || *name == "none" {
                        bring_to(&cluster, &mut client, place);
                    }
                    let answer = client.call(&request(&cluster, Some(signer), case, &target));
                    let expected = case.needs.contains(name);
                    assert_eq!(
                        is_allowed(&what, &answer),
                        expected,
                        "{what}: {}",
                        answer.text()
                    );
                    judged += 1;
                    if !answer.keep_alive() {
                        client = cluster.connect();
                        bring_to(&cluster, &mut client, place);
                    }
                }
                let answer = client.call(&request(&cluster, None, case, &target));
                let what = format!("{} {target} by nobody at {place}", case.method);
                assert!(!is_allowed(&what, &answer), "{what}");
                if !answer.keep_alive() {
                    client = cluster.connect();
                }
            }
            presigned(&cluster, &keys, &key);
        }
    }
    say(&format!("{judged} requests judged"));
    shown(&cluster, &keys);
    parts(&cluster, &keys[4].1);
}

/// Waits until every node knows the key.
fn known_everywhere(cluster: &Cluster, signer: &Signer) {
    for place in ["fe0", "be0", "be1"] {
        eventually("the key is known", WITHIN, || {
            let mut client = cluster.connect();
            bring_to(cluster, &mut client, place);
            let target = format!("/{}", cluster.key_on("be0", "k"));
            let get = request(cluster, Some(signer), &GET, &target);
            client.call(&get).status() == 200
        });
    }
}

/// URLs that are signed by each key allow what the key allows.
fn presigned(cluster: &Cluster, keys: &[(&str, Signer)], key: &str) {
    let host = cluster.service.to_string();
    let mut client = cluster.connect();
    for (name, signer) in keys {
        for (method, needs) in [("GET", ["read", "both"]), ("PUT", ["write", "both"])] {
            let target = format!("/{BUCKET}/{key}");
            let now = OffsetDateTime::now_utc();
            let url = signer.presign(method, &target, &host, Body::Unsigned, 60, now);
            let head = format!("{method} {} HTTP/1.1\r\nHost: {host}\r\n", url.unwrap());
            let answer = client.call(format!("{head}Content-Length: 0\r\n\r\n").as_bytes());
            let what = format!("presigned {method} by {name}");
            assert_eq!(is_allowed(&what, &answer), needs.contains(name), "{what}");
            if !answer.keep_alive() {
                client = cluster.connect();
            }
        }
    }
}

/// ListBuckets shows the bucket to keys with a right on it.
fn shown(cluster: &Cluster, keys: &[(&str, Signer)]) {
    let host = cluster.service.to_string();
    for (name, signer) in keys {
        let list = signed(signer, &host, "GET", "/", b"").unwrap();
        let answer = cluster.connect().call(&list);
        assert_eq!(answer.status(), 200, "{}", answer.text());
        let is_shown = answer.text().contains(&format!("<Name>{BUCKET}</Name>"));
        assert_eq!(is_shown, *name != "none", "{name}: {}", answer.text());
    }
    // An owner of a name makes that bucket, and no other.
    let command = ["bucket", "allow", "made-by-key", "--key", "none", "--owner"];
    ctl(cluster, &command);
    let (_, signer) = &keys[0];
    let ask = |method: &str, target: &str| {
        let request = signed(signer, &host, method, target, b"").unwrap();
        cluster.connect().call(&request).status()
    };
    eventually("the right counts", WITHIN, || {
        ask("PUT", "/made-by-key") == 200
    });
    assert_eq!(ask("PUT", "/made-by-another"), 403);
    assert_eq!(ask("PUT", "/made-by-key/k"), 403);
    assert_eq!(ask("DELETE", "/made-by-key"), 204);
}

/// An upload in parts, with a copied part, by a key that may read and write.
fn parts(cluster: &Cluster, signer: &Signer) {
    let host = cluster.service.to_string();
    let mut client = cluster.connect();
    let mut ask = |method: &str, target: &str, body: &[u8]| {
        let target = format!("/{BUCKET}/{target}");
        let answer = client.call(&signed(signer, &host, method, &target, body).unwrap());
        assert_eq!(answer.status(), 200, "{method} {target}: {}", answer.text());
        answer
    };
    let begun = ask("POST", "whole?uploads", b"").text();
    let (_, rest) = begun.split_once("<UploadId>").unwrap();
    let (upload, _) = rest.split_once("</UploadId>").unwrap();
    let part = ask(
        "PUT",
        &format!("whole?partNumber=1&uploadId={upload}"),
        b"part",
    );
    let etag = part.header("etag").to_owned();
    let complete = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part>\
         </CompleteMultipartUpload>"
    );
    ask(
        "POST",
        &format!("whole?uploadId={upload}"),
        complete.as_bytes(),
    );
    assert_eq!(ask("GET", "whole", b"").body, b"part");
}

#[test]
fn a_right_that_is_taken_away_is_gone_within_a_second_on_open_connections() {
    let Some(_turn) = turn() else { return };
    let cluster = up();
    let objects: Vec<_> = cluster.one_on_each("at", |_| 100);
    cluster.put_all(&objects);
    let reader = key_with(&cluster, "reader", &["--read"]);
    let policy = format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Deny","Principal":{{"AWS":"reader"}},"Action":"s3:Get*","Resource":"arn:aws:s3:::{BUCKET}/*"}}]}}"#
    );
    let mut clients = open_at_each(&cluster);
    let mut all_are = |what: &str, status: u16| {
        let begun = Instant::now();
        eventually(what, WITHIN, || {
            at_each(&cluster, &mut clients, Some(&reader), &objects) == [status; 3]
        });
        say(&format!("{what}: {:?}", begun.elapsed()));
    };
    all_are("the new key counts", 200);
    ctl(
        &cluster,
        &["bucket", "deny", BUCKET, "--key", "reader", "--read"],
    );
    all_are("the right is gone", 403);
    ctl(
        &cluster,
        &["bucket", "allow", BUCKET, "--key", "reader", "--read"],
    );
    all_are("the right is back", 200);
    put_policy(&cluster, &policy);
    all_are("the policy denies", 403);
    put_policy(&cluster, &policy.replace("\"reader\"", "\"another\""));
    all_are("the policy denies others", 200);
    ctl(&cluster, &["key", "delete", "reader"]);
    all_are("the key is gone", 403);
}

/// A connection at the frontend and one at each backend.
fn open_at_each(cluster: &Cluster) -> Vec<Client> {
    let at = |host: &&str| {
        let mut client = cluster.connect();
        bring_to(cluster, &mut client, host);
        client
    };
    ["fe0", "be0", "be1"].iter().map(at).collect()
}

/// The answers to one request on each of these connections, which stay where they are: a HEAD at
/// the frontend, a GET of its own object at each backend.
fn at_each(
    cluster: &Cluster,
    clients: &mut [Client],
    signer: Option<&Signer>,
    objects: &[Object],
) -> [u16; 3] {
    let cases = [&HEAD, &GET, &GET];
    let mut own = [&objects[0], &objects[0], &objects[1]].into_iter();
    let mut clients = clients.iter_mut();
    cases.map(|case| {
        let target = format!("/{}", own.next().unwrap().key);
        let client = clients.next().unwrap();
        client
            .call(&request(cluster, signer, case, &target))
            .status()
    })
}

fn put_policy(cluster: &Cluster, policy: &str) {
    let put = Request::new("PUT", "?policy")
        .signing(policy.as_bytes())
        .header("Content-Length", policy.len().to_string());
    let request = [put.encode(cluster), policy.as_bytes().to_vec()].concat();
    let answer = cluster.connect().call(&request);
    assert_eq!(answer.status(), 204, "{}", answer.text());
}

#[test]
fn a_policy_knows_the_address_of_the_client_after_a_hand_off() {
    let Some(_turn) = turn() else { return };
    let cluster = up();
    let objects: Vec<_> = cluster.one_on_each("at", |_| 100);
    cluster.put_all(&objects);
    let addresses = cluster.lab.addresses("client").unwrap();
    let addresses: Vec<_> = addresses.iter().map(|ip| format!("\"{ip}\"")).collect();
    let addresses = addresses.join(",");
    let allow = |operator: &str| {
        put_policy(
            &cluster,
            &format!(
                r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::{BUCKET}/*","Condition":{{"{operator}":{{"aws:SourceIp":[{addresses}]}},"Bool":{{"aws:SecureTransport":"false"}}}}}}]}}"#
            ),
        );
    };
    let mut clients = open_at_each(&cluster);
    let mut all_are = |status: u16| {
        eventually("the policy counts", WITHIN, || {
            at_each(&cluster, &mut clients, None, &objects) == [status; 3]
        });
    };
    all_are(403);
    allow("IpAddress");
    all_are(200);
    allow("NotIpAddress");
    all_are(403);
}

#[test]
fn a_changed_file_of_keys_counts_within_a_second() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up_with(2, |spec| spec.relay_up_to = RelayUpTo::Bytes(0));
    let objects: Vec<_> = cluster.one_on_each("at", |_| 100);
    cluster.put_all(&objects);
    let path = cluster.lab.config_path().with_file_name("credentials.toml");
    let admin = std::fs::read_to_string(&path).unwrap();
    let write = |rights: &str| {
        let key = "access_key = \"reader\"\nsecret_key = \"secret\"";
        let text = format!("{admin}[[credential]]\n{key}\n{rights}\n");
        let new = path.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::set_permissions(&new, PermissionsExt::from_mode(0o600)).unwrap();
        std::fs::rename(new, &path).unwrap();
    };
    let reader = Signer::new("reader", "secret", "us-east-1");
    let mut clients = open_at_each(&cluster);
    let mut all_are = |what: &str, status: u16| {
        let begun = Instant::now();
        eventually(what, WITHIN, || {
            at_each(&cluster, &mut clients, Some(&reader), &objects) == [status; 3]
        });
        say(&format!("{what}: {:?}", begun.elapsed()));
    };
    all_are("the key is not known", 403);
    write(&format!("buckets = {{ {BUCKET} = [\"read\"] }}"));
    all_are("the key counts", 200);
    write("admin = false");
    all_are("the right is gone", 403);
    // As before there were rights: the record says nothing about them.
    write("");
    all_are("the key has every right", 200);
    let said = cluster.nodes().into_iter().all(|host| {
        let log = std::fs::read_to_string(cluster.lab.log_path(&host)).unwrap();
        log.contains("says neither admin nor buckets") && log.contains("reader")
    });
    assert!(said, "every node warns");
    let prism = env!("CARGO_BIN_EXE_prism");
    let run = |arguments: &[&str]| {
        let mut command = cluster.lab.command("fe0", prism).unwrap();
        let output = command
            .args(arguments)
            .arg(cluster.lab.config_path())
            .output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    };
    let warned = run(&["check"]);
    assert!(
        warned.contains("the key reader may do everything"),
        "{warned}"
    );
    let by_hand = run(&["ctl", "key", "new", "other", "--config"]);
    assert!(
        by_hand.contains("edit this file on every node"),
        "{by_hand}"
    );
    assert!(by_hand.contains("access_key = \"other\""), "{by_hand}");
}
