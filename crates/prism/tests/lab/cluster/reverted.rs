//! The store of a backend that is put back from an older copy, or runs beside its original. No
//! answered write is read as it was before.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use prism_config::{Anonymous, ConfigFile};

use super::lost::{SETTLED, recover, wait_for_faults};
use super::restored::{
    BACKENDS, ask, assert_has_all, back_up, back_up_with, copied, fill, make, objects, put_back,
    read_all, surely, up, up_with,
};
use super::{cut_off, refused_ctl, run_ctl, seen_by, status_of};
use crate::support::{Cluster, eventually, turn};

const BUCKET: &str = "reverted";

fn store_of(cluster: &Cluster, backend: &str) -> PathBuf {
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    config.node(backend).unwrap().store.clone()
}

fn copy_of(cluster: &Cluster, backend: &str) -> PathBuf {
    let store = store_of(cluster, backend);
    let copy = store.with_file_name(format!("{backend}.copy"));
    copied(&store, &copy);
    copy
}

/// Starts a backend, which does not run, with a copy of its store.
fn revert(cluster: &mut Cluster, backend: &str, copy: &PathBuf) {
    let store = store_of(cluster, backend);
    std::fs::remove_dir_all(&store).unwrap();
    std::fs::rename(copy, &store).unwrap();
    cluster.lab.restart(backend).unwrap();
}

fn log_of(cluster: &Cluster, backend: &str) -> String {
    std::fs::read_to_string(cluster.lab.log_path(backend)).unwrap()
}

const NOTICED: &str = "is an older copy of the one that it had";

fn wait_for_in_sync(cluster: &Cluster, backend: &str) {
    eventually("it is in sync", SETTLED, || {
        let seen = seen_by(&cluster.lab, "fe0");
        status_of(&seen, backend) == "in-sync" && has_other_store(cluster, backend) == Some(false)
    });
}

fn has_other_store(cluster: &Cluster, backend: &str) -> Option<bool> {
    let seen = seen_by(&cluster.lab, "fe0");
    let backends = seen["backends"].as_array()?;
    let found = backends.iter().find(|found| found["name"] == backend)?;
    found["has_other_store"].as_bool()
}

/// The time in which a running backend reports its last writes.
fn wait_for_report() {
    std::thread::sleep(Duration::from_millis(4500));
}

#[test]
fn a_store_that_is_put_back_from_an_older_copy_is_filled_again() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, BUCKET);
    // Copied while it runs, which may be as well the disk of a machine that was reverted.
    let while_running = copy_of(&cluster, "be1");
    fill(&cluster, BUCKET);
    wait_for_report();
    cluster.lab.kill("be1").unwrap();
    revert(&mut cluster, "be1", &while_running);
    eventually("be1 notices", SETTLED, || {
        log_of(&cluster, "be1").contains(NOTICED)
    });
    wait_for_in_sync(&cluster, "be1");
    assert_has_all(&cluster, BUCKET);

    // Copied while it did not run, and before objects were deleted.
    cluster.lab.stop("be2").unwrap();
    let stopped = copy_of(&cluster, "be2");
    cluster.lab.restart("be2").unwrap();
    wait_for_in_sync(&cluster, "be2");
    for object in objects() {
        let target = format!("/{}", object.key);
        surely(&cluster, "DELETE", (BUCKET, &target), b"", 204);
    }
    wait_for_report();
    cluster.lab.kill("be2").unwrap();
    revert(&mut cluster, "be2", &stopped);
    eventually("be2 notices", SETTLED, || {
        log_of(&cluster, "be2").contains(NOTICED)
    });
    wait_for_in_sync(&cluster, "be2");
    let none = (vec![404; objects().len()], 0);
    assert_eq!(read_all(&cluster, BUCKET), none);

    // Without older copies nothing is noticed: a restart, and a store on another disk.
    fill(&cluster, BUCKET);
    cluster.lab.kill("be0").unwrap();
    let moved = copy_of(&cluster, "be0");
    revert(&mut cluster, "be0", &moved);
    wait_for_in_sync(&cluster, "be0");
    assert!(!log_of(&cluster, "be0").contains(NOTICED));
    assert_has_all(&cluster, BUCKET);
}

