//! Operators see the servers of upstreams: every view says within 5 s that one is dead, and that it
//! is back, although no request comes.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::behind::Behind;
use super::{PATIENCE, curl};
use crate::support::{eventually, output, say, turn};

const PRISM: &str = env!("CARGO_BIN_EXE_prism");
/// The time in which every view has to follow.
const SEEN: Duration = Duration::from_secs(5);
pub const SERVER: &str = "127.0.0.1:9000";
/// Words of the object store, which a service with upstreams does not show.
const OF_OBJECTS: [&str; 10] = [
    "bucket", "replica", "in sync", "in-sync", "scrub", "object", "catch", "STORE", "epoch",
    "CHANGES",
];

pub fn ctl(behind: &Behind, words: &[&str]) -> Output {
    let mut command = Command::new(PRISM);
    command.arg("ctl").arg("--config");
    command.arg(behind.cluster.lab.config_path());
    command.args(words).output().unwrap()
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The exit status of `prism ctl status --json`, and its document.
fn status(behind: &Behind) -> (Option<i32>, Value) {
    let output = ctl(behind, &["status", "--json"]);
    let document = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), document)
}

/// The document of `prism ctl top --once --json`.
fn top(behind: &Behind) -> Value {
    let output = ctl(behind, &["top", "--once", "--json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// The document of the page of fe0.
fn page(behind: &Behind) -> Value {
    let address = behind.cluster.lab.address("fe0").unwrap();
    let document = curl(behind, &format!("http://{address}:9464/state"), &[]);
    serde_json::from_str(&document).unwrap()
}

fn metrics(behind: &Behind, host: &str) -> String {
    let mut curl = behind.cluster.lab.command(host, "curl").unwrap();
    output(curl.args(["--silent", "http://127.0.0.1:9464/metrics"]))
}

/// The state of the application's server at a backend, in a document.
fn state_of<'d>(document: &'d Value, backend: &str) -> &'d str {
    let servers = document["servers"].as_array().unwrap();
    let is_it = |one: &&Value| {
        let fields = [&one["upstream"], &one["address"], &one["backend"]];
        fields == ["/", SERVER, backend]
    };
    let found = servers.iter().find(is_it);
    found.unwrap()["state"].as_str().unwrap()
}

pub fn alerts(document: &Value) -> Vec<String> {
    let all = document["alerts"].as_array().unwrap().iter();
    all.map(|alert| format!("{}: {}", alert["level"], alert["text"]).replace('"', ""))
        .collect()
}

/// Waits until every view has the state of the application's server at a backend.
pub fn all_say(behind: &Behind, backend: &str, state: &str, since: Instant) {
    let holds =
        format!("prism_upstream_state{{upstream=\"/\",address=\"{SERVER}\",state=\"{state}\"}} 1");
    eventually(&format!("{backend}: {state}"), PATIENCE, || {
        state_of(&status(behind).1, backend) == state
            && state_of(&page(behind), backend) == state
            && metrics(behind, backend).contains(&holds)
    });
    let seen = since.elapsed();
    say(&format!("{backend} is {state} after {seen:.1?}"));
    assert!(seen < SEEN, "{seen:?}");
    assert_eq!(state_of(&top(behind), backend), state);
}

pub fn health_becomes(behind: &Behind, code: i32, health: &str) -> Value {
    eventually(&format!("the service is {health}"), PATIENCE, || {
        status(behind).0 == Some(code)
    });
    let (_, document) = status(behind);
    assert_eq!(document["health"], health);
    assert_eq!(top(behind)["health"], health);
    document
}

#[test]
fn every_view_says_which_servers_are_dead() {
    let Some(_turn) = turn() else { return };
    let mut behind = Behind::up(|spec| spec.backends = 2, "");
    let document = health_becomes(&behind, 0, "healthy");
    assert_eq!(document["service"], "upstream");
    assert_eq!(document["servers"].as_array().unwrap().len(), 6);
    no_words_of_the_object_store(&behind);

    // No request comes meanwhile.
    behind.apps.kill("be0");
    all_say(&behind, "be0", "unhealthy", Instant::now());
    let document = health_becomes(&behind, 1, "degraded");
    let reason = "is unhealthy (upstream /): connection refused";
    let expected = [format!("warning: {SERVER} at be0 {reason}")];
    assert_eq!(alerts(&document), expected);
    assert_eq!(state_of(&document, "be1"), "healthy");
    let shown = text(&ctl(&behind, &["status"]));
    assert!(shown.contains("degraded, as"), "{shown}");
    assert!(shown.contains("connection refused (check), "), "{shown}");
    assert!(doctor(&behind, "be0").contains("is unhealthy: connection refused"));
    assert!(!doctor(&behind, "be1").contains("unhealthy"));
    behind.apps.start("be0");
    all_say(&behind, "be0", "healthy", Instant::now());
    assert!(alerts(&health_becomes(&behind, 0, "healthy")).is_empty());

    // An upstream without a server is critical; without any server the service is down.
    for host in ["be0", "be1"] {
        behind.apps.kill(host);
    }
    all_say(&behind, "be1", "unhealthy", Instant::now());
    let document = health_becomes(&behind, 1, "degraded");
    let down = "critical: The upstream / has no healthy server".to_owned();
    assert_eq!(alerts(&document).first(), Some(&down));
    behind.kill_files();
    let document = health_becomes(&behind, 2, "down");
    let names = ["/files/", "/who", "/"];
    let down = names.map(|name| format!("critical: The upstream {name} has no healthy server"));
    assert_eq!(alerts(&document)[..3], down);
    // Requests fail, and are counted by their reason.
    let mut client = behind.cluster.connect();
    for _ in 0..3 {
        let answer = client.call(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
        assert!(answer.status() >= 500);
    }
    let refused = |host: &str| {
        let start = "prism_upstream_errors_total{upstream=\"/\",address=\"127.0.0.1:9000\",reason=\"refused\"} ";
        let metrics = metrics(&behind, host);
        let count = metrics.lines().find_map(|line| line.strip_prefix(start));
        count.unwrap().parse::<u64>().unwrap()
    };
    assert!(refused("be0") + refused("be1") >= 3);
    behind.apps.start("be1");
    all_say(&behind, "be1", "healthy", Instant::now());
    health_becomes(&behind, 1, "degraded");

    // Nothing is known of the servers of a backend that is away.
    behind.cluster.lab.stop("be0").unwrap();
    eventually("the servers of be0 are unknown", PATIENCE, || {
        state_of(&status(&behind).1, "be0") == "unknown"
    });
    health_becomes(&behind, 1, "degraded");
    let cluster = ctl(&behind, &["cluster"]);
    let said = String::from_utf8_lossy(&cluster.stderr).into_owned();
    assert!(
        !cluster.status.success() && said.contains("does not reach be0"),
        "{said}"
    );
    let cluster = text(&cluster);
    let row = |host: &str| cluster.lines().find(|line| line.starts_with(host)).unwrap();
    assert!(
        row("be0").ends_with("out of reach") && row("be1").ends_with(" in reach"),
        "{cluster}"
    );
    for words in [&["status"][..], &["top", "--once"], &["cluster"]] {
        has_no_word_of_the_object_store(words[0], &text(&ctl(&behind, words)));
    }
}

pub fn doctor(behind: &Behind, host: &str) -> String {
    let mut doctor = behind.cluster.lab.command(host, PRISM).unwrap();
    doctor.arg("doctor").arg("--config");
    doctor.arg(behind.cluster.lab.config_path());
    text(&doctor.args(["--node", host]).output().unwrap())
}

/// Each says so in one sentence, and asks no node.
fn commands_of_the_object_store_do_not_apply(behind: &Behind) {
    let backup = behind.file("backup");
    for words in [
        &["scrub"][..],
        &["scrub", "--node", "be0"],
        &["drain", "be0", "--wait"],
        &["rebalance", "--replicas", "2"],
        &["cluster", "recover", "--dry-run"],
        &["key", "list"],
        &["key", "new", "k"],
        &["bucket", "info", "photos"],
        &["bucket", "allow", "photos", "--key", "k", "--read"],
        &["bucket", "quota", "photos", "--bytes", "1G"],
        &["backup", &backup],
    ] {
        let output = ctl(behind, words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains("does not apply"), "{words:?}: {said}");
        assert!(said.contains("`prism ctl status`"), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
    assert!(!std::path::Path::new(&backup).exists());
    // A socket names no service; the node itself says it.
    let nodes = behind.cluster.lab.config_path();
    let config = prism_config::ConfigFile::load(&nodes).unwrap();
    let socket = config.parts()[0].admin_socket("be0").display().to_string();
    for words in [
        &["scrub", "--socket"][..],
        &["bucket", "quota", "photos", "--socket"],
    ] {
        let mut command = Command::new(PRISM);
        let output = command.arg("ctl").args(words).arg(&socket).output();
        let output = output.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{words:?}: {said}");
        assert!(said.contains("stores nothing"), "{words:?}: {said}");
    }
}

fn no_words_of_the_object_store(behind: &Behind) {
    commands_of_the_object_store_do_not_apply(behind);
    let metrics = ["fe0", "be0"].map(|host| metrics(behind, host));
    let help = metrics.iter().flat_map(|page| page.lines());
    let help: Vec<&str> = help.filter(|line| line.starts_with("# HELP ")).collect();
    for (view, shown) in [
        ("status", text(&ctl(behind, &["status"]))),
        ("top", text(&ctl(behind, &["top", "--once"]))),
        ("cluster", text(&ctl(behind, &["cluster"]))),
        (
            "connections",
            text(&ctl(behind, &["drain-connections", "be1"])),
        ),
        ("reload", text(&ctl(behind, &["reload"]))),
        ("doctor", doctor(behind, "be0")),
        ("metrics", help.join("\n")),
    ] {
        let has_servers = ["status", "top", "doctor"].contains(&view);
        assert!(shown.contains(SERVER) || !has_servers, "{shown}");
        has_no_word_of_the_object_store(view, &shown);
    }
}

fn has_no_word_of_the_object_store(view: &str, shown: &str) {
    assert!(!shown.is_empty(), "{view}");
    for word in OF_OBJECTS {
        assert!(!shown.contains(word), "{view} has {word:?}: {shown}");
    }
}
