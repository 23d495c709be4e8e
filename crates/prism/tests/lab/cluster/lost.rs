//! An etcd that has lost its data while backends have later states. The new, empty state serves
//! nothing, and the old one is restored from the stores.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use prism_config::ConfigFile;
use serde_json::Value;

use super::{AT_ONCE, epoch, get, put, seen_by, status_of};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, turn};

/// The longest time until the others go on without a backend, or until a returned one has
/// caught up.
pub(super) const SETTLED: Duration = Duration::from_secs(15);

/// Restarts etcd without data.
pub(super) fn lose_all(cluster: &mut Cluster) {
    cluster.lab.kill("etcd").unwrap();
    let data = cluster.lab.config_path().with_file_name("etcd");
    std::fs::remove_dir_all(data).unwrap();
    cluster.lab.restart("etcd").unwrap();
}

/// Runs `prism ctl cluster recover`. Returns whether it succeeded, and its output.
pub(super) fn recover(cluster: &Cluster, more: &[&str]) -> (bool, Value) {
    let prism = env!("CARGO_BIN_EXE_prism");
    let mut command = cluster.lab.command("fe0", prism).unwrap();
    command.args(["ctl", "cluster", "recover", "--json"]);
    command.args(more).arg("--config");
    command.arg(cluster.lab.config_path()).stdin(Stdio::null());
    let output = command.output().unwrap();
    let said = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        let errors = String::from_utf8_lossy(&output.stderr);
        panic!("{error}: {errors}")
    });
    (output.status.success(), said)
}

fn has_fault(cluster: &Cluster, host: &str) -> bool {
    let fault = seen_by(&cluster.lab, host)["fault"].clone();
    fault
        .as_str()
        .is_some_and(|text| text.contains("prism ctl cluster recover"))
}

pub(super) fn wait_for_faults(cluster: &Cluster, hosts: &[&str]) {
    for host in hosts {
        eventually(&format!("{host} sees the fault"), SETTLED, || {
            has_fault(cluster, host)
        });
    }
}

/// Changes a byte in the middle of a store's log.
fn damage_log(db: &Path) {
    let logs = std::fs::read_dir(db)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let log = logs.filter(|path| path.extension().is_some_and(|e| e == "jnl"));
    let log = log.max().unwrap();
    let mut data = std::fs::read(&log).unwrap();
    let end = data.iter().rposition(|byte| *byte != 0).unwrap();
    data[end / 2] ^= 1;
    std::fs::write(&log, data).unwrap();
}

fn write_all(cluster: &Cluster, objects: &[Object]) {
    for object in objects {
        eventually("writes go on", SETTLED, || put(cluster, object) == 200);
    }
}

fn objects(len: u64) -> Vec<Object> {
    (0..8).map(|n| Object::new(format!("o{n}"), len)).collect()
}

#[test]
fn an_etcd_that_lost_its_data_is_filled_from_the_stores_and_nothing_old_is_read() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up_with(3, |spec| {
        spec.etcd = true;
        spec.configure = Some(Box::new(|config| {
            config.cluster.replicas = 3;
            config.cluster.etcd.as_mut().unwrap().lease_ttl_s = 2;
        }));
    });
    write_all(&cluster, &objects(2000));
    cluster.lab.kill("be2").unwrap();
    let last = objects(70_000);
    write_all(&cluster, &last);
    let before = epoch(&cluster.lab, "be0");

    lose_all(&mut cluster);
    // It has only an old state, and finds an empty etcd.
    cluster.lab.restart("be2").unwrap();
    wait_for_faults(&cluster, &["be0", "be1", "be2"]);
    for object in &last {
        assert_eq!(get(&cluster, &mut cluster.connect(), object), 503);
        assert_eq!(put(&cluster, object), 503);
    }
    let (done, said) = recover(&cluster, &["--dry-run"]);
    assert!(done && said["recovered"] == false, "{said:#}");
    wait_for_faults(&cluster, &["be0"]);
    let (done, said) = recover(&cluster, &[]);
    assert!(done && said["recovered"] == true, "{said:#}");
    assert_eq!(said["from_epoch"], before, "{said:#}");
    assert_eq!(said["writes_may_be_lost"], false, "{said:#}");
    for (backend, status) in [("be0", "in-sync"), ("be1", "in-sync"), ("be2", "out")] {
        assert_eq!(said["backends"][backend]["status"], status, "{said:#}");
    }
    let answered = |cluster: &Cluster, object: &Object| {
        eventually("reads go on", SETTLED, || {
            get(cluster, &mut cluster.connect(), object) == 200
        });
    };
    for object in &last {
        answered(&cluster, object);
    }
    eventually("be2 has what it missed", SETTLED, || {
        status_of(&seen_by(&cluster.lab, "be0"), "be2") == "in-sync"
    });
    for object in last.iter().chain(&last) {
        assert_eq!(get(&cluster, &mut cluster.connect(), object), 200);
    }
    assert!(epoch(&cluster.lab, "fe0") > before + 100);
    let (done, said) = recover(&cluster, &[]);
    let error = said["error"].as_str().unwrap();
    assert!(!done && error.contains("nothing to recover"), "{said:#}");

    // A backend that was in sync does not answer: it may have data that no other has.
    cluster.lab.kill("be1").unwrap();
    lose_all(&mut cluster);
    wait_for_faults(&cluster, &["be0", "be2"]);
    eventually("the stores of be0 and be2 are heard of", AT_ONCE, || {
        let (done, said) = recover(&cluster, &[]);
        assert!(!done && said["recovered"] == false, "{said:#}");
        said["unproven"] == serde_json::json!({"be1": "silent"})
    });
    let (done, said) = recover(&cluster, &["--without", "be0"]);
    assert!(!done, "{said:#}");
    let (done, said) = recover(&cluster, &["--without", "be1"]);
    assert!(done && said["writes_may_be_lost"] == true, "{said:#}");
    assert_eq!(said["backends"]["be1"]["verdict"], "left-out", "{said:#}");
    for object in &last {
        answered(&cluster, object);
    }
    write_all(&cluster, &last);
    // Its store cannot be opened any more. It is filled again.
    let config = ConfigFile::load(&cluster.lab.config_path()).unwrap();
    let store = &config.node("be1").unwrap().store;
    damage_log(&store.join("db"));
    assert!(cluster.lab.restart("be1").is_err());
    let log = std::fs::read_to_string(cluster.lab.log_path("be1")).unwrap();
    assert!(log.contains("is damaged at byte"), "{log}");
    std::fs::rename(store, store.with_file_name("be1.damaged")).unwrap();
    cluster.lab.restart("be1").unwrap();
    eventually("be1 is filled", SETTLED, || {
        status_of(&seen_by(&cluster.lab, "be0"), "be1") == "in-sync"
    });
    assert!(cluster.counter("be1", "store", "bytes_used") > 0);
    for object in last.iter().chain(&last) {
        assert_eq!(get(&cluster, &mut cluster.connect(), object), 200);
    }
    say(&format!(
        "recovered twice, now in epoch {}",
        epoch(&cluster.lab, "be0")
    ));
}
