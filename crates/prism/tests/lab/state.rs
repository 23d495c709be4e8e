//! The state that the page for a browser shows, the list of open connections, and the audit log.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::support::client::Request;
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, turn};

const PORT: u16 = 9464;
/// A request for such an object is handed off.
const LEN: u64 = 20_000;

/// A connection of `host` to its own admin address that has asked for a page.
fn ask(cluster: &Cluster, host: &str, path: &str) -> TcpStream {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, PORT));
    cluster.on(host, || {
        let mut stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_secs(10));
        stream.set_read_timeout(patience).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream
    })
}

fn document(cluster: &Cluster, host: &str, path: &str) -> Value {
    let mut answer = String::new();
    ask(cluster, host, path)
        .read_to_string(&mut answer)
        .unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    serde_json::from_str(body).unwrap()
}

/// The entry of a list whose field `field` is `value`.
fn entry<'v>(list: &'v Value, field: &str, value: &str) -> &'v Value {
    let mut entries = list.as_array().unwrap().iter();
    let found = entries.find(|entry| entry[field] == value);
    found.unwrap_or_else(|| panic!("no {field} {value} in {list}"))
}

/// The sum of a field of the answers of all nodes to an operation.
fn answered(state: &Value, operation: &str, field: &str) -> u64 {
    let nodes = state["nodes"].as_array().unwrap().iter();
    let answers = nodes.flat_map(|node| node["requests"].as_array().unwrap());
    let of_operation = answers.filter(|answer| answer["operation"] == operation);
    of_operation.map(|a| a[field].as_u64().unwrap()).sum()
}

#[test]
fn the_state_has_what_all_nodes_and_the_switch_count() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::up(2);
    let objects = cluster.one_on_each("seen", |_| LEN);
    cluster.put_all(&objects);
    let before = document(&cluster, "fe0", "/state");
    let mut events = BufReader::new(ask(&cluster, "be1", "/events"));
    let mut client = cluster.connect();
    for object in objects.iter().cycle().take(20) {
        client.get(&cluster, object);
    }
    let short = Object::new(cluster.key_on("be0", "short"), 10);
    client.put(&cluster, &short);
    std::thread::sleep(Duration::from_secs(1));
    let state = document(&cluster, "fe0", "/state");
    let more = |of: &dyn Fn(&Value) -> u64| of(&state) - of(&before);
    assert_eq!(more(&|s| answered(s, "GetObject", "count")), 20);
    assert_eq!(more(&|s| answered(s, "GetObject", "sent_bytes")), 20 * LEN);
    assert_eq!(more(&|s| answered(s, "PutObject", "received_bytes")), 10);
    assert_eq!(
        (&state["kind"], &state["name"]),
        (&"node".into(), &"fe0".into())
    );

    // Both backends have handed the connection to the other one.
    for (host, to) in [("be0", "be1"), ("be1", "be0")] {
        let node = entry(&state["nodes"], "name", host);
        let moved = entry(&node["handed_off"], "node", to);
        assert!(moved["count"].as_u64() >= Some(9), "{node}");
        let last = node["moves"].as_array().unwrap().last().unwrap();
        assert_eq!(last["client"], client.local().to_string(), "{last}");
        assert_eq!(last["to"], to, "{last}");
        let saved = node["steps"].as_array().unwrap().iter();
        let mut saved = saved.filter(|step| step["step"] == "save");
        assert!(saved.next().unwrap()["count"].as_u64() >= Some(9));
    }
    let owner = "be0";
    let connections = &entry(&state["nodes"], "name", owner)["connections"];
    assert_eq!(*connections, 1, "{state}");
    let switch = &state["switch"];
    assert_eq!(entry(&switch["owners"], "owner", owner)["flows"], 1);
    assert!(switch["term"].as_u64() > Some(0), "{switch}");
    assert_eq!(switch["term_phase"], 3, "settled");
    let up = switch["nodes"].as_array().unwrap().iter();
    assert_eq!(up.filter(|node| node["up"] == true).count(), 3, "{switch}");
    assert_eq!(state["cluster"]["backends"].as_array().unwrap().len(), 2);

    // The connection is listed where it is.
    let open = document(&cluster, owner, "/debug/connections");
    let seen = entry(&open["connections"], "client", &client.local().to_string());
    assert_eq!(seen["frontend"], "fe0", "{seen}");
    assert!(seen["requests"].as_u64() >= Some(1) && seen["under_way"].is_null());
    let elsewhere = document(&cluster, "be1", "/debug/connections");
    assert_eq!(elsewhere["open"], 0, "{elsewhere}");

    // The events go on.
    let mut read = Vec::new();
    let mut line = String::new();
    while read.len() < 3 {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0, "the stream ended");
        if let Some(data) = line.strip_prefix("data: ") {
            read.push(serde_json::from_str::<Value>(data).unwrap());
        }
    }
    assert!(read[0]["time_ms"].as_u64() < read[2]["time_ms"].as_u64());
    assert_eq!(read[2]["name"], "be1");
}

/// Runs `ip` on a host.
fn ip(cluster: &Cluster, host: &str, arguments: &[&str]) {
    let mut ip = cluster.lab.command(host, "ip").unwrap();
    assert!(ip.args(arguments).status().unwrap().success());
}

