//! Services whose requests nginx and an application answer, behind backends: unmodified clients,
//! every form of HTTP/1.1, servers that come and go.

mod ambiguous;
pub mod behind;
mod duties;
mod faults;
mod guests;
mod idle;
mod killers;
mod logins;
mod once;
pub mod relayed;
mod sources;
mod watched;

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prism_config::RelayUpTo;
use prism_http::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::client::Client;
use crate::support::packets::{ClientResets, Watch};
use crate::support::{Stop, eventually, output, tls, turn};
use behind::Behind;

pub const PATIENCE: Duration = Duration::from_secs(20);
/// A GET of this length does not pass the frontend.
pub const LONG: usize = 1 << 20;

/// The requests that a test makes by curl, with what they print.
pub fn curl(behind: &Behind, url: &str, arguments: &[&str]) -> String {
    let mut command = behind.cluster.lab.command("client", "curl").unwrap();
    command.args(["--silent", "--show-error", "--max-time", "20"]);
    if let Some(ca) = behind.cluster.lab.ca_file() {
        command.arg("--cacert").arg(ca);
    }
    output(command.args(arguments).arg(url))
}

#[test]
fn nginx_and_an_application_answer_unmodified_clients() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(|spec| spec.tls = true, "");
    let lab = &behind.cluster.lab;
    let watch = Watch::events(&behind.cluster, "upstreams");
    let urls: Vec<String> = lab.endpoints().chain(lab.https_endpoints()).collect();
    assert_eq!(urls.len(), 4);
    for url in &urls {
        every_form(&behind, url);
        long_answers_are_direct(&behind, url);
    }
    // Nothing was carried out twice, and each backend had its share.
    let counts = behind.counts();
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert_eq!(counts.len() as u64, behind.ids.load(Ordering::Relaxed));
    for host in ["be0", "be1", "be2"] {
        assert!(behind.served_by(host) > 0, "{host} has answered nothing");
    }
    watch.finish(ClientResets::AtItsEnd);
}

/// Requests and answers of every form.
fn every_form(behind: &Behind, url: &str) {
    let ask = |path: &str, arguments: &[&str]| {
        // The application counts what it carries out.
        let id = match ["/files/text", "/absent", "/who"].contains(&path) {
            true => "X-Id;".to_owned(),
            false => behind.next_id(),
        };
        let arguments = [&["--header", &id], arguments].concat();
        curl(behind, &format!("{url}{path}"), &arguments)
    };
    assert_eq!(ask("/files/text", &[]), behind.text());
    let is_tls = url.starts_with("https");
    let headers: Value = serde_json::from_str(&ask("/headers", &["--header", "TE: x"])).unwrap();
    let proto = if is_tls { "https" } else { "http" };
    assert_eq!(headers["X-Forwarded-Proto"][0], proto, "{headers}");
    let client = headers["X-Forwarded-For"][0].as_str().unwrap();
    let addresses = behind.cluster.lab.addresses("client").unwrap();
    assert!(addresses.contains(client.parse().unwrap()), "{headers}");
    assert!(
        headers["Te"].is_null() && headers["Forwarded"].is_array(),
        "{headers}"
    );
    assert_eq!(headers["Host"], headers["X-Forwarded-Host"]);
    let who = ask("/who", &["--write-out", " %{local_ip} %{local_port}"]);
    let (first, second) = who.split_at(who.len() / 2);
    assert_eq!(first, second.trim_start(), "{who}");
    // Chunks with trailers, in both directions; curl shows trailers behind the body.
    let chunked = ask(
        "/chunks?n=25000",
        &["--dump-header", "-", "--output", "/dev/null"],
    );
    assert!(chunked.contains("Transfer-Encoding: chunked"), "{chunked}");
    assert!(
        chunked.contains("Trailer: X-Sum") && chunked.contains("X-Sum: seven"),
        "{chunked}"
    );
    let file = behind.long_file();
    let digest = format!("{LONG} {}", behind.long_digest());
    for arguments in [
        &["--upload-file", &file] as &[&str],
        &[
            "--upload-file",
            &file,
            "--header",
            "Transfer-Encoding: chunked",
        ],
        &[
            "--data-binary",
            &format!("@{file}"),
            "--header",
            "Expect: 100-continue",
        ],
        &["--data-binary", &format!("@{file}"), "--header", "Expect:"],
        &["--upload-file", &file, "--http1.0", "--no-alpn"],
    ] {
        let found = ask("/digest", arguments);
        assert!(found.starts_with(&digest), "{arguments:?}: {found}");
    }
    let code = [
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code} %{size_download}",
    ];
    assert_eq!(ask("/none", &code), "204 0");
    assert_eq!(
        ask("/bytes?n=9", &[&code[..], &["--head"]].concat()),
        "200 0"
    );
    assert_eq!(ask("/absent", &code).split(' ').next(), Some("404"));
    assert_eq!(
        ask(
            "/bytes?n=70000",
            &[&code[..], &["--http1.0", "--no-alpn"]].concat()
        ),
        "200 70000"
    );
    let refused = [&code[..], &["--upload-file", &file]].concat();
    assert!(ask("/refuse", &refused).starts_with("403"));
    let modified = [
        "--header",
        "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
    ];
    assert_eq!(
        ask("/files/text", &[&code[..], &modified].concat()),
        "304 0"
    );
    // As much comes back while more is sent.
    let echoed = ask(
        "/echo",
        &["--upload-file", &file, "--output", &behind.file("echoed")],
    );
    assert_eq!(echoed, "");
    assert!(std::fs::read(behind.file("echoed")).unwrap() == std::fs::read(&file).unwrap());
}

