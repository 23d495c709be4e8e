//! An etcd that is put back from a backup, and an etcd that has lost its data, with buckets that
//! were deleted or made again meanwhile. No backend deletes an answered object because of it.

use std::path::PathBuf;
use std::process::Command;

use super::lost::{SETTLED, lose_all, recover, wait_for_faults};
use super::{seen_by, status_of};
use crate::support::client::{Answer, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const MADE_AGAIN: &str = "made-again";
const DELETED: &str = "deleted";
const CORS: &[u8] = b"<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
    <AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>";

fn up() -> Cluster {
    Cluster::up_with(3, |spec| {
        spec.etcd = true;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            config.cluster.etcd.as_mut().unwrap().lease_ttl_s = 2;
        }));
    })
}

fn ask(cluster: &Cluster, method: &str, (bucket, target): (&str, &str), body: &[u8]) -> u16 {
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

fn surely(cluster: &Cluster, method: &str, target: (&str, &str), body: &[u8], status: u16) {
    eventually(&format!("{method} {target:?} is {status}"), SETTLED, || {
        ask(cluster, method, target, body) == status
    });
}

fn objects() -> Vec<Object> {
    let object = |n| Object::new(format!("k{n}"), 3_000);
    (0..12).map(object).collect()
}

fn make(cluster: &Cluster, bucket: &str) {
    surely(cluster, "PUT", (bucket, ""), b"", 200);
}

fn delete(cluster: &Cluster, bucket: &str) {
    surely(cluster, "DELETE", (bucket, ""), b"", 204);
}

fn fill(cluster: &Cluster, bucket: &str) {
    for object in objects() {
        let target = format!("/{}", object.key);
        surely(cluster, "PUT", (bucket, &target), object.bytes(), 200);
    }
}

/// The statuses of GETs of all objects, and the number of names that are listed.
fn read_all(cluster: &Cluster, bucket: &str) -> (Vec<u16>, usize) {
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

fn assert_has_all(cluster: &Cluster, bucket: &str) {
    let all = objects().len();
    assert_eq!(read_all(cluster, bucket), (vec![200; all], all));
}

/// Copies the data of etcd while it does not run.
fn back_up(cluster: &mut Cluster) -> PathBuf {
    let data = cluster.lab.config_path().with_file_name("etcd");
    let copy = data.with_file_name("etcd.backup");
    cluster.lab.kill("etcd").unwrap();
    copied(&data, &copy);
    cluster.lab.restart("etcd").unwrap();
    copy
}

fn put_back(cluster: &mut Cluster, copy: &PathBuf) {
    let data = cluster.lab.config_path().with_file_name("etcd");
    cluster.lab.kill("etcd").unwrap();
    std::fs::remove_dir_all(&data).unwrap();
    copied(copy, &data);
    cluster.lab.restart("etcd").unwrap();
}

fn copied(from: &PathBuf, to: &PathBuf) {
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
