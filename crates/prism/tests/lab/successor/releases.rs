//! Take-overs that cannot be: another release runs, or the rest of the cluster speaks another
//! version than the successor. The error has the remedy, and the running process goes on.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use prism_config::{ConfigFile, write_private};

use super::{pid, prism, replace, start, under_load, up};
use crate::leaving;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, say, turn};

/// A copy of the cluster's configuration with a change.
fn changed(cluster: &Cluster, name: &str, change: impl FnOnce(&mut ConfigFile)) -> PathBuf {
    let path = cluster.lab.config_path();
    let mut config = ConfigFile::load(&path).unwrap();
    change(&mut config);
    let path = path.with_file_name(name);
    std::fs::write(&path, toml::to_string(&config).unwrap()).unwrap();
    path
}

/// The error of a successor of `host`, which has to fail.
fn failure(cluster: &Cluster, host: &str, config: &Path) -> String {
    let ended = start(cluster, host, config).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    said
}

/// The remedy that `prism ctl` names for a process that knows no take-over.
const OLDER: &str = "older than this program; restart it";

/// The error of `prism ctl take-over`, which has to fail.
fn refusal(cluster: &Cluster, host: &str, config: &Path) -> String {
    let mut ctl = prism(cluster, host);
    ctl.args(["ctl", "take-over", host, "--config"]).arg(config);
    let ended = ctl.output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{said}");
    said
}

/// Answers each line on the admin socket of `fe0` in `directory` with the same document.
fn running_process(directory: &Path, document: &'static str) {
    let path = directory.join("fe0.sock");
    let _ = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            // The other end may be gone: the listener of the next document has replaced this one.
            let _ = writeln!(stream, "{document}");
        }
    });
}

#[test]
fn a_successor_names_the_remedy_if_the_running_process_is_of_another_release() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    let directory = tempfile::tempdir().unwrap();
    let config = changed(&cluster, "elsewhere.toml", |config| {
        directory.path().clone_into(&mut config.admin.socket_dir);
    });
    // As release 0.2.0 answers.
    let unknown = r#"{"error":"unknown command \"take-over 2 1\"; try: counters, cluster"}"#;
    for (document, remedy) in [
        (unknown, "restart the node instead"),
        (
            r#"{"take_over":9}"#,
            "[2, 1], which this one speaks; upgrade by way",
        ),
        (
            r#"{"error":"this process speaks the versions [9] of the take-over, and its successor [1]; restart"}"#,
            "versions [9]",
        ),
    ] {
        running_process(directory.path(), document);
        let said = failure(&cluster, "fe0", &config);
        assert!(said.contains(remedy), "{document}: {said}");
    }
    running_process(directory.path(), unknown);
    let said = refusal(&cluster, "fe0", &config);
    assert!(said.contains(OLDER), "{said}");
}

/// The switch drops commands of another version as it drops those under another key.
#[test]
fn a_successor_that_the_switch_does_not_answer_ends_before_anything_is_closed() {
    let Some(_turn) = turn() else { return };
    let cluster = up(2);
    cluster.assert_no_flows();
    let object = Object::new(cluster.key_on("be0", "waits"), 20_000);
    cluster.put_all(std::slice::from_ref(&object));
    let other_key = changed(&cluster, "other-key.toml", |config| {
        let switch = config.switch.as_mut().unwrap();
        switch.key_file.set_file_name("other.key");
        write_private(&switch.key_file, &"5e".repeat(16)).unwrap();
    });
    let mut client = cluster.connect();
    client.get(&cluster, &object);
    under_load(&cluster, "successor-switch", |_| {
        for host in ["be0", "fe0"] {
            let former = pid(&cluster, host);
            let said = failure(&cluster, host, &other_key);
            let is_named = said.contains("does not answer version 2 of the control protocol");
            assert!(is_named, "{said}");
            assert_eq!(pid(&cluster, host), former);
            client.get(&cluster, &object);
        }
        drop(client);
    });
}

/// Needs `PRISM_PREVIOUS`, the program of that release. Release 0.2.0 cannot be taken over.
#[test]
fn processes_of_the_previous_release_are_taken_over_or_go_on_undisturbed() {
    if std::env::var_os("PRISM_PREVIOUS").is_none() {
        return say("PRISM_PREVIOUS names no program of the previous release");
    }
    let Some(_turn) = turn() else { return };
    let installed = leaving::Installed::new();
    let cluster = leaving::up_by(&installed.path(), 1, true);
    installed.replace(leaving::PRISM);
    let is_well = || leaving::all_in_sync(&cluster);
    eventually("all are in sync", leaving::IN_SYNC, is_well);
    let told = cluster.lab.ask("fe0", "take-over 250").unwrap();
    let told = told["error"].as_str().unwrap().to_owned();
    under_load(&cluster, "successor-previous", |load| {
        match told.starts_with("unknown command") {
            true => refused(&cluster, &["fe0", "be0"]),
            false => replace(&cluster, load, &["fe0", "be0", "be1", "be2"]),
        }
    });
    assert!(is_well());
}

/// Each process goes on that cannot be taken over.
fn refused(cluster: &Cluster, hosts: &[&str]) {
    let config = cluster.lab.config_path();
    for host in hosts {
        let former = cluster.lab.pid(host).unwrap();
        let by_option = failure(cluster, host, &config);
        assert!(
            by_option.contains("restart the node instead"),
            "{by_option}"
        );
        let by_ctl = refusal(cluster, host, &config);
        assert!(by_ctl.contains(OLDER), "{by_ctl}");
        let path = format!("/proc/{former}/stat");
        assert!(!std::fs::read_to_string(path).unwrap().contains(") Z "));
        assert!(cluster.lab.admin(host).is_ok());
    }
}
