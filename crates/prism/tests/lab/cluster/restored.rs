//! An etcd that is put back from a backup, and an etcd that has lost its data, with buckets and
//! keys that were deleted or changed meanwhile. No node acts by it, and after the recovery no
//! answered object is gone and no deleted key is let in.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use prism_config::ConfigFile;
use prism_signer::Signer;
use serde_json::{Value, json};

use super::lost::{SETTLED, lose_all, recover, wait_for_faults};
use super::{AT_ONCE, ctl, refused_ctl, seen_by, status_of};
use crate::support::client::{Answer, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const MADE_AGAIN: &str = "made-again";
const DELETED: &str = "deleted";
pub(super) const BACKENDS: [&str; 3] = ["be0", "be1", "be2"];
const CORS: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

pub(super) fn up() -> Cluster {
    up_with(|_| {})
}

pub(super) fn up_with(configure: impl FnOnce(&mut ConfigFile) + Send + 'static) -> Cluster {
    Cluster::up_with(3, |spec| {
        spec.etcd = true;
        spec.configure = Some(Box::new(move |config| {
            config.cluster.replicas = 2;
            config.cluster.etcd.as_mut().unwrap().lease_ttl_s = 2;
            configure(config);
        }));
    })
}

pub(super) fn ask(
    cluster: &Cluster,
    method: &str,
    (bucket, target): (&str, &str),
    body: &[u8],
) -> u16 {
    let request = Request::new(method, target)
        .bucket(bucket)
        .signing(body)
        .header("Content-Length", body.len().to_string());
    let request = [&request.encode(cluster), body].concat();
    let answer = cluster.connect().try_call(&request);
    // A node that does not hear from etcd may close a connection.
    answer.map_or(503, |answer| answer.status())
}

/// The answer of a node that hears from etcd.
fn get(cluster: &Cluster, bucket: &str, target: &str) -> Answer {
    let mut answer = None;
    eventually("an answer that is not 503", SETTLED, || {
        let request = Request::new("GET", target).bucket(bucket).encode(cluster);
        answer = cluster.connect().try_call(&request).ok();
        answer.as_ref().is_some_and(|answer| answer.status() != 503)
    });
    answer.unwrap()
}

pub(super) fn surely(
    cluster: &Cluster,
    method: &str,
    target: (&str, &str),
    body: &[u8],
    status: u16,
) {
    eventually(&format!("{method} {target:?} is {status}"), SETTLED, || {
        ask(cluster, method, target, body) == status
    });
}

pub(super) fn objects() -> Vec<Object> {
    let object = |n| Object::new(format!("k{n}"), 3_000);
    (0..12).map(object).collect()
}

pub(super) fn make(cluster: &Cluster, bucket: &str) {
    surely(cluster, "PUT", (bucket, ""), b"", 200);
}

fn delete(cluster: &Cluster, bucket: &str) {
    surely(cluster, "DELETE", (bucket, ""), b"", 204);
}

pub(super) fn fill(cluster: &Cluster, bucket: &str) {
    for object in objects() {
        let target = format!("/{}", object.key);
        surely(cluster, "PUT", (bucket, &target), object.bytes(), 200);
    }
}

/// The statuses of GETs of all objects, and the number of names that are listed.
pub(super) fn read_all(cluster: &Cluster, bucket: &str) -> (Vec<u16>, usize) {
    let objects = objects();
    let statuses = objects.iter().map(|object| {
        let answer = get(cluster, bucket, &format!("/{}", object.key));
        if answer.status() == 200 {
            object.check(0, &answer.body);
        }
        answer.status()
    });
    let statuses = statuses.collect();
    let listed = get(cluster, bucket, "/?list-type=2").body;
    let listed = String::from_utf8_lossy(&listed);
    (statuses, listed.matches("<Key>").count())
}

pub(super) fn assert_has_all(cluster: &Cluster, bucket: &str) {
    let all = objects().len();
    assert_eq!(read_all(cluster, bucket), (vec![200; all], all));
}

/// Copies the data of etcd while it does not run.
pub(super) fn back_up(cluster: &mut Cluster) -> PathBuf {
    back_up_with(cluster, |_| {})
}

/// The same with something else that is copied at that time.
pub(super) fn back_up_with(cluster: &mut Cluster, other: impl FnOnce(&Cluster)) -> PathBuf {
    let data = cluster.lab.config_path().with_file_name("etcd");
    let copy = data.with_file_name("etcd.backup");
    cluster.lab.kill("etcd").unwrap();
    copied(&data, &copy);
    other(cluster);
    cluster.lab.restart("etcd").unwrap();
    copy
}

pub(super) fn put_back(cluster: &mut Cluster, copy: &Path) {
    let data = cluster.lab.config_path().with_file_name("etcd");
    cluster.lab.kill("etcd").unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    copied(copy, &data);
    cluster.lab.restart("etcd").unwrap();
}

/// Has the nodes go on after they have noticed an older etcd.
pub(super) fn recover_all(cluster: &Cluster) -> Value {
    wait_for_faults(cluster, &BACKENDS);
    let mut said = Value::Null;
    // Each store tells its state a moment after it has noticed.
    eventually("all stores are heard", SETTLED, || {
        let (done, answer) = recover(cluster, &[]);
        said = answer;
        done
    });
    assert_eq!(said["writes_may_be_lost"], false, "{said:#}");
    said
}

pub(super) fn copied(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(done.unwrap().success());
}

#[test]
fn an_etcd_from_before_a_bucket_was_made_again_deletes_nothing() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, MADE_AGAIN);
    make(&cluster, DELETED);
    let backup = back_up(&mut cluster);
    for bucket in [MADE_AGAIN, DELETED] {
        delete(&cluster, bucket);
    }
    make(&cluster, MADE_AGAIN);
    fill(&cluster, MADE_AGAIN);
    assert_has_all(&cluster, MADE_AGAIN);

    put_back(&mut cluster, &backup);
    recover_all(&cluster);
    // The record in etcd may still be that of the earlier life.
    surely(&cluster, "PUT", (MADE_AGAIN, "/?cors"), CORS, 200);
    surely(&cluster, "GET", (MADE_AGAIN, "/?cors"), b"", 200);
    assert_has_all(&cluster, MADE_AGAIN);
    surely(&cluster, "GET", (DELETED, "/?location"), b"", 404);
    // The names can be used as before.
    make(&cluster, DELETED);
    fill(&cluster, DELETED);
    assert_has_all(&cluster, DELETED);
    assert_has_all(&cluster, MADE_AGAIN);
}

