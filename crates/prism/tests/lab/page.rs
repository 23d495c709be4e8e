//! The operator's page: its modules in node, and its use in headless Chromium, with a cluster that
//! the programs in `tools/page` invent, and with a real one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prism_lab::Family;
use serde_json::Value;

use crate::support::objects::Object;
use crate::support::{BUCKET, Cluster, turn};

/// A request for such an object is handed off.
const LEN: u64 = 200_000;

/// The programs that look at the page.
fn tools() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tools/page")
}

/// Whether a program is on this machine. Under CI it has to be.
fn has(program: &str) -> bool {
    let probed = Command::new("sh")
        .args(["-c", &format!("command -v {program}")])
        .output()
        .unwrap();
    let is_there = probed.status.success();
    assert!(
        is_there || std::env::var_os("CI").is_none(),
        "CI must have {program}"
    );
    if !is_there {
        let _ = writeln!(io::stderr(), "SKIPPED: {program} is not installed");
    }
    is_there
}

/// Runs a file of tests in node.
fn run(file: &str) {
    let output = Command::new("node")
        .args(["--test", "--test-reporter=tap"])
        .arg(tools().join(file))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("# fail 0"), "node ran no tests: {text}");
}

#[test]
fn rates_alerts_and_places_are_right() {
    if has("node") {
        run("modules.test.mjs");
    }
}

#[test]
fn requests_of_the_page_are_signed_as_amazon_signs_them() {
    if has("node") {
        run("sign.test.mjs");
    }
}

#[test]
fn the_page_works_in_a_browser_for_eyes_keys_and_screen_readers() {
    if has("node") && has("chromium") {
        run("browser.test.mjs");
    }
}

/// The report of a browser on the client's host that looks at the page of fe0 for some seconds.
fn browse(cluster: &Cluster, arguments: &[&str]) -> Value {
    let address = cluster.lab.address("fe0").unwrap();
    let mut node = cluster.lab.command("client", "node").unwrap();
    node.arg(tools().join("check_page.mjs"))
        .arg("--url")
        .arg(format!("http://{address}:9464/"))
        .args(arguments);
    let output = node.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    let seen: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    assert_eq!(seen["problems"], Value::Array(Vec::new()), "{errors}");
    assert!(output.status.success(), "{errors}");
    seen
}

/// Reads objects of all backends in turn until `ends`. Returns the number of requests.
fn read_objects(cluster: &Cluster, objects: &[Object], ends: &AtomicBool) -> u64 {
    let (mut client, mut count) = (cluster.connect(), 0);
    while !ends.load(Ordering::Relaxed) {
        for object in objects {
            client.get(cluster, object);
            count += 1;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    count
}

#[test]
fn the_page_shows_a_running_cluster_as_its_nodes_count_it() {
    let Some(_turn) = turn() else { return };
    if !(has("node") && has("chromium")) {
        return;
    }
    let cluster = Cluster::configured(3, |config| {
        let frontends = config.nodes.iter().filter(|node| node.is_frontend());
        let addresses = frontends.flat_map(|node| node.address.iter());
        let origins = addresses.map(|ip| format!("http://{}", SocketAddr::new(ip, 9464)));
        config.service.first_mut().cors_origins = origins.collect();
    });
    let objects = cluster.one_on_each("seen", |_| LEN);
    cluster.put_all(&objects);
    let picture = std::env::var("PRISM_PAGE_PICTURE").unwrap_or_default();
    let key = cluster.lab.credential();
    // No policy of a browser names an IPv6 address.
    let endpoint = format!("http://{}", cluster.service_of(Family::V4).ip());
    let mut arguments = vec![
        "--seconds",
        "6",
        "--store-endpoint",
        &endpoint,
        "--access-key",
        &key.access_key,
        "--secret-key",
        &key.secret_key,
        "--bucket",
        BUCKET,
    ];
    if !picture.is_empty() {
        arguments.extend(["--screenshot", &picture]);
    }
    let ends = AtomicBool::new(false);
    let (moving, gets) = std::thread::scope(|scope| {
        let readers = [(); 4].map(|()| scope.spawn(|| read_objects(&cluster, &objects, &ends)));
        let browsing = scope.spawn(|| browse(&cluster, &arguments)).join();
        ends.store(true, Ordering::Relaxed);
        let gets: u64 = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
        (browsing.unwrap(), gets)
    });
    let moves = moving["updates"]["moves_listed"].as_u64();
    assert!(moves >= Some(10), "{}", moving["updates"]);
    let changed = moving["changed"].as_array().unwrap();
    assert!(changed.len() > 20, "{changed:?}");
    assert!(moving["updates"]["dots"].as_u64() > Some(0), "{moving}");

    // At rest, the page has the numbers of the clients and of the nodes.
    let _idle = [cluster.connect(), cluster.connect()];
    std::thread::sleep(Duration::from_secs(1));
    let seen = browse(&cluster, &["--seconds", "3"]);
    let values = &seen["last"]["values"];
    let raw = |name: &str| values[name]["raw"].as_u64().unwrap_or_default();
    let downloaded = moving["store"]["downloaded_bytes"].as_u64().unwrap();
    assert!(downloaded > 1 << 20, "{}", moving["store"]);
    assert_eq!(raw("requests.GetObject.200.count"), gets + 1);
    let sent = raw("requests.GetObject.200.sent_bytes");
    assert_eq!(sent, gets * LEN + downloaded);
    for host in cluster.nodes() {
        let count = |counter| cluster.counter(&host, "handoff", counter);
        let open = raw(&format!("nodes.{host}.connections"));
        assert_eq!(open, count("connections_open"), "{host}");
        let nodes = cluster.nodes();
        let to_others = nodes
            .iter()
            .map(|other| raw(&format!("edges.{host}.{other}.moves")));
        assert_eq!(to_others.sum::<u64>(), count("exports_moved"), "{host}");
    }
}
