//! Servers come and go while nodes run: by a file that another program replaces, and by commands.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::behind::{Behind, configure, pattern};
use super::watched::{ctl, text};
use super::{PATIENCE, curl};
use crate::support::{Stop, eventually, turn};

const FIRST: &str = "127.0.0.1:9000";
const SECOND: &str = "127.0.0.1:9010";
const THIRD: &str = "127.0.0.1:9020";
/// More than a change of the file takes.
const SETTLED: Duration = Duration::from_secs(2);

/// Replaces the file of servers, as programs for service discovery do.
fn replace(file: &Path, lines: &[String]) {
    let new = file.with_extension("new");
    std::fs::write(&new, lines.join("\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// The servers of `app` at be0, each with its source, as fe0 shows them.
fn servers(behind: &Behind) -> Vec<(String, String)> {
    let status = ctl(behind, &["status", "--json"]);
    let document: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
    let all = document["servers"].as_array().cloned().unwrap_or_default();
    let of_app = all
        .iter()
        .filter(|one| one["upstream"] == "app" && one["backend"] == "be0");
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    of_app
        .map(|one| (word(&one["address"]), word(&one["source"])))
        .collect()
}

fn servers_become(behind: &Behind, expected: &[(&str, &str)]) {
    let expected: Vec<(String, String)> = expected
        .iter()
        .map(|(address, source)| ((*address).to_owned(), (*source).to_owned()))
        .collect();
    eventually(&format!("be0 has {expected:?}"), PATIENCE, || {
        servers(behind) == expected
    });
}

/// `prism ctl server`, which has to succeed or to fail; what it prints.
fn server(behind: &Behind, words: &[&str], succeeds: bool) -> String {
    let output = ctl(behind, &[&["server"], words].concat());
    assert_eq!(output.status.success(), succeeds, "{words:?}: {output:?}");
    if succeeds {
        text(&output)
    } else {
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// Waits until the application of this name gets requests.
fn serves(behind: &Behind, name: &str) {
    let before = behind.apps.count(name);
    eventually(&format!("{name} serves"), PATIENCE, || {
        behind.apps.count(name) > before + 20
    });
}

/// Waits until the application of this name gets none.
fn is_idle(behind: &Behind, name: &str) {
    eventually(&format!("{name} gets no requests"), PATIENCE, || {
        let before = behind.apps.count(name);
        std::thread::sleep(Duration::from_millis(500));
        behind.apps.count(name) == before
    });
}

/// Does `work` while clients ask. Each of their requests is answered well.
fn under_load(behind: &Behind, work: impl FnOnce()) {
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let load = |number: u64| {
        let mut client = behind.cluster.connect();
        let mut n = 0;
        while !stop.load(Ordering::Relaxed) {
            n += 1;
            let len = [10, 3_000, 300_000][n % 3];
            let request = format!(
                "GET /bytes?n={len}&ms={} HTTP/1.1\r\nHost: h\r\nX-Id: {number}.{n}\r\n\r\n",
                n % 4
            );
            let answer = client.call(request.as_bytes());
            assert_eq!(answer.status(), 200, "{}", answer.text());
            assert!(answer.body == pattern(len), "another body");
            answered.fetch_add(1, Ordering::Relaxed);
            if !answer.keep_alive() || n % 50 == 0 {
                client = behind.cluster.connect();
            }
        }
    };
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let load = &load;
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || load(n))).collect();
        work();
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    assert!(answered.load(Ordering::Relaxed) > 0);
}

/// A service whose upstream `app` has the servers of the file alone.
fn up(file: &Path) -> Behind {
    let table = format!(
        "[[upstream]]\naddress = \"127.0.0.1:9001\"\npaths = [\"/files/\"]\n\
         [[upstream]]\nname = \"app\"\nservers_file = \"{}\"\n",
        file.display()
    );
    let change = |spec: &mut prism_lab::LabSpec| {
        spec.backends = 2;
        spec.configure = Some(Box::new(move |config| configure(config, &table)));
    };
    Behind::up(change, "")
}

#[test]
fn servers_come_and_go_by_a_file_and_by_commands_without_a_failed_request() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("app.servers");
    let [first, second] = [FIRST, SECOND].map(|address| format!("be0 {address}"));
    let other = format!("be1 {FIRST} # it stays");
    replace(&file, &[first.clone(), other.clone()]);
    let mut behind = up(&file);
    servers_become(&behind, &[(FIRST, "file")]);
    behind.apps.start_another("be0", "second", SECOND);
    behind.apps.start_another("be0", "third", THIRD);
    let target = format!("be0/{THIRD}");
    under_load(&behind, || {
        replace(&file, &[first.clone(), second.clone(), other.clone()]);
        serves(&behind, "second");
        serves(&behind, "be0");
        replace(&file, &[second.clone(), other.clone()]);
        is_idle(&behind, "be0");
        let said = server(&behind, &["add", "app", &target], true);
        assert_eq!(said, format!("{target}: added\n"));
        serves(&behind, "third");
        serves(&behind, "second");
    });
    let both = [(SECOND, "file"), (THIRD, "added")];
    servers_become(&behind, &both);
    let said = server(&behind, &["add", "app", &target], true);
    assert_eq!(
        said,
        format!("{target}: there already: it was added before\n")
    );
    let shown = text(&ctl(&behind, &["status"]));
    assert!(shown.contains("127.0.0.1:9020 (added)"), "{shown}");
    let said = server(&behind, &["remove", "app", &format!("be0/{SECOND}")], false);
    assert!(said.contains("servers_file names 127.0.0.1:9010"), "{said}");

    // It outlives a restart, a reload and an upgrade.
    behind.cluster.lab.restart("be0").unwrap();
    let later = |config: &mut prism_config::ConfigFile| config.limits.idle_timeout_s += 1;
    behind.cluster.lab.reload(later).unwrap();
    servers_become(&behind, &both);
    let taken_over = ctl(&behind, &["take-over", "be0"]);
    assert!(taken_over.status.success(), "{taken_over:?}");
    servers_become(&behind, &both);
    behind.cluster.await_servers();
    under_load(&behind, || {
        serves(&behind, "third");
        // A malformed file keeps the former servers.
        replace(&file, &["be0 localhost:9010".into(), other.clone()]);
        std::thread::sleep(SETTLED);
        serves(&behind, "second");
        let said = server(&behind, &["remove", "app", &target], true);
        assert_eq!(said, format!("{target}: removed\n"));
        is_idle(&behind, "third");
    });
    servers_become(&behind, &[(SECOND, "file")]);
    let log = std::fs::read_to_string(behind.cluster.lab.log_path("be0")).unwrap();
    assert!(log.contains("app.servers:1: "), "{log}");
    let said = server(&behind, &["remove", "app", &target], false);
    assert!(
        said.contains("app has no server be0/127.0.0.1:9020"),
        "{said}"
    );

    // Without a server the answer is an error, until one comes back.
    let url = format!("{}/bytes?n=100", behind.cluster.lab.endpoint());
    let status = || {
        let arguments = ["-o", "/dev/null", "-w", "%{http_code}"];
        curl(&behind, &url, &arguments)
    };
    replace(&file, &["# none".into()]);
    servers_become(&behind, &[]);
    std::thread::sleep(SETTLED);
    assert_eq!(status(), "503");
    replace(&file, &[first, other]);
    servers_become(&behind, &[(FIRST, "file")]);
    eventually("the first server answers again", PATIENCE, || {
        status() == "200"
    });
}