#[test]
fn a_backup_of_everything_goes_on_as_it_was() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, BUCKET);
    fill(&cluster, BUCKET);
    let hosts = ["fe0", "be0", "be1", "be2", "etcd"];
    let stop_all = |cluster: &mut Cluster| {
        hosts
            .iter()
            .for_each(|host| cluster.lab.stop(host).unwrap());
    };
    let start_all = |cluster: &mut Cluster| {
        let hosts = hosts.iter().rev();
        hosts.for_each(|host| cluster.lab.restart(host).unwrap());
    };
    stop_all(&mut cluster);
    let etcd = cluster.lab.config_path().with_file_name("etcd");
    let mut copies = vec![(etcd.clone(), etcd.with_file_name("etcd.backup"))];
    copied(&etcd, &copies[0].1);
    for backend in BACKENDS {
        copies.push((store_of(&cluster, backend), copy_of(&cluster, backend)));
    }
    start_all(&mut cluster);
    make(&cluster, "later");
    fill(&cluster, "later");

    stop_all(&mut cluster);
    for (present, copy) in &copies {
        std::fs::remove_dir_all(present).unwrap();
        std::fs::rename(copy, present).unwrap();
    }
    start_all(&mut cluster);
    for backend in BACKENDS {
        wait_for_in_sync(&cluster, backend);
    }
    assert_has_all(&cluster, BUCKET);
    surely(&cluster, "GET", ("later", "/?location"), b"", 404);
    make(&cluster, "later");
    fill(&cluster, "later");
    assert_has_all(&cluster, "later");
}

/// Only objects change after the copies, so nothing else in etcd is older.
#[test]
fn the_other_stores_notice_an_older_copy_if_etcd_is_older_too() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, BUCKET);
    let etcd = back_up(&mut cluster);
    let store = copy_of(&cluster, "be1");
    fill(&cluster, BUCKET);
    wait_for_report();
    cluster.lab.kill("be1").unwrap();
    put_back(&mut cluster, &etcd);
    revert(&mut cluster, "be1", &store);
    eventually("be1 notices", SETTLED, || {
        log_of(&cluster, "be1").contains(NOTICED)
    });
    wait_for_in_sync(&cluster, "be1");
    assert_has_all(&cluster, BUCKET);
}

/// Only a frontend that is cut off from etcd knows better.
#[test]
fn a_store_and_etcd_that_are_put_back_together_answer_no_node_that_knows_more() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up_with(|config| config.s3.anonymous = Anonymous::Read);
    make(&cluster, BUCKET);
    wait_for_report();
    // Nothing changes in the store while etcd does not run.
    let mut store = PathBuf::new();
    let etcd = back_up_with(&mut cluster, |cluster| store = copy_of(cluster, "be1"));
    fill(&cluster, BUCKET);
    make(&cluster, "later");
    wait_for_report();
    for backend in BACKENDS {
        cluster.lab.kill(backend).unwrap();
    }
    // Otherwise it would soon put back what be1 has reported of its store.
    cut_off(&cluster, "fe0", "add");
    put_back(&mut cluster, &etcd);
    let leases = |cluster: &Cluster| {
        log_of(cluster, "be1")
            .matches("has a lease in etcd")
            .count()
    };
    let before = leases(&cluster);
    revert(&mut cluster, "be1", &store);
    eventually("be1 has a lease", SETTLED, || leases(&cluster) > before);
    let mut answered = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(6) {
        for object in objects() {
            let target = format!("/{BUCKET}/{}", object.key);
            let request = format!("GET {target} HTTP/1.1\r\nHost: prism\r\n\r\n");
            let answer = cluster.connect().try_call(request.as_bytes());
            let Ok(answer) = answer else { continue };
            assert_eq!(answer.status(), 503, "{}", answer.text());
            answered += 1;
        }
    }
    assert!(answered > 0);
    cut_off(&cluster, "fe0", "del");

    for backend in ["be0", "be2"] {
        cluster.lab.restart(backend).unwrap();
    }
    wait_for_faults(&cluster, &BACKENDS);
    // be1 has gone on alone, so the administrator says whose state counts.
    eventually("the others are heard", SETTLED, || {
        let (done, _) = recover(&cluster, &["--of", "be0", "--without", "be1"]);
        done
    });
    for backend in BACKENDS {
        wait_for_in_sync(&cluster, backend);
    }
    assert_has_all(&cluster, BUCKET);
}