/// Long answers of both servers on one connection: their bytes do not pass the frontend.
fn long_answers_are_direct(behind: &Behind, url: &str) {
    let before = behind.cluster.frontend_bytes();
    let (id, of_file) = (behind.next_id(), format!("{url}/files/long"));
    let paths = [format!("{url}/bytes?n={LONG}"), of_file];
    let outputs = [behind.file("bytes"), behind.file("long")];
    let [first, second] = [0, 1].map(|n| ["--output", outputs[n].as_str()]);
    let arguments = [&first[..], &second[..], &["--header", &id, &paths[0]]].concat();
    curl(behind, &paths[1], &arguments);
    assert!(std::fs::read(&outputs[0]).unwrap() == behind::pattern(LONG));
    assert!(std::fs::read(&outputs[1]).unwrap() == std::fs::read(behind.long_file()).unwrap());
    // Acknowledgements pass it neither.
    let passed = behind.cluster.frontend_bytes() - before;
    assert!(passed < 100_000, "{passed} bytes passed the frontend");
}

#[test]
fn servers_come_and_go_under_load_without_a_failed_request() {
    let Some(_turn) = turn() else { return };
    let health = "[service.upstream.health]\npath = \"/health\"\ninterval_s = 1\n";
    let mut behind = Behind::up(|_| {}, health);
    let (stop, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    let cluster = &behind.cluster;
    let load = |number: u64| {
        let mut client = cluster.connect();
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
            assert!(answer.body == behind::pattern(len), "another body");
            answered.fetch_add(1, Ordering::Relaxed);
            if !answer.keep_alive() || n % 50 == 0 {
                client = cluster.connect();
            }
        }
    };
    let apps = &behind.apps;
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let load = &load;
        let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || load(n))).collect();
        let goes_on = |count: u64| {
            let wanted = answered.load(Ordering::Relaxed) + count;
            eventually("requests are answered", PATIENCE, || {
                let failed = threads.iter().any(|thread| thread.is_finished());
                failed || answered.load(Ordering::Relaxed) > wanted
            });
        };
        goes_on(300);
        // Killed: its connections break, and requests that it had not answered go elsewhere.
        apps.kill("be0");
        goes_on(300);
        let frozen = answered.load(Ordering::Relaxed);
        let before = apps.count("be0");
        apps.start("be0");
        eventually("be0 serves again", PATIENCE, || {
            apps.count("be0") > before + 20
        });
        assert!(answered.load(Ordering::Relaxed) > frozen);
        // Bad by its own word.
        behind.set_bad("be1", true);
        eventually("be1 gets no requests", PATIENCE, || {
            let before = apps.count("be1");
            std::thread::sleep(Duration::from_millis(300));
            apps.count("be1") == before
        });
        goes_on(300);
        behind.set_bad("be1", false);
        let before = apps.count("be1");
        eventually("be1 serves again", PATIENCE, || {
            apps.count("be1") > before + 20
        });
        // A backend of Prism ends, and gives its connections away.
        let pid = cluster.lab.pid("be2").unwrap().cast_signed();
        kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
        eventually("be2 has ended", PATIENCE, || {
            cluster.lab.pid("be2").is_none()
        });
        goes_on(300);
        stop.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    });
    behind.cluster.lab.restart("be2").unwrap();
    // Without any server the answer is an error at once, and the next server ends it.
    for host in ["be0", "be1", "be2"] {
        behind.apps.kill(host);
    }
    let begun = Instant::now();
    let answer = behind
        .cluster
        .connect()
        .call(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!([502, 503].contains(&answer.status()), "{}", answer.text());
    assert!(begun.elapsed() < Duration::from_secs(3));
    behind.apps.start("be2");
    eventually("be2 answers", PATIENCE, || {
        let mut client = behind.cluster.connect();
        client
            .call(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n")
            .status()
            == 200
    });
    // An idle connection moves too.
    let mut client = behind.cluster.connect();
    client.call(b"GET /bytes?n=300000 HTTP/1.1\r\nHost: h\r\n\r\n");
    behind.apps.start("be0");
    behind.cluster.lab.stop("be2").unwrap();
    eventually("be0 answers", PATIENCE, || {
        let answer = client.call(b"GET /bytes?n=300000 HTTP/1.1\r\nHost: h\r\n\r\n");
        answer.status() == 200 && answer.header("X-Backend") == "be0"
    });
}

#[test]
fn a_request_is_sent_again_only_where_that_is_safe() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(|spec| spec.backends = 1, "");
    let mut client = behind.cluster.connect();
    // The server is killed while it works: a POST may have been carried out.
    std::thread::scope(|scope| {
        let post = scope.spawn(|| {
            let request = "POST /bytes?n=1&ms=2000 HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\nX-Id: p\r\n\r\n";
            client.call(request.as_bytes())
        });
        eventually("it works", PATIENCE, || behind.counts().contains_key("p"));
        behind.apps.kill("be0");
        let answer = post.join().unwrap();
        assert_eq!(answer.status(), 502, "{}", answer.text());
        assert!(answer.keep_alive());
    });
    behind.apps.start("be0");
    eventually("it serves again", PATIENCE, || {
        client.send(b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n");
        client.answer(&Method::GET).status() == 200
    });
}

#[test]
fn short_answers_are_relayed_and_long_ones_wait_for_their_connection() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(|spec| spec.relay_up_to = RelayUpTo::Bytes(4_096), "");
    let cluster = &behind.cluster;
    let watch = Watch::events(cluster, "parked");
    let moved = || cluster.sum("handoff", "exports_moved");
    // The answers that a backend sends over a moved connection come before the frontend counts it.
    eventually("every move is counted", PATIENCE, || {
        moved() == cluster.sum("handoff", "imported")
    });
    let before = moved();
    let mut client = cluster.connect();
    for path in ["/bytes?n=100", "/bytes?n=4096"] {
        ask(&behind, &mut client, "GET", path);
    }
    assert_eq!(moved(), before, "a short answer has moved its connection");
    // Many short answers do not pass the frontend.
    let of_frontend = cluster.counter("fe0", "requests", "requests");
    for _ in 0..10 {
        ask(&behind, &mut client, "GET", "/bytes?n=100");
    }
    eventually("the connection has moved", PATIENCE, || {
        moved() == before + 1
    });
    assert_eq!(
        cluster.counter("fe0", "requests", "requests"),
        of_frontend + 1
    );
    let before = moved();
    // Each long answer has begun before its connection moves, whatever the method.
    for (n, (method, path)) in [
        ("GET", "/bytes?n=300000"),
        ("POST", "/bytes?n=4097"),
        ("DELETE", "/chunks?n=200000"),
        ("GET", "/events"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = cluster.connect();
        ask(&behind, &mut client, method, path);
        eventually("the connection has moved", PATIENCE, || {
            moved() == before + n as u64 + 1
        });
        ask(&behind, &mut client, method, "/bytes?n=10");
    }
    assert!(cluster.sum("requests", "asked_in_vain") >= 4);
    std::thread::scope(|scope| {
        let random = |seed| {
            let mut rng = fastrand::Rng::with_seed(seed);
            for _ in 0..40 {
                let mut client = cluster.connect();
                for _ in 0..rng.usize(1..4) {
                    let n = [1, 4_096, 4_097, 20_000, 200_000][rng.usize(..5)];
                    let kind = ["bytes", "chunks"][rng.usize(..2)];
                    let method = ["GET", "POST", "PUT"][rng.usize(..3)];
                    ask(&behind, &mut client, method, &format!("/{kind}?n={n}"));
                }
            }
        };
        (0..4).for_each(|seed| drop(scope.spawn(move || random(seed))));
    });
    let counts = behind.counts();
    assert!(counts.values().all(|count| *count == 1), "{counts:?}");
    assert_eq!(counts.len() as u64, behind.ids.load(Ordering::Relaxed));
    watch.finish(ClientResets::None);
}

/// A request with an identifier, whose answer has to be right.
fn ask(behind: &Behind, client: &mut Client, method: &str, path: &str) {
    let id = behind.next_id();
    let request = format!("{method} {path} HTTP/1.1\r\nHost: h\r\n{id}\r\n\r\n");
    let asked = Instant::now();
    client.send(request.as_bytes());
    let head = client.head();
    assert!(head.status() < 300, "{method} {path}: {}", head.status());
    assert!(head.headers().get("Prism-Answer").is_none());
    let (mut body, mut first) = (Vec::new(), None);
    client.body(&head, &Method::GET, |piece| {
        first.get_or_insert_with(|| asked.elapsed());
        body.extend_from_slice(piece);
    });
    match path.split_once("?n=") {
        Some((_, n)) => {
            let n: usize = n.parse().unwrap();
            let expected = match path.starts_with("/chunks") {
                true => pattern_in_pieces(n),
                false => behind::pattern(n),
            };
            assert!(body == expected, "{method} {path}: another body");
        }
        None if path == "/events" => {
            // Each event arrives as it is sent.
            assert!(body.ends_with(b"data: 4\n\n"));
            let first = first.unwrap();
            assert!(
                first < Duration::from_millis(500),
                "the first event took {first:?}"
            );
            assert!(asked.elapsed() > Duration::from_millis(700));
        }
        None => {}
    }
}

/// The application begins anew with each piece of 10,000 bytes.
fn pattern_in_pieces(len: usize) -> Vec<u8> {
    let mut body = behind::pattern(10_000).repeat(len.div_ceil(10_000));
    body.truncate(len);
    body
}

#[test]
fn an_upgraded_connection_is_a_tunnel_at_the_backend() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(|spec| spec.tls = true, "");
    let cluster = &behind.cluster;
    let watch = Watch::events(cluster, "tunnel");
    let config = Arc::new(tls::config(cluster, rustls::ALL_VERSIONS));
    let asks = "GET /tunnel HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";
    for mut client in [cluster.connect(), tls::connect(cluster, &config)] {
        client.send(asks.as_bytes());
        let head = client.head();
        assert_eq!(head.status(), 101);
        assert_eq!(head.headers().get_str("upgrade"), Some("echo"));
        assert!(head.headers().list_has("connection", "upgrade"));
        let before = cluster.frontend_bytes();
        let line = "x".repeat(4_000) + "\n";
        for _ in 0..200 {
            client.send(line.as_bytes());
            let echoed = client.take(line.len());
            assert!(echoed == line.as_bytes(), "another line");
        }
        let passed = cluster.frontend_bytes() - before;
        assert!(passed < 100_000, "{passed} bytes passed the frontend");
    }
    // Nodes do not know yet that a server is gone: a connection that was sent there moves on.
    behind.apps.kill("be0");
    for _ in 0..6 {
        let mut client = cluster.connect();
        client.send(asks.as_bytes());
        let head = client.head();
        assert_eq!(head.status(), 101);
        assert_ne!(head.headers().get_str("X-Backend"), Some("be0"));
    }
    // Without an upgrade the server's refusal is the answer.
    let mut client = cluster.connect();
    let answer = client.call(b"GET /tunnel HTTP/1.1\r\nHost: h\r\nUpgrade: echo\r\n\r\n");
    assert_eq!(answer.status(), 426);
    watch.finish(ClientResets::AtItsEnd);
}

/// Builds the application of the tests once.
fn build(source: &str, program: &std::path::Path) {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/upstreams");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(program).arg(source);
    output(go.current_dir(directory).env("GOFLAGS", "-buildvcs=false"));
}