#[test]
fn a_scraper_beyond_the_switch_reads_the_metrics_of_backends() {
    let Some(_turn) = turn() else { return };
    const SCRAPER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 9);
    let cluster = Cluster::configured(2, |config| config.admin.scrapers.push(SCRAPER.into()));
    // The scraper is another address of the client's host.
    let address = format!("{SCRAPER}/32");
    ip(&cluster, "client", &["addr", "add", &address, "dev", "lo"]);
    let client = cluster.lab.address("client").unwrap().to_string();
    ip(
        &cluster,
        "switch",
        &["route", "add", &address, "via", &client],
    );
    let backend = SocketAddr::from((cluster.lab.address("be0").unwrap(), PORT));
    let answer = cluster.in_client(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((SCRAPER, 0)).into()).unwrap();
        let patience = Duration::from_secs(10);
        socket.connect_timeout(&backend.into(), patience).unwrap();
        let mut stream = TcpStream::from(socket);
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(answer.contains("\nprism_ready 1.0\n"), "{answer}");
}

#[test]
fn a_node_that_is_dead_is_shown_as_such() {
    let Some(_turn) = turn() else { return };
    let mut cluster = Cluster::up(2);
    cluster.lab.kill("be1").unwrap();
    let state = document(&cluster, "fe0", "/state");
    let dead = entry(&state["nodes"], "name", "be1");
    assert!(dead["error"].is_string(), "{dead}");
    let alive = entry(&state["nodes"], "name", "be0");
    assert!(
        alive["error"].is_null() && alive["uptime_s"].is_u64(),
        "{alive}"
    );
}

#[test]
fn administrative_actions_are_recorded() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let path = log.clone();
    let cluster = Cluster::configured(2, move |config| config.log.audit = path);
    cluster.lab.ask("be0", "scrub start 1000000").unwrap();
    cluster.lab.ask("be0", "scrub status").unwrap();
    let mut client = cluster.connect();
    let rules = "<VersioningConfiguration><Status>Bad</Status></VersioningConfiguration>";
    let request = Request::new("PUT", "?versioning=").signing(rules.as_bytes());
    let request = request.header("Content-Length", rules.len().to_string());
    let mut request = request.encode(&cluster);
    request.extend_from_slice(rules.as_bytes());
    let refused = client.call(&request);
    assert_eq!(refused.status(), 400, "{}", refused.text());
    client.put(&cluster, &Object::new(cluster.key_on("be1", "object"), 10));

    let text = fs::read_to_string(&log).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<Value> = lines.collect();
    let lines: Vec<_> = lines
        .iter()
        .filter(|line| line["action"] != "CreateBucket")
        .collect();
    let [scrub, versioning] = lines[..] else {
        panic!("{text}")
    };
    assert_eq!(scrub["action"], "scrub start 1000000");
    assert_eq!((&scrub["uid"], &scrub["at"]), (&0.into(), &"be0".into()));
    assert_eq!(scrub["outcome"], "done");
    assert_eq!(versioning["action"], "PutBucketVersioning");
    let id = refused.header("x-amz-request-id");
    assert_eq!(versioning["request_id"], id, "{versioning}");
    assert_eq!(versioning["client"], client.local().to_string());
    let key = &cluster.lab.credential().access_key;
    assert_eq!(versioning["access_key"], *key);
    let outcome = versioning["outcome"].as_str().unwrap();
    assert!(outcome.starts_with("400 "), "{outcome}");
}

#[test]
fn refused_strangers_do_not_fill_the_audit_log() {
    let Some(_turn) = turn() else { return };
    const REQUESTS: usize = 300;
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("audit.log");
    let path = log.clone();
    let cluster = Cluster::configured(2, move |config| config.log.audit = path);
    let mut client = cluster.connect();
    for _ in 0..REQUESTS {
        let head = "DELETE /bucket HTTP/1.1\r\nHost: s3\r\n\r\n";
        assert_eq!(client.call(head.as_bytes()).status(), 403);
    }
    let lines = || -> Vec<Value> {
        let text = fs::read_to_string(&log).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    };
    let of_strangers = lines()
        .into_iter()
        .filter(|line| line["action"] == "DeleteBucket");
    let recorded = of_strangers.count();
    assert!((1..REQUESTS / 5).contains(&recorded), "{recorded} lines");
    // The rest is counted within a minute.
    eventually("the number of the others", Duration::from_secs(70), || {
        let left_out = lines().into_iter();
        let left_out = left_out.filter_map(|line| line["refused_without_a_line"].as_u64());
        left_out.sum::<u64>() + recorded as u64 == REQUESTS as u64
    });
}

#[test]
fn pages_of_allowed_origins_may_use_every_bucket() {
    let Some(_turn) = turn() else { return };
    let cluster = Cluster::configured(2, |config| {
        config.service.first_mut().cors_origins = vec!["https://admin.example.com".into()];
    });
    let mut client = cluster.connect();
    let mut preflight = |origin: &str, target: &str| {
        let head = format!(
            "OPTIONS {target} HTTP/1.1\r\nHost: s3\r\nOrigin: {origin}\r\n\
             Access-Control-Request-Method: PUT\r\n\
             Access-Control-Request-Headers: authorization, x-amz-date\r\n\r\n"
        );
        client.call(head.as_bytes())
    };
    for target in ["/", "/bucket", "/bucket/key", "/no-such-bucket"] {
        let allowed = preflight("https://admin.example.com", target);
        assert_eq!(allowed.status(), 200, "{target}");
        let headers = allowed.header("access-control-allow-headers");
        assert_eq!(headers, "authorization, x-amz-date");
        let refused = preflight("https://other.example.com", target);
        let status = if target == "/no-such-bucket" {
            404
        } else {
            403
        };
        assert_eq!(refused.status(), status, "{target}: {}", refused.text());
    }
    let list = Request::new("GET", "?list-type=2").header("Origin", "https://admin.example.com");
    let listed = client.call(&list.encode(&cluster));
    let origin = listed.header("access-control-allow-origin");
    assert_eq!(origin, "https://admin.example.com");
}
