//! The configurations of `docs/migrate.md`, taken from its text: the old proxy with the one, and
//! Prism with the other, answer the same requests alike, from the same servers.

mod bed;
mod site;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{clients, eventually, output, turn};
use bed::{Answer, Both, WAYS, Way};

const PATIENCE: Duration = Duration::from_secs(20);
/// Bytes of a body that moves a connection.
const LONG: usize = 3 << 20;
const HOST: &str = "shop.example.com";

/// A file of this directory.
fn own(name: &str) -> String {
    format!("{}/tests/lab/migrate/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A request of curl: the path, and its arguments.
type Request<'r> = (&'r str, &'r [&'r str]);

/// Makes each request both ways, and compares the answers. `scheme` includes the host.
fn compare(both: &Both, scheme: &str, always: &[&str], requests: &[Request<'_>]) {
    let answers = WAYS.map(|way| {
        let ask = |(path, arguments): &Request<'_>| {
            let arguments = [always, *arguments].concat();
            let answer = both.curl(way, &format!("{scheme}{path}"), &arguments);
            answer.comparable()
        };
        requests.iter().map(ask).collect::<Vec<Answer>>()
    });
    let mut faults = Vec::new();
    for (n, request) in requests.iter().enumerate() {
        let [old, new] = [0, 1].map(|way: usize| &answers[way][n]);
        let shown = |answer: &Answer| {
            let text: String = answer.text().chars().take(99).collect();
            let bytes = answer.body.len();
            format!("{} {:?} {bytes}: {text:?}", answer.status, answer.headers)
        };
        if old != new {
            faults.push(format!(
                "{request:?}\n old: {}\n new: {}",
                shown(old),
                shown(new)
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The store behind both is `prism serve`: it is there without a download, and checks every
/// signature, which covers `Host` and the path. It has one directory, so one server stands for
/// those of all hosts.
#[test]
fn a_store_answers_its_clients_as_behind_haproxy() {
    let Some(_turn) = turn() else { return };
    let one_store = |spec: &prism_lab::LabSpec, text: String| {
        let address = spec.address("be0").unwrap();
        text.replace("127.0.0.1:9000", &format!("{address}:9000"))
    };
    let both = Both::up("An S3 store", true, one_store, |_| {});
    let store = both.address("be0");
    let mut serve = both.command("be0", env!("CARGO_BIN_EXE_prism"));
    serve.arg("serve").arg(both.path("store")).arg("--no-fsync");
    serve.arg("--allow-remote");
    both.start(
        "store",
        serve.arg("--listen").arg(format!("{store}:9000")),
        "be0",
    );
    let text = both.old_text("An S3 store", "haproxy");
    let text = ["be1", "be2"].iter().fold(text, |text, host| {
        text.replace(
            &format!("{}:9000", both.address(host)),
            &format!("{store}:9000"),
        )
    });
    both.start_haproxy(&text);
    for way in WAYS {
        eventually("the store answers", PATIENCE, || {
            let answer = both.try_curl(way, &format!("http://{HOST}/"), &[]);
            answer.is_ok_and(|answer| answer.status == 403)
        });
    }
    for scheme in ["http", "https"] {
        let told = WAYS.map(|way| {
            let (mut python, address) = both.client(way, "python3");
            python.env("PYTHONPATH", clients().join("python"));
            python.env("PYTHONWARNINGS", "ignore");
            let endpoint = format!("{scheme}://{address}");
            output(python.arg(own("s3.py")).arg(endpoint))
        });
        assert_eq!(told[0], told[1]);
        assert!(told[0].lines().count() > 30, "{}", told[0]);
    }
}

const APP: &str = "A web application with sessions";
const SERVERS: [&str; 3] = ["be0", "be1", "be2"];

/// The application behind both.
struct Shop {
    both: Both,
    program: std::path::PathBuf,
}

impl Shop {
    fn up() -> Self {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("migrate-app");
        let mut go = Command::new("go");
        go.args(["build", "-o"]).arg(&program).arg(own("app.go"));
        output(go.env("GOFLAGS", "-buildvcs=false"));
        // An idle WebSocket outlives this time by `tunnel_timeout_s`.
        let stalls = |config: &mut prism_config::ConfigFile| config.limits.stall_timeout_s = 2;
        let both = Both::up(APP, true, |_, text| text, stalls);
        let shop = Self { both, program };
        SERVERS.iter().for_each(|host| shop.start(host));
        let both = &shop.both;
        both.start_haproxy(&both.old_text(APP, "haproxy"));
        std::fs::write(both.path("long"), vec![7; LONG]).unwrap();
        shop.await_servers();
        shop
    }

    /// Waits until both proxies hold every server for well: no client is given another one.
    fn await_servers(&self) {
        self.both.cluster.await_servers();
        let url = format!("https://{HOST}/file");
        let stays = |way, host: &str| {
            let cookie = format!("Cookie: SRV={host}");
            let answer = self.both.try_curl(way, &url, &["--header", &cookie]);
            answer.is_ok_and(|answer| answer.status == 200 && answer.cookie("SRV").is_none())
        };
        for way in WAYS {
            eventually("every server is up", PATIENCE, || {
                let mut rounds = (0..4).flat_map(|_| SERVERS);
                rounds.all(|host| stays(way, host))
            });
        }
    }

    fn start(&self, host: &str) {
        let mut app = self.both.command(host, &self.program);
        let app = app.args([host, "0.0.0.0:8080", "0.0.0.0:8081"]);
        self.both.start("app", app, host);
    }

    /// A request of the client with these cookies.
    fn ask(&self, way: Way, path: &str, jar: &str, arguments: &[&str]) -> Answer {
        let jar = self.both.file(jar);
        let jar = ["--cookie", &jar, "--cookie-jar", &jar];
        let url = format!("https://{HOST}{path}");
        self.both.curl(way, &url, &[&jar[..], arguments].concat())
    }

    fn login(&self, way: Way, jar: &str) {
        let answer = self.ask(way, "/login", jar, &["--data", &format!("user={jar}")]);
        assert_eq!(
            (answer.status, answer.header("location")),
            (303, "/account")
        );
    }

    /// The server that has the client's session, for the n-th visit.
    fn visit(&self, way: Way, jar: &str, n: usize) -> String {
        let answer = self.ask(way, "/account", jar, &[]);
        let text = answer.text();
        let server = text.strip_prefix(&format!("{jar} {n} "));
        let fault = format!("{way:?} {jar} {n}: {} {text}", answer.status);
        server.expect(&fault).trim().to_owned()
    }
}

#[test]
fn an_application_answers_as_behind_haproxy() {
    let Some(_turn) = turn() else { return };
    let shop = Shop::up();
    let both = &shop.both;
    let long = both.file("long");
    let (body, of_body) = (format!("@{long}"), "--data-binary");
    let requests: &[Request<'_>] = &[
        ("/file", &[]),
        ("/file", &["--head"]),
        ("/file", &["--range", "5-70000"]),
        ("/file", &["--range", "999999999-"]),
        ("/file", &["--header", "If-None-Match: \"a-file\""]),
        ("/file", &["--header", "If-Match: \"another\""]),
        (
            "/file",
            &[
                "--header",
                "If-Modified-Since: Mon, 06 May 2024 07:08:09 GMT",
            ],
        ),
        (
            "/file",
            &["--range", "0-9", "--header", "If-Range: \"another\""],
        ),
        ("/gzip", &[]),
        ("/gzip", &["--header", "Accept-Encoding: gzip"]),
        ("/chunks", &[]),
        ("/digest", &["--data", "a=b&c=d"]),
        ("/digest", &[of_body, &body]),
        ("/digest", &[of_body, &body, "--header", "Expect:"]),
        ("/digest", &["--upload-file", &long]),
        (
            "/digest",
            &[
                "--upload-file",
                &long,
                "--header",
                "Transfer-Encoding: chunked",
            ],
        ),
        (
            "/digest",
            &["--data", "x", "--header", "Expect: 100-continue"],
        ),
        ("/api/digest?a=b", &["--data", "x"]),
        ("/item", &["--request", "DELETE"]),
        ("/item", &["--request", "PUT", "--data", "x"]),
        ("/item", &["--request", "PATCH", "--data", "x"]),
        ("/moved", &[]),
        ("/websocket", &[]),
        ("/absent", &[]),
    ];
    let url = format!("https://{HOST}");
    compare(both, &url, &["--header", "Cookie: SRV=be1"], requests);
    let told = WAYS.map(|way| {
        // The server learns the same.
        let answer = both.curl(way, &format!("{url}/headers"), &[]);
        let seen: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let seen = ["Host", "X-Env", "X-Forwarded-Proto"].map(|name| seen[name].to_string());
        // The cookie is the same but for the server, and no cache keeps it.
        let file = both.curl(way, &format!("{url}/file"), &[]);
        let cookie = file.cookie("SRV").unwrap().replace(['0', '1', '2'], "N");
        assert_eq!(file.header("cache-control"), "private");
        // Clients without TLS are sent on.
        let redirect = both.curl(way, &format!("http://{HOST}/file?a=b"), &[]);
        let location = redirect.header("location").to_owned();
        (seen, cookie, location, redirect.status)
    });
    let [
        (seen, cookie, location, 301),
        (seen_by_prism, by_prism, location_by_prism, 308),
    ] = told
    else {
        panic!("{told:?}");
    };
    assert_eq!((seen, cookie), (seen_by_prism, by_prism));
    assert_eq!(location, location_by_prism);
    assert_eq!(location, format!("https://{HOST}/file?a=b"));
    let sockets = WAYS.map(|way| {
        let (mut python, address) = both.client(way, "python3");
        output(python.arg(own("websocket.py")).arg(address))
    });
    assert_eq!(sockets, ["101 websocket upgrade\nSRV\n"; 2]);
}

#[test]
fn a_session_stays_at_its_server_also_from_one_proxy_to_the_other() {
    let Some(_turn) = turn() else { return };
    let shop = Shop::up();
    let mut homes = BTreeSet::new();
    let users = (0..9).map(|n| (format!("user{n}"), WAYS[n % 2], WAYS[(n + 1) % 2]));
    for (user, first, second) in users {
        shop.login(first, &user);
        let ways = [first, first, second, second, first, second];
        let visits = (1..).zip(ways).map(|(n, way)| shop.visit(way, &user, n));
        let seen: BTreeSet<String> = visits.collect();
        assert_eq!(seen.len(), 1, "{user}: {seen:?}");
        homes.extend(seen);
    }
    assert!(homes.len() > 1, "all sessions are at {homes:?}");
    // Its server dies: the client gets another one at once, and stays there.
    for way in WAYS {
        let user = format!("mover{way:?}");
        shop.login(way, &user);
        let home = shop.visit(way, &user, 1);
        shop.both.kill("app", &home);
        let answer = shop.ask(way, "/account", &user, &[]);
        assert_eq!(answer.status, 401, "{way:?}: {}", answer.text());
        shop.login(way, &user);
        let other = shop.visit(way, &user, 1);
        assert_ne!(home, other);
        shop.start(&home);
        shop.await_servers();
        for (n, way) in (2..).zip([WAYS, WAYS].concat()) {
            assert_eq!(shop.visit(way, &user, n), other);
        }
    }
}

#[test]
fn files_come_as_behind_nginx() {
    let Some(_turn) = turn() else { return };
    let both = Both::up("Static files", false, |_, text| text, |_| {});
    let root = both.path("www");
    for directory in ["dir", "secret", "up"] {
        std::fs::create_dir_all(root.join(directory)).unwrap();
    }
    let line = "<p>a page that compresses well</p>\n";
    for (name, text) in [
        ("small.txt", "a file\n".to_owned()),
        ("page.html", line.repeat(2_000)),
        ("long.bin", line.repeat(LONG / line.len())),
        ("dir/index.html", line.to_owned()),
        ("secret/file", line.to_owned()),
    ] {
        std::fs::write(root.join(name), text).unwrap();
    }
    for host in SERVERS {
        let text = format!(
            "types {{ text/html html; text/plain txt; }} gzip on; gzip_vary on;\n\
             server {{ listen 0.0.0.0:8080; root {}; absolute_redirect off;\n\
             client_max_body_size 0; add_header X-Host {host};\n\
             location /secret/ {{ deny all; }}\n\
             location /up/ {{ dav_methods PUT DELETE; }} }}",
            root.display()
        );
        both.start_nginx("files", host, &text);
    }
    both.start_nginx("proxy", "be0", &both.old_text("Static files", "nginx"));
    let url = "http://static.example.com";
    let server = |answer: &Answer| Some(answer.header("x-host").to_owned());
    both.await_all(&format!("{url}/small.txt"), &[], server);
    let tag = both.curl(Way::Old, &format!("{url}/small.txt"), &[]);
    let of_tag = |name: &str| format!("{name}: {}", tag.header("etag"));
    let (none_match, range) = (of_tag("If-None-Match"), of_tag("If-Range"));
    let modified = format!("If-Modified-Since: {}", tag.header("last-modified"));
    std::fs::write(both.path("long"), vec![7; LONG]).unwrap();
    std::fs::write(both.path("short"), vec![7; 500_000]).unwrap();
    let (long, short) = (both.file("long"), both.file("short"));
    let chunked = "Transfer-Encoding: chunked";
    let requests: &[Request<'_>] = &[
        ("/small.txt", &[]),
        ("/small.txt", &["--head"]),
        ("/small.txt", &["--header", &none_match]),
        ("/small.txt", &["--header", &modified]),
        ("/small.txt", &["--range", "2-3", "--header", &range]),
        ("/small.txt", &["--range", "99-"]),
        ("/long.bin", &[]),
        ("/long.bin", &["--range", "1000-2000000"]),
        ("/long.bin", &["--range", "-5"]),
        ("/page.html", &[]),
        ("/page.html", &["--header", "Accept-Encoding: gzip"]),
        (
            "/page.html?a=%20b",
            &["--head", "--header", "Accept-Encoding: gzip"],
        ),
        ("/dir", &[]),
        ("/dir/", &[]),
        ("/secret/file", &[]),
        ("/absent", &[]),
        ("/small.txt", &["--data", "a=b"]),
        ("/up/a", &["--upload-file", &short]),
        ("/up/a", &["--upload-file", &short]),
        ("/up/b", &["--upload-file", &short, "--header", chunked]),
        ("/up/a", &["--request", "DELETE"]),
        ("/up/a", &["--request", "DELETE"]),
        ("/up/b", &["--request", "DELETE"]),
    ];
    // Any server may answer.
    compare(&both, url, &[], requests);
    let upload = |way| both.curl(way, &format!("{url}/up/c"), &["--upload-file", &long]);
    for way in WAYS {
        assert_eq!(upload(way).status, 413);
    }
    // Its fields apply at a reload.
    let reloaded = both.cluster.lab.reload(|config| {
        let upstreams = config.service.first().upstream.iter();
        let mut upstreams: Vec<_> = upstreams.flat_map(|all| all.iter().cloned()).collect();
        upstreams[0].max_body_bytes = 0;
        upstreams[0].answer_headers = vec!["X-Content-Type-Options: own".into()];
        config.service.first_mut().upstream = Some(upstreams.into());
    });
    reloaded.unwrap();
    for _ in 0..6 {
        let answer = upload(Way::Prism);
        assert!([201, 204].contains(&answer.status), "{}", answer.status);
        assert_eq!(answer.header("x-content-type-options"), "own");
    }
}