#[test]
fn a_backend_that_was_out_when_etcd_lost_its_data_brings_no_bucket_back() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, MADE_AGAIN);
    make(&cluster, DELETED);
    cluster.lab.kill("be2").unwrap();
    eventually("the others go on without be2", SETTLED, || {
        status_of(&seen_by(&cluster.lab, "be0"), "be2") == "out"
    });
    for bucket in [MADE_AGAIN, DELETED] {
        delete(&cluster, bucket);
    }
    make(&cluster, MADE_AGAIN);
    fill(&cluster, MADE_AGAIN);

    lose_all(&mut cluster);
    cluster.lab.restart("be2").unwrap();
    wait_for_faults(&cluster, &["be0", "be1", "be2"]);
    let (done, said) = recover(&cluster, &[]);
    assert!(done, "{said:#}");
    eventually("be2 has what it missed", SETTLED, || {
        status_of(&seen_by(&cluster.lab, "be0"), "be2") == "in-sync"
    });
    assert_has_all(&cluster, MADE_AGAIN);
    surely(&cluster, "GET", (DELETED, "/?location"), b"", 404);
    fill(&cluster, MADE_AGAIN);
}

/// The status of a listing by a key.
fn list_by(cluster: &Cluster, key: &str) -> u16 {
    try_list_by(cluster, key).map_or(503, |answer| answer.status())
}

fn try_list_by(cluster: &Cluster, key: &str) -> std::io::Result<Answer> {
    let signer = Signer::new(key, secret(key), "us-east-1");
    let request = Request::new("GET", "/?max-keys=1").bucket(MADE_AGAIN);
    let request = request.encode_by(&signer, cluster.service);
    cluster.connect().try_call(&request)
}

fn secret(key: &str) -> String {
    format!("{key}-has-this-secret")
}

fn add_key(cluster: &Cluster, key: &str) {
    let add = ["key", "new", key, "--secret-stdin", "--admin"];
    ctl(cluster, &add, &format!("{}\n", secret(key)));
}

fn wait_for_key(cluster: &Cluster, key: &str, status: u16) {
    eventually(&format!("{key} gets {status}"), SETTLED, || {
        (0..4).all(|_| list_by(cluster, key) == status)
    });
}

