//! The work of operators on etcd and on hosts. Work that keeps the cluster's keys is not noticed:
//! nothing stops, and no store becomes another one. An older copy of the keys is noticed, whatever
//! the revision of etcd.

use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use prism_config::ConfigFile;

use super::lost::{SETTLED, wait_for_faults};
use super::restored::{self, BACKENDS, assert_has_all, back_up, fill, make, surely};
use super::{AT_ONCE, ctl, epoch, seen_by};
use crate::successor::take_over;
use crate::support::plain::Target;
use crate::support::{Cluster, eventually, say, turn};

const BUCKET: &str = "kept";
/// Clients that change buckets at the same time, and the changes of each.
const CLIENTS: usize = 8;
const CHANGES: usize = 25;

/// The URL at which the nodes reach a member of etcd.
pub(super) fn endpoint(cluster: &Cluster, member: usize) -> String {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let etcd = config.cluster.etcd.unwrap();
    etcd.endpoints[member].to_string()
}

pub(super) fn etcdctl(cluster: &Cluster, endpoint: &str, arguments: &[&str]) -> String {
    let output = try_etcdctl(cluster, endpoint, arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn try_etcdctl(cluster: &Cluster, endpoint: &str, arguments: &[&str]) -> Output {
    let mut command = cluster.lab.command("etcd", "etcdctl").unwrap();
    command
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", endpoint]);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn data_of(cluster: &Cluster, member: &str) -> PathBuf {
    cluster.lab.config_path().with_file_name(member)
}

/// An etcd that is not one of the lab's, ended when dropped.
struct OwnEtcd(Child);

impl Drop for OwnEtcd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts etcd with the data of `member`, for clients on its own host only, and waits until it
/// answers.
fn etcd_beside(cluster: &Cluster, member: &str, more: &[&str]) -> (OwnEtcd, &'static str) {
    const URL: &str = "http://127.0.0.1:23790";
    let mut command: Command = cluster.lab.command(member, "etcd").unwrap();
    command.args(["--name", member, "--data-dir"]);
    command.arg(data_of(cluster, member));
    command.args(["--listen-client-urls", URL, "--advertise-client-urls", URL]);
    command.args(["--listen-peer-urls", "http://127.0.0.1:23800"]);
    let quiet = || Stdio::null();
    command
        .args(more)
        .stdin(quiet())
        .stdout(quiet())
        .stderr(quiet());
    let etcd = OwnEtcd(command.spawn().unwrap());
    eventually("etcd answers on its own host", SETTLED, || {
        let mut asked = cluster.lab.command(member, "etcdctl").unwrap();
        asked
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", URL, "get", "x"]);
        asked.stderr(quiet()).output().unwrap().status.success()
    });
    (etcd, URL)
}

/// Replaces the data of the only member by a snapshot. The new etcd has another cluster id.
fn restore(cluster: &mut Cluster, snapshot: &str) {
    cluster.lab.kill("etcd").unwrap();
    let data = data_of(cluster, "etcd");
    std::fs::remove_dir_all(&data).unwrap();
    let data = data.to_str().unwrap();
    let restore = [
        "snapshot",
        "restore",
        snapshot,
        "--name",
        "etcd",
        "--data-dir",
        data,
        "--initial-cluster",
        "etcd=http://127.0.0.1:23800",
        "--initial-advertise-peer-urls",
        "http://127.0.0.1:23800",
        "--initial-cluster-token",
        "another",
    ];
    etcdctl(cluster, "http://127.0.0.1:1", &restore);
}

fn snapshot(cluster: &Cluster) -> String {
    let file = data_of(cluster, "etcd.snapshot");
    let file = file.to_str().unwrap().to_owned();
    etcdctl(cluster, &endpoint(cluster, 0), &["snapshot", "save", &file]);
    file
}

/// Raises the revision of an etcd that the nodes do not reach.
fn raise_revision(cluster: &Cluster) {
    let (_etcd, url) = etcd_beside(cluster, "etcd", &[]);
    for number in 0..60 {
        etcdctl(cluster, url, &["put", "/other/key", &number.to_string()]);
    }
}

/// Checks that nothing was noticed, and that all goes on.
fn assert_silent(cluster: &Cluster, what: &str) {
    eventually(&format!("all go on after {what}"), SETTLED, || {
        let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
        config.nodes.iter().all(|node| {
            let seen = seen_by(&cluster.lab, &node.name);
            let backends = seen["backends"].as_array().unwrap();
            seen["fault"].is_null()
                && backends
                    .iter()
                    .all(|b| b["status"] == "in-sync" && b["has_other_store"] == false)
        })
    });
    fill(cluster, BUCKET);
    assert_has_all(cluster, BUCKET);
    for backend in BACKENDS {
        let log = std::fs::read_to_string(cluster.lab.log_path(backend)).unwrap();
        for noticed in ["older copy", "this node serves nothing"] {
            assert!(!log.contains(noticed), "{backend} after {what}");
        }
    }
    say(&format!("nothing was noticed: {what}"));
}

/// Clients change buckets of their own, so several nodes change etcd at once. A node may hear of
/// its own change before its watch has reported those of others.
fn change_buckets_at_once(cluster: &Cluster) {
    let target = Target::of(cluster);
    let change = |client: usize| {
        let surely = |target_path: &str, body: &str| {
            let answer = target.call("PUT", target_path, body.as_bytes());
            let (status, text) = answer.unwrap();
            let text = String::from_utf8_lossy(&text);
            assert_eq!(status, 200, "{target_path}: {text}");
        };
        surely(&format!("/changed-{client}"), "");
        for seconds in 0..CHANGES {
            let cors = format!(
                "<CORSConfiguration><CORSRule><AllowedOrigin>*</AllowedOrigin>\
                 <AllowedMethod>GET</AllowedMethod><MaxAgeSeconds>{seconds}</MaxAgeSeconds>\
                 </CORSRule></CORSConfiguration>"
            );
            surely(&format!("/changed-{client}?cors"), &cors);
        }
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (target, change) = (&target, &change);
            scope.spawn(move || target.run(|| change(client)));
        }
    });
}

