//! Requests in the access log: those that break off, and those of a trusted proxy; at the node that
//! answers, and relayed.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use prism_config::{Networks, RelayUpTo};
use prism_lab::{Families, Family, Lab, LabName, LabSpec};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::support::{Cluster, eventually, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::configure;

pub(super) const SERVER: &str = "127.0.0.1:9005";
const UPLOAD_BYTES: u64 = 1_000_000;
const SENT_BYTES: u64 = 300_000;
const ANSWER_BYTES: u64 = 50_000_000;
const TAKEN_BYTES: u64 = 100_000;
const CUT_BYTES: u64 = 50_000;

/// Answers the requests of a connection, and fails by their paths.
pub(super) fn serve(mut stream: TcpStream) -> std::io::Result<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).into_owned();
        let answer = |length: u64| format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        match head.split(' ').nth(1).unwrap().split('?').next().unwrap() {
            "/up" | "/slow" => {
                let mut rest = vec![0; 65_536];
                while stream.read(&mut rest)? > 0 {}
                return Ok(());
            }
            "/cut" => {
                stream.write_all(answer(2 * CUT_BYTES).as_bytes())?;
                stream.write_all(&vec![b'x'; CUT_BYTES as usize])?;
                std::thread::sleep(Duration::from_millis(100));
                return Ok(());
            }
            "/down" => {
                stream.write_all(answer(ANSWER_BYTES).as_bytes())?;
                stream.write_all(&vec![b'x'; ANSWER_BYTES as usize])?;
            }
            "/head" => {
                stream.write_all(answer(head.len() as u64).as_bytes())?;
                stream.write_all(head.as_bytes())?;
            }
            _ => stream.write_all(answer(0).as_bytes())?,
        }
    }
}

/// One backend, to which the connections of IPv6 clients cannot move.
fn up(log: &Path, trusted: bool) -> Cluster {
    let name: LabName = format!("l{}", std::process::id()).parse().unwrap();
    let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
    (spec.family, spec.backends) = (Families::Dual, 1);
    spec.relay_up_to = RelayUpTo::Bytes(0);
    let log = log.to_owned();
    spec.configure = Some(Box::new(move |config| {
        configure(config, &format!("upstream = \"{SERVER}\"\n"));
        config.log.access = log;
        if trusted {
            // A client whose address is not in these networks is none.
            let networks = Networks::parse(&["10.0.0.0/8", "fd00::/8"]);
            config.service.first_mut().trusted_proxies = networks.unwrap();
        }
        let mut nodes = config.nodes.iter_mut();
        let be0 = nodes.find(|node| node.name == "be0").unwrap();
        be0.address.v6 = None;
        be0.gateway.as_mut().unwrap().v6 = None;
    }));
    Cluster::around(Lab::up(spec).unwrap())
}

fn start_server(cluster: &Cluster) {
    let listener = cluster.on("be0", || TcpListener::bind(SERVER).unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // It ends as the client likes.
            std::thread::spawn(move || drop(serve(stream.unwrap())));
        }
    });
    cluster.await_servers();
}

/// Waits until requests go this way.
fn warm_up(cluster: &Cluster, family: Family, path: &str, log: &Path) {
    eventually("requests go this way", PATIENCE, || {
        let tag = format!("warm-{path}");
        let mut client = cluster.connect_over(family);
        let warm = format!("GET /?tag={tag} HTTP/1.1\r\nHost: h\r\n\r\n");
        client.call(warm.as_bytes());
        drop(client);
        let lines = lines(log, &tag);
        lines.get("/").is_some_and(|line| line["path"] == path)
    });
}

fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
}