#[test]
fn an_etcd_from_before_a_key_was_deleted_or_limited_lets_nobody_in() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, MADE_AGAIN);
    for key in ["KEPT", "REVOKED", "LIMITED"] {
        add_key(&cluster, key);
        wait_for_key(&cluster, key, 200);
    }
    let backup = back_up(&mut cluster);
    wait_for_key(&cluster, "KEPT", 200);
    ctl(&cluster, &["key", "delete", "REVOKED"], "");
    ctl(&cluster, &["key", "set", "LIMITED", "--admin", "false"], "");
    add_key(&cluster, "LATER");
    wait_for_key(&cluster, "REVOKED", 403);
    wait_for_key(&cluster, "LIMITED", 403);
    wait_for_key(&cluster, "LATER", 200);

    put_back(&mut cluster, &backup);
    // From the first answer of that etcd on.
    let begun = std::time::Instant::now();
    while begun.elapsed() < 2 * AT_ONCE {
        for key in ["REVOKED", "LIMITED"] {
            assert!([403, 503].contains(&list_by(&cluster, key)), "{key}");
        }
    }
    wait_for_faults(&cluster, &BACKENDS);
    let refused = refused_ctl(&cluster, &["key", "delete", "KEPT"]);
    assert!(refused.contains("has an older copy"), "{refused}");
    wait_for_key(&cluster, "KEPT", 503);
    let text = try_list_by(&cluster, "KEPT").unwrap().text();
    assert!(
        text.contains("has an older copy") && text.contains("prism ctl cluster recover"),
        "{text}"
    );

    let mut planned = Value::Null;
    eventually("all stores are heard", SETTLED, || {
        let (done, answer) = recover(&cluster, &["--dry-run"]);
        planned = answer;
        done
    });
    let said = recover_all(&cluster);
    assert_eq!(said["users"], planned["users"], "{said:#}");
    assert_eq!(said["users"]["deleted"], json!(["REVOKED"]), "{said:#}");
    assert_eq!(said["users"]["limited"], json!(["LIMITED"]), "{said:#}");
    assert_eq!(said["users"]["missing"], json!(["LATER"]), "{said:#}");
    wait_for_key(&cluster, "KEPT", 200);
    for key in ["REVOKED", "LIMITED", "LATER"] {
        wait_for_key(&cluster, key, 403);
    }
    // The keys can be used as before.
    add_key(&cluster, "LATER");
    wait_for_key(&cluster, "LATER", 200);
}

#[test]
fn keys_come_back_from_their_backup_with_the_rights_that_they_had_last() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, MADE_AGAIN);
    for key in ["KEPT", "REVOKED", "LIMITED"] {
        add_key(&cluster, key);
        wait_for_key(&cluster, key, 200);
    }
    let file = cluster.lab.config_path().with_file_name("keys.backup");
    let file = file.to_str().unwrap();
    ctl(&cluster, &["backup", file], "");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A backup never replaces another one.
    let refused = refused_ctl(&cluster, &["backup", file]);
    assert!(refused.contains("exists"), "{refused}");
    ctl(&cluster, &["key", "delete", "REVOKED"], "");
    ctl(&cluster, &["key", "set", "LIMITED", "--admin", "false"], "");
    add_key(&cluster, "LATER");
    wait_for_key(&cluster, "REVOKED", 403);
    wait_for_key(&cluster, "LIMITED", 403);
    wait_for_key(&cluster, "LATER", 200);

    lose_all(&mut cluster);
    wait_for_faults(&cluster, &BACKENDS);
    let mut said = Value::Null;
    eventually("all stores are heard", SETTLED, || {
        let (done, answer) = recover(&cluster, &["--users", file]);
        said = answer;
        done
    });
    let users = &said["users"];
    assert_eq!(users["missing"], json!(["LATER"]), "{said:#}");
    let from_file = users["from_file"].as_array().unwrap();
    for (key, is_back) in [("KEPT", true), ("LIMITED", true), ("REVOKED", false)] {
        assert_eq!(from_file.contains(&json!(key)), is_back, "{said:#}");
    }
    wait_for_key(&cluster, "KEPT", 200);
    for key in ["REVOKED", "LIMITED", "LATER"] {
        wait_for_key(&cluster, key, 403);
    }
    // The lab's own key is back too.
    fill(&cluster, MADE_AGAIN);
    assert_has_all(&cluster, MADE_AGAIN);
}