#[test]
fn stores_that_no_other_backend_can_fill_are_named_and_decided_about() {
    let Some(_turn) = turn() else { return };
    let mut cluster = up();
    make(&cluster, BUCKET);
    fill(&cluster, BUCKET);
    wait_for_report();
    // Two lost disks of three, with two replicas of each object.
    for backend in ["be1", "be2"] {
        cluster.lab.kill(backend).unwrap();
    }
    for backend in ["be1", "be2"] {
        std::fs::remove_dir_all(store_of(&cluster, backend)).unwrap();
        cluster.lab.restart(backend).unwrap();
    }
    eventually("another store is named", SETTLED, || {
        ["be1", "be2"]
            .iter()
            .any(|backend| has_other_store(&cluster, backend) == Some(true))
    });
    let shown = run_ctl(&cluster, &["cluster"], "");
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("another store"), "{shown}");
    let status = run_ctl(&cluster, &["status"], "");
    let status = String::from_utf8(status.stdout).unwrap();
    assert!(status.contains("another store"), "{status}");
    let refused = refused_ctl(&cluster, &["cluster", "recover"]);
    assert!(refused.contains("it has another store"), "{refused}");

    let others: Vec<&str> = ["be1", "be2"]
        .into_iter()
        .filter(|backend| has_other_store(&cluster, backend) == Some(true))
        .collect();
    let without = others.iter().flat_map(|backend| ["--without", backend]);
    let without: Vec<&str> = without.collect();
    let (done, said) = recover(&cluster, &without);
    assert!(done && said["writes_may_be_lost"] == true, "{said:#}");
    for backend in ["be0", "be1", "be2"] {
        wait_for_in_sync(&cluster, backend);
    }
    // All keys of be0 are there, and nothing is refused.
    let (statuses, listed) = read_all(&cluster, BUCKET);
    let found = statuses.iter().filter(|status| **status == 200).count();
    assert!(found > 0 && found == listed, "{statuses:?}");
    assert!(statuses.iter().all(|status| [200, 404].contains(status)));
}

#[test]
fn an_older_copy_of_the_only_store_with_some_keys_waits_for_a_decision() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(2, |spec| {
        spec.etcd = true;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 1;
            config.cluster.etcd.as_mut().unwrap().lease_ttl_s = 2;
        }));
    });
    make(&cluster, BUCKET);
    let copy = copy_of(&cluster, "be0");
    fill(&cluster, BUCKET);
    wait_for_report();
    cluster.lab.kill("be0").unwrap();
    revert(&mut cluster, "be0", &copy);
    eventually("it is named", SETTLED, || {
        has_other_store(&cluster, "be0") == Some(true)
    });
    let none_is_old = || {
        let statuses = objects()
            .iter()
            .map(|object| {
                let target = format!("/{}", object.key);
                ask(&cluster, "GET", (BUCKET, &target), b"")
            })
            .collect::<Vec<_>>();
        assert!(
            statuses.iter().all(|status| [200, 503].contains(status)),
            "{statuses:?}"
        );
        statuses.contains(&503)
    };
    eventually("its keys are refused", SETTLED, none_is_old);
    let (done, said) = recover(&cluster, &["--accept", "be0"]);
    assert!(done && said["writes_may_be_lost"] == true, "{said:#}");
    assert_eq!(said["backends"]["be0"]["verdict"], "accepted", "{said:#}");
    wait_for_in_sync(&cluster, "be0");
    let (statuses, listed) = read_all(&cluster, BUCKET);
    let found = statuses.iter().filter(|status| **status == 200).count();
    assert!(found == listed && found < statuses.len(), "{statuses:?}");
    fill(&cluster, BUCKET);
    assert_has_all(&cluster, BUCKET);
}