/// Sends requests that break off in every way.
fn break_off(cluster: &Cluster, family: Family, tag: &str) {
    let connect = || cluster.connect_over(family).stream;
    let fields = "Host: h\r\nUser-Agent: \"a\"\r\nReferer: http://r/";
    let begin = |stream: &mut TcpStream, method: &str, path: &str, more: &str| {
        let head = format!("{method} {path}?tag={tag} HTTP/1.1\r\n{fields}\r\n{more}\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    };
    let mut upload = connect();
    let length = format!("Content-Length: {UPLOAD_BYTES}\r\n");
    begin(&mut upload, "PUT", "/up", &length);
    upload.write_all(&vec![b'z'; SENT_BYTES as usize]).unwrap();
    let mut slow = connect();
    begin(&mut slow, "GET", "/slow", "");
    std::thread::sleep(Duration::from_millis(300));
    reset(upload);
    reset(slow);
    let mut cut = connect();
    begin(&mut cut, "GET", "/cut", "");
    let _ = cut.read_to_end(&mut Vec::new());
    let mut down = connect();
    begin(&mut down, "GET", "/down", "");
    down.read_exact(&mut vec![0; TAKEN_BYTES as usize]).unwrap();
    reset(down);
    let mut malformed = connect();
    let _ = malformed.write_all(format!("GET /{tag} HTTP/1.1\r\nno field\r\n\r\n").as_bytes());
    let _ = malformed.read_to_end(&mut Vec::new());
}

/// The lines of these requests by their paths.
pub(super) fn lines(log: &Path, tag: &str) -> BTreeMap<String, Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let query = format!("tag={tag}");
    let all = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let ours = all.filter(|line: &Value| line["query"] == *query);
    ours.map(|line| (line["key"].as_str().unwrap().to_owned(), line))
        .collect()
}

#[test]
fn a_request_that_breaks_off_has_a_line_that_says_who_ended_it() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let cluster = up(&log, false);
    start_server(&cluster);
    for (family, path) in [(Family::V4, "direct"), (Family::V6, "relayed")] {
        warm_up(&cluster, family, path, &log);
        break_off(&cluster, family, path);
        eventually("every request has its line", PATIENCE, || {
            lines(&log, path).len() == 4
        });
        let lines = lines(&log, path);
        for (key, method, status, side, error) in [
            ("/up", "PUT", 499, "client", "ClientGone"),
            ("/slow", "GET", 499, "client", "ClientGone"),
            ("/cut", "GET", 200, "server", "AnswerCut"),
            ("/down", "GET", 200, "client", "ClientGone"),
        ] {
            let line = &lines[key];
            let seen = ["method", "status", "ended_by", "error", "path", "host"];
            let seen = seen.map(|field| line[field].clone());
            let expected = json!([method, status, side, error, path, "h"]);
            assert_eq!(Value::from(seen.to_vec()), expected, "{line}");
            let seen = ["user_agent", "referer", "upstream"].map(|field| line[field].clone());
            assert_eq!(seen, ["\"a\"", "http://r/", "/"], "{line}");
            if path == "direct" {
                assert_eq!(line["server"], SERVER, "{line}");
            }
        }
        let bytes = |key: &str, field: &str| lines[key][field].as_u64().unwrap();
        assert_eq!(bytes("/up", "bytes_in"), SENT_BYTES);
        assert_eq!(bytes("/slow", "bytes_out"), 0);
        assert_eq!(bytes("/cut", "bytes_out"), CUT_BYTES);
        let down = bytes("/down", "bytes_out");
        assert!((TAKEN_BYTES..ANSWER_BYTES).contains(&down), "{down}");
    }
    let text = std::fs::read_to_string(&log).unwrap();
    let malformed = text
        .lines()
        .filter(|line| line.contains("\"MalformedHead\""));
    assert_eq!(malformed.count(), 2, "{text}");
}

#[test]
fn a_trusted_proxy_says_who_the_client_is() {
    let Some(_turn) = turn() else { return };
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("access.log");
    let cluster = up(&log, true);
    start_server(&cluster);
    for (family, path) in [(Family::V4, "direct"), (Family::V6, "relayed")] {
        warm_up(&cluster, family, path, &log);
        let proxy = cluster.lab.addresses("client").unwrap();
        let proxy = proxy
            .of(cluster.service_of(family).ip())
            .unwrap()
            .to_string();
        let mut client = cluster.connect_over(family);
        // On one connection, which moves if it can: a proxy's requests are of many clients.
        for (n, fields, seen, id) in [
            (
                1,
                "X-Forwarded-For: 6.6.6.6, 192.0.2.7\r\nX-Request-ID: abc\r\n",
                "192.0.2.7",
                "abc",
            ),
            (
                2,
                "X-Forwarded-For: 2001:db8::9, 10.1.2.3\r\n",
                "2001:db8::9",
                "",
            ),
            (3, "", proxy.as_str(), ""),
        ] {
            let tag = format!("{path}-{n}");
            let request = format!("GET /head?tag={tag} HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            let answer = client.call(request.as_bytes());
            let head = String::from_utf8_lossy(&answer.body).into_owned();
            for name in ["X-Forwarded-For", "X-Real-IP"] {
                assert!(head.contains(&format!("\r\n{name}: {seen}\r\n")), "{head}");
            }
            assert_eq!(
                head.contains("\r\nX-Request-ID: abc\r\n"),
                id == "abc",
                "{head}"
            );
            eventually("the request is in the log", PATIENCE, || {
                lines(&log, &tag).contains_key("/head")
            });
            let line = &lines(&log, &tag)["/head"];
            let client = line["client"].as_str().unwrap();
            let client: std::net::SocketAddr = client.parse().unwrap();
            assert_eq!(client.ip().to_string(), seen, "{line}");
            assert_eq!(line["proxy_request_id"].as_str().unwrap_or_default(), id);
        }
    }
}