#[test]
fn nobody_notices_what_keeps_the_keys_of_etcd() {
    let Some(_turn) = turn() else { return };
    let mut cluster = restored::up();
    make(&cluster, BUCKET);
    change_buckets_at_once(&cluster);
    assert_silent(&cluster, "changes by several nodes at once");
    let url = endpoint(&cluster, 0);
    let url = url.as_str();

    for number in 0..20 {
        let other = format!("/prism/other-cluster/{number}");
        etcdctl(&cluster, url, &["put", &other, "x"]);
    }
    etcdctl(&cluster, url, &["del", "--prefix", "/prism/other-cluster/"]);
    assert_silent(&cluster, "other users of etcd");

    let status = etcdctl(&cluster, url, &["get", "none", "-w", "json"]);
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let revision = status["header"]["revision"].to_string();
    etcdctl(&cluster, url, &["compact", "--physical", &revision]);
    etcdctl(&cluster, url, &["defrag"]);
    assert_silent(&cluster, "compaction and defragmentation");

    let file = snapshot(&cluster);
    restore(&mut cluster, &file);
    cluster.lab.restart("etcd").unwrap();
    assert_silent(&cluster, "a snapshot of the present, as for other hosts");

    let file = snapshot(&cluster);
    restore(&mut cluster, &file);
    raise_revision(&cluster);
    cluster.lab.restart("etcd").unwrap();
    assert_silent(&cluster, "the same with a raised revision");

    cluster.lab.kill("etcd").unwrap();
    drop(etcd_beside(&cluster, "etcd", &["--force-new-cluster"]));
    cluster.lab.restart("etcd").unwrap();
    assert_silent(&cluster, "--force-new-cluster");

    for host in ["etcd", "be0", "be1", "be2", "fe0"] {
        cluster.lab.kill(host).unwrap();
    }
    for host in ["etcd", "be0", "be1", "be2", "fe0"] {
        cluster.lab.restart(host).unwrap();
    }
    assert_silent(&cluster, "a restart of everything");

    // The lab does not know the new processes.
    for backend in BACKENDS {
        take_over(&cluster, backend);
    }
    assert_silent(&cluster, "take-overs");
}

