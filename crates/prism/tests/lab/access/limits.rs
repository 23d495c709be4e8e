//! Limits of requests over all nodes: what is above one reaches no server.

use std::time::{Duration, Instant};

use prism_config::{ConfigFile, RequestLimit};
use prism_lab::LabSpec;

use crate::rights::new_key;
use crate::support::client::{Answer, Client, Request};
use crate::support::objects::Object;
use crate::support::{Cluster, eventually, output, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::Behind;

/// Time in which all nodes have heard of a request.
const HEARD: Duration = Duration::from_secs(1);

fn limit(name: &str, by: &str, change: impl FnOnce(&mut RequestLimit)) -> RequestLimit {
    let mut limit = RequestLimit {
        name: name.into(),
        by: by.parse().unwrap(),
        ..RequestLimit::default()
    };
    change(&mut limit);
    limit
}

fn with(limits: Vec<RequestLimit>) -> impl FnOnce(&mut LabSpec) {
    move |spec| {
        let former = spec.configure.take();
        spec.configure = Some(Box::new(move |config: &mut ConfigFile| {
            if let Some(former) = former {
                former(config);
            }
            config.service.first_mut().limit = limits;
        }));
    }
}

/// The status of a request with an identifier.
fn ask(behind: &Behind, client: &mut Client, path: &str, fields: &str) -> Answer {
    let id = behind.next_id();
    let text = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{id}\r\n{fields}\r\n");
    client.call(text.as_bytes())
}

fn statuses(behind: &Behind, client: &mut Client, path: &str, count: usize) -> Vec<u16> {
    let status = |_| ask(behind, client, path, "").status();
    (0..count).map(status).collect()
}

fn above(cluster: &Cluster, name: &str) -> u64 {
    let text = |host: &String| {
        let mut curl = cluster.lab.command(host, "curl").unwrap();
        output(curl.args(["-s", "http://127.0.0.1:9464/metrics"]))
    };
    let line = format!("prism_requests_above_limit_total{{limit=\"{name}\"}} ");
    let count = |text: String| -> u64 {
        let mut lines = text.lines();
        let value = lines.find_map(|one| one.strip_prefix(&line)).unwrap();
        value.parse().unwrap()
    };
    cluster.nodes().iter().map(text).map(count).sum()
}

#[test]
fn a_rate_holds_for_a_client_at_whichever_node_it_asks() {
    let Some(_turn) = turn() else { return };
    let slow = |limit: &mut RequestLimit| {
        limit.rate = Some("1/h".parse().unwrap());
        limit.burst = Some(6);
        limit.paths = vec!["/bytes".into()];
    };
    let token = |limit: &mut RequestLimit| {
        limit.rate = Some("1/m".parse().unwrap());
        limit.paths = vec!["=/headers".into()];
    };
    let limits = vec![
        limit("slow", "client", slow),
        limit("token", "header:x-token", token),
    ];
    let behind = Behind::up_without_warmth(with(limits), "");
    let path = "/bytes?n=1000000";
    // Its connection has moved, so that a backend reads the later requests.
    let mut moved = behind.cluster.connect_from(30_000);
    assert_eq!(statuses(&behind, &mut moved, path, 3), [200; 3]);
    assert!(behind.cluster.sum("handoff", "exports_moved") > 0);
    std::thread::sleep(HEARD);
    let mut second = behind.cluster.connect_from(30_002);
    assert_eq!(statuses(&behind, &mut second, path, 3), [200; 3]);
    std::thread::sleep(HEARD);
    // Nobody admits more: the frontend, and each backend on its own connection.
    let before = behind.counts().len();
    let mut third = behind.cluster.connect_from(30_004);
    for client in [&mut moved, &mut second, &mut third] {
        let refused = ask(&behind, client, path, "");
        assert_eq!(refused.status(), 429, "{}", refused.text());
        assert_eq!(refused.text(), "too many requests\n");
        let wait_s: u64 = refused.header("retry-after").parse().unwrap();
        assert!((3_500..=3_600).contains(&wait_s), "{wait_s}");
        assert!(refused.keep_alive());
        // Another path is free, on the same connection.
        assert_eq!(ask(&behind, client, "/events", "").status(), 200);
    }
    assert_eq!(behind.counts().len(), before + 3);
    assert_eq!(
        (
            above(&behind.cluster, "slow"),
            above(&behind.cluster, "token")
        ),
        (3, 0)
    );
    // Clients of the other family are others.
    let mut other = behind.cluster.connect_from(30_001);
    assert_eq!(ask(&behind, &mut other, path, "").status(), 200);
    // By a field; a request without it is not counted.
    for (fields, status) in [
        ("X-Token: a\r\n", 200),
        ("X-Token: a\r\n", 429),
        ("X-Token: b\r\n", 200),
        ("", 200),
        ("", 200),
    ] {
        let answer = ask(&behind, &mut third, "/headers", fields);
        assert_eq!(answer.status(), status, "{fields}");
    }
    // A reload takes the limits away.
    let without = |config: &mut ConfigFile| config.service.first_mut().limit.clear();
    behind.cluster.lab.reload(without).unwrap();
    eventually("no limit is left", PATIENCE, || {
        ask(&behind, &mut moved, path, "").status() == 200
    });
}

#[test]
fn requests_at_once_are_counted_where_they_are_answered() {
    let Some(_turn) = turn() else { return };
    let three = |limit: &mut RequestLimit| limit.at_once = Some(3);
    let behind = Behind::up_without_warmth(with(vec![limit("three", "client", three)]), "");
    let begin = |port: u16| {
        let mut client = behind.cluster.connect_from(port);
        let id = behind.next_id();
        let text = format!("GET /ticks HTTP/1.1\r\nHost: h\r\n{id}\r\n\r\n");
        client.send(text.as_bytes());
        let status = client.head().status();
        (client, status)
    };
    let port = std::cell::Cell::new(30_000);
    let next = || begin(port.replace(port.get() + 2));
    // All of them move, and their answers have no end.
    let mut open = Vec::new();
    for _ in 0..3 {
        let (client, status) = next();
        assert_eq!(status, 200);
        open.push(client);
    }
    // Also after all that is counted twice is gone.
    for _ in 0..15 {
        assert_eq!(next().1, 429);
        std::thread::sleep(Duration::from_millis(100));
    }
    // An end makes room, soon.
    drop(open.pop());
    let ended = Instant::now();
    eventually("there is room", PATIENCE, || {
        let (client, status) = next();
        if status == 200 {
            open.push(client);
        }
        status == 200
    });
    assert!(ended.elapsed() < 2 * HEARD, "{:?}", ended.elapsed());
    std::thread::sleep(HEARD);
    assert_eq!(next().1, 429);
    let other = behind.cluster.connect_from(30_001);
    drop((open, other));
}

#[test]
fn a_key_of_the_store_has_a_rate_of_its_own() {
    let Some(_turn) = turn() else { return };
    let key = |limit: &mut RequestLimit| {
        limit.rate = Some("1/h".parse().unwrap());
        limit.burst = Some(5);
        limit.headers = vec!["X-Counted".into()];
    };
    let cluster = Cluster::up_with(2, |spec| {
        spec.etcd = true;
        with(vec![limit("key", "key", key)])(spec);
    });
    let object = Object::new("counted".into(), 300_000);
    let mut client = cluster.connect();
    client.put(&cluster, &object);
    let get = |signer| {
        let request = Request::get(&object).header("X-Counted", "1");
        request.encode_by(signer, cluster.service)
    };
    for _ in 0..5 {
        let got = client.call(&get(&cluster.signer));
        assert_eq!(got.status(), 200, "{}", got.text());
    }
    std::thread::sleep(HEARD);
    for mut client in [client, cluster.connect()] {
        let refused = client.call(&get(&cluster.signer));
        assert_eq!(refused.status(), 503);
        assert!(
            refused.text().contains("<Code>SlowDown</Code>"),
            "{}",
            refused.text()
        );
        let wait_s: u64 = refused.header("retry-after").parse().unwrap();
        assert!((3_500..=3_600).contains(&wait_s), "{wait_s}");
    }
    let other = new_key(&cluster, "OTHER");
    let mut client = cluster.connect();
    assert_eq!(client.call(&get(&other)).status(), 403);
    assert_eq!(above(&cluster, "key"), 2);
    // It is the client's fault.
    assert_eq!(cluster.sum("requests", "failed"), 0);
}