#[test]
fn nobody_notices_a_member_of_etcd_that_is_replaced() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(3, |spec| {
        spec.etcd = true;
        spec.etcd_members = 3;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 2;
            config.cluster.etcd.as_mut().unwrap().lease_ttl_s = 2;
        }));
    });
    make(&cluster, BUCKET);
    let url = endpoint(&cluster, 0);
    let url = url.as_str();
    let members = etcdctl(&cluster, url, &["member", "list"]);
    let member = |name: &str| {
        let line = members
            .lines()
            .find(|line| line.contains(&format!(", {name},")));
        let fields: Vec<_> = line.unwrap().split(", ").map(str::to_owned).collect();
        (fields[0].clone(), fields[3].clone())
    };
    let (id, peer) = member("etcd2");
    cluster.lab.kill("etcd2").unwrap();
    // etcd refuses as long as its members have not been connected for some seconds.
    eventually("etcd gives the member up", SETTLED, || {
        let remove = ["member", "remove", &id];
        try_etcdctl(&cluster, url, &remove).status.success()
    });
    std::fs::remove_dir_all(data_of(&cluster, "etcd2")).unwrap();
    let add = ["member", "add", "etcd2", "--peer-urls", &peer];
    eventually("etcd takes a new member", SETTLED, || {
        try_etcdctl(&cluster, url, &add).status.success()
    });
    let all = ["etcd", "etcd1", "etcd2"].map(|name| format!("{name}={}", member(name).1));
    let client = endpoint(&cluster, 2);
    let mut command = cluster.lab.command("etcd2", "etcd").unwrap();
    command.args([
        "--name",
        "etcd2",
        "--initial-cluster-state",
        "existing",
        "--data-dir",
    ]);
    command.arg(data_of(&cluster, "etcd2"));
    command.args([
        "--initial-cluster",
        &all.join(","),
        "--initial-advertise-peer-urls",
        &peer,
    ]);
    command.args(["--listen-peer-urls", &peer, "--listen-client-urls", &client]);
    command.args(["--advertise-client-urls", &client]);
    let quiet = || Stdio::null();
    command.stdin(quiet()).stdout(quiet()).stderr(quiet());
    let _replaced = OwnEtcd(command.spawn().unwrap());
    eventually("the new member answers", SETTLED, || {
        let mut asked = cluster.lab.command("etcd2", "etcdctl").unwrap();
        asked
            .env("ETCDCTL_API", "3")
            .args(["--endpoints", &client, "get", "x"]);
        asked.stderr(quiet()).output().unwrap().status.success()
    });
    assert_silent(&cluster, "a replaced member");
    // The others are away, one after the other, so the nodes ask the new one.
    for other in ["etcd", "etcd1"] {
        cluster.lab.restart(other).unwrap();
    }
    assert_silent(&cluster, "members that restart");
}

#[test]
fn an_older_snapshot_is_noticed_whatever_its_revision() {
    let Some(_turn) = turn() else { return };
    let mut cluster = restored::up();
    make(&cluster, BUCKET);
    for is_raised in [false, true] {
        let file = snapshot(&cluster);
        let before = epoch(&cluster.lab, "be0");
        // A change of the users leaves the state as it is.
        let key = format!("KEY{}", u8::from(is_raised));
        ctl(&cluster, &["key", "new", &key], "");
        eventually("the key is known", SETTLED, || {
            let known = ctl(&cluster, &["key", "list"], "");
            known.contains(&key)
        });
        assert_eq!(epoch(&cluster.lab, "be0"), before);
        restore(&mut cluster, &file);
        if is_raised {
            raise_revision(&cluster);
        }
        cluster.lab.restart("etcd").unwrap();
        wait_for_faults(&cluster, &BACKENDS);
        let said = restored::recover_all(&cluster);
        assert_eq!(
            said["users"]["missing"],
            serde_json::json!([key]),
            "{said:#}"
        );
        fill(&cluster, BUCKET);
        assert_has_all(&cluster, BUCKET);
    }
    // The same state under an older lineage, changed apart by somebody who has noted nothing.
    let backup = back_up(&mut cluster);
    surely(&cluster, "PUT", ("apart", ""), b"", 200);
    // All nodes hear of it as soon as they follow etcd again.
    std::thread::sleep(AT_ONCE);
    cluster.lab.kill("etcd").unwrap();
    let data = data_of(&cluster, "etcd");
    std::fs::remove_dir_all(&data).unwrap();
    restored::copied(&backup, &data);
    cluster.lab.restart("etcd").unwrap();
    restored::recover_all(&cluster);
    surely(&cluster, "GET", ("apart", "/?location"), b"", 200);
}
