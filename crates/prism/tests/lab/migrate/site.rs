//! A site behind Traefik, and behind Prism: redirects, rules, users and limits.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::Stdio;

use prism_config::Networks;
use serde_json::{Value, json};

use super::bed::{Answer, Both, WAYS, Way};
use super::{HOST, PATIENCE, SERVERS, own};
use crate::support::{clients, eventually, turn};

const SITE: &str = "A site behind Traefik";
/// Requests to `/login` that a client may make at once, and the seconds of one more.
const BURST: usize = 10;
const SECONDS_OF_ONE: u64 = 12;
/// Fields that the client may not choose.
const FORGED: [&str; 6] = [
    "X-User: mallory",
    "X_User: mallory",
    "X-Forwarded-For: 192.0.2.1",
    "X-Forwarded-Host: evil.example",
    "X-Forwarded-Method: DELETE",
    "X-Forwarded-Uri: /evil",
];
const ALICE: &[&str] = &["--cookie", "user=alice"];

fn forged() -> Vec<&'static str> {
    let arguments = FORGED.iter().flat_map(|field| ["--header", field]);
    arguments.collect()
}

/// A request as a server got it.
struct Seen(Value);

impl Seen {
    fn of(answer: &Answer) -> Self {
        let fault = |error| panic!("{}: {error}: {}", answer.status, answer.text());
        Self(serde_json::from_slice(&answer.body).unwrap_or_else(fault))
    }

    /// The values of a field, and null without it.
    fn field(&self, name: &str) -> &Value {
        &self.0["fields"][name]
    }

    /// The parts that do not depend on the proxy's address.
    fn comparable(&self, fields: &[&str]) -> Value {
        let fields: Vec<_> = fields.iter().map(|name| self.field(name)).collect();
        json!([self.0["port"], self.0["method"], self.0["target"], fields])
    }
}

struct Site {
    both: Both,
}

impl Site {
    /// None without Traefik, which is said.
    fn up() -> Option<Self> {
        let is_there = clients().join("traefik").exists();
        assert!(
            is_there || std::env::var_os("CI").is_none(),
            "CI must have Traefik: scripts/setup.sh tests"
        );
        if !is_there {
            let _ = writeln!(io::stderr(), "SKIPPED: Traefik is not installed");
            return None;
        }
        let both = Both::up(SITE, true, |_, text| text, |_| {});
        let site = Self { both };
        SERVERS.iter().for_each(|host| site.start(host));
        let both = &site.both;
        let texts = both.old_texts(SITE, "yaml");
        both.start_traefik(&texts[0], &texts[1]);
        both.cluster.await_servers();
        let server = |answer: &Answer| Some(answer.header("x-host").to_owned());
        both.await_all(&format!("https://{HOST}/"), &["--http1.1"], server);
        Some(site)
    }

    fn start(&self, host: &str) {
        let mut python = self.both.command(host, "python3");
        let python = python.arg(own("site.py")).args([host, "0.0.0.0"]);
        self.both.start("site", python, host);
    }

    /// The answer to a request over HTTPS. Traefik would speak HTTP/2.
    fn ask(&self, way: Way, path: &str, arguments: &[&str]) -> Answer {
        let arguments = [&["--http1.1"], arguments].concat();
        let url = format!("https://{HOST}{path}");
        self.both.curl(way, &url, &arguments)
    }

    /// The answer of both ways, which has to be the same.
    fn alike<T: std::fmt::Debug + PartialEq>(&self, what: &str, ask: impl Fn(Way) -> T) -> T {
        let [old, new] = WAYS.map(ask);
        assert_eq!(old, new, "{what}");
        new
    }

    fn redirects(&self) {
        let answers = WAYS.map(|way| {
            let answer = self.both.curl(way, &format!("http://{HOST}/a?b=c"), &[]);
            let location = answer.header("location").to_owned();
            (answer.status, location)
        });
        let location = format!("https://{HOST}/a?b=c");
        assert_eq!(answers, [(301, location.clone()), (308, location)]);
        for (path, new_path) in [
            ("/blog/", "/news/"),
            ("/blog/2024/a", "/news/2024/a"),
            ("/blog/a%20b", "/news/a%20b"),
            ("/blog/a?b=c", "/news/a"),
        ] {
            let told = self.alike(path, |way| {
                let answer = self.ask(way, path, &[]);
                (answer.status, answer.header("location").to_owned())
            });
            assert_eq!(told, (301, format!("https://{HOST}{new_path}")));
        }
    }

    /// Each request reaches the same server alike.
    fn routes(&self) {
        let fields = [
            "host",
            "x-env",
            "x-forwarded-host",
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-proto",
        ];
        let of_api = |target: &str| (8081, target.to_owned(), json!(["/api"]));
        let of_app = |target: &str| (8080, target.to_owned(), Value::Null);
        for (path, arguments, expected) in [
            ("/", &[][..], of_app("/")),
            ("/a%20b?c=%2f", &[], of_app("/a%20b?c=%2f")),
            ("/search", &["--data", "a=b"], of_app("/search")),
            ("/api", &[], of_app("/api")),
            ("/api/", ALICE, of_api("/")),
            ("/api/users?a=b", ALICE, of_api("/users?a=b")),
            ("/api/a%20b", ALICE, of_api("/a%20b")),
        ] {
            let arguments = [arguments, &forged()].concat();
            let (status, frame, seen) = self.alike(path, |way| {
                let answer = self.ask(way, path, &arguments);
                let seen = Seen::of(&answer);
                let client = seen.field("x-forwarded-for")[0].as_str().unwrap();
                assert!(client.parse::<IpAddr>().is_ok() && client != "192.0.2.1");
                let frame = answer.header("x-frame-options").to_owned();
                (answer.status, frame, seen.comparable(&fields))
            });
            assert_eq!((status, frame.as_str()), (200, "DENY"), "{path}");
            let (port, target, prefix) = expected;
            assert_eq!((&seen[0], &seen[2]), (&json!(port), &json!(target)));
            let fields = json!([[HOST], ["production"], [HOST], ["443"], prefix, ["https"]]);
            assert_eq!(seen[3], fields, "{path}");
        }
        let elsewhere = ["--header", "Host: other.example.com"];
        let status = |way| self.ask(way, "/", &elsewhere).status;
        assert_eq!(self.alike("another host", status), 404);
    }

    /// The server that answers the client with these cookies, and the cookie that it gets.
    fn visit(&self, way: Way, jar: &str) -> Option<(String, Option<String>)> {
        let jar = self.both.file(jar);
        let answer = self.ask(way, "/", &["--cookie", &jar, "--cookie-jar", &jar]);
        let server = answer.header("x-host").to_owned();
        (answer.status == 200).then(|| (server, answer.cookie("srv")))
    }

    fn cookies(&self) {
        for way in WAYS {
            let mut homes = BTreeSet::new();
            for n in 0..6 {
                let jar = format!("{way:?}{n}");
                let (home, cookie) = self.visit(way, &jar).unwrap();
                let attributes = cookie.unwrap();
                let (_, attributes) = attributes.split_once("; ").unwrap();
                assert_eq!(attributes, "path=/; httponly; secure");
                for _ in 0..4 {
                    assert_eq!(self.visit(way, &jar), Some((home.clone(), None)));
                }
                homes.insert(home);
            }
            assert!(homes.len() > 1, "{way:?}: all clients are at {homes:?}");
            // Its server dies: the client stays with another one.
            let jar = format!("{way:?}0");
            let (home, _) = self.visit(way, &jar).unwrap();
            self.both.kill("site", &home);
            let mut other = home.clone();
            eventually("another server answers", PATIENCE, || {
                let visited = self.visit(way, &jar);
                other = visited.map_or_else(|| home.clone(), |(server, _)| server);
                other != home
            });
            self.start(&home);
            self.both.cluster.await_servers();
            assert_eq!(self.visit(way, &jar), Some((other, None)));
        }
    }

    /// The server of the users decides, and sees the client's request.
    fn users(&self) {
        let fields = [
            "accept",
            "authorization",
            "content-length",
            "x-forwarded-host",
            "x-forwarded-method",
            "x-forwarded-proto",
            "x-forwarded-uri",
        ];
        let request = ["--data", "a=b", "--header", "Authorization: Bearer x"];
        let (told, seen) = self.alike("a request without a login", |way| {
            let answer = self.ask(way, "/api/a?b=c", &[&request, &forged()[..]].concat());
            let login = answer.header("www-authenticate").to_owned();
            (
                (answer.status, login),
                Seen::of(&answer).comparable(&fields),
            )
        });
        assert_eq!(told, (401, "Bearer".to_owned()));
        let fields = json!([
            ["*/*"],
            ["Bearer x"],
            null,
            [HOST],
            ["POST"],
            ["https"],
            ["/api/a?b=c"]
        ]);
        assert_eq!(seen, json!([8082, "GET", "/verify", fields]));
        let page = ["--header", "Accept: text/html"];
        let told = self.alike("a browser without a login", |way| {
            let answer = self.ask(way, "/api/a?b=c", &page);
            let location = answer.header("location").to_owned();
            (answer.status, location, answer.cookie("known"))
        });
        let location = format!("https://{HOST}/login?next=/api/a?b=c");
        assert_eq!(told, (302, location, Some("known=0".to_owned())));
        let (status, cookie, users) = self.alike("a request with a login", |way| {
            let arguments = [ALICE, &["--data", "a=b"], &forged()].concat();
            let answer = self.ask(way, "/api/a", &arguments);
            let seen = Seen::of(&answer);
            // Traefik passes it on, and CGI and WSGI read it as X-User.
            assert!(way == Way::Old || seen.field("x_user").is_null());
            let users = seen.comparable(&["x-user", "x-secret"]);
            (answer.status, answer.cookie("known"), users)
        });
        assert_eq!((status, cookie), (200, None));
        assert_eq!(users, json!([8081, "POST", "/a", [["alice"], null]]));
    }

    /// Some attempts succeed at once, and a later one is refused.
    fn rates(&self) {
        for way in WAYS {
            let refused = (0..).find_map(|n| {
                let answer = self.ask(way, "/login", &["--data", "user=alice"]);
                (answer.status != 200).then_some((n, answer))
            });
            let (n, answer) = refused.unwrap();
            // One more for each time that the attempts took.
            assert!((BURST..BURST + 3).contains(&n), "{way:?}: {n} attempts");
            assert_eq!(answer.status, 429, "{way:?}: {}", answer.text());
            let retry: u64 = answer.header("retry-after").parse().unwrap();
            assert!((1..=SECONDS_OF_ONE).contains(&retry), "{way:?}: {retry} s");
            assert_eq!(self.ask(way, "/login", &[]).status, 200);
        }
    }

    /// Two of three reports at the same time are made.
    fn reports(&self) {
        let url = format!("https://{HOST}/api/reports/a");
        for way in WAYS {
            let start = |_| {
                let (mut curl, address) = self.both.client(way, "curl");
                curl.args(["--silent", "--insecure", "--http1.1", "--connect-to"]);
                curl.arg(format!("::{address}:")).args(ALICE).arg(&url);
                curl.args(["--output", "/dev/null", "--write-out", "%{http_code}"]);
                curl.stdout(Stdio::piped()).spawn().unwrap()
            };
            let reports = [0, 1, 2].map(start);
            assert_eq!(self.ask(way, "/api/a", ALICE).status, 200);
            let mut told = reports.map(|report| {
                let done = report.wait_with_output().unwrap();
                String::from_utf8(done.stdout).unwrap()
            });
            told.sort();
            assert_eq!(told, ["200", "200", "429"], "{way:?}");
            assert_eq!(self.ask(way, "/api/reports/a", ALICE).status, 200);
        }
    }

    /// Clients of the lab are in the networks of the document, and Traefik's own host is not.
    fn networks(&self) {
        let host = self.both.address("be0").to_string();
        let status = |way, arguments: &[&str]| self.ask(way, "/admin/a", arguments).status;
        assert_eq!(status(Way::Old, &["--interface", &host]), 200);
        assert_eq!(status(Way::Old, &[]), 403);
        assert_eq!(status(Way::Prism, &[]), 200);
        let reloaded = self.both.cluster.lab.reload(|config| {
            let rules = &mut config.service.first_mut().rule;
            let rule = rules.iter_mut().find(|rule| rule.status == Some(403));
            rule.unwrap().except_clients = Networks::parse(&["192.0.2.0/24"]).unwrap();
        });
        reloaded.unwrap();
        eventually("the reload has its effect", PATIENCE, || {
            status(Way::Prism, &[]) == 403
        });
    }
}

#[test]
fn a_site_answers_as_behind_traefik() {
    let Some(_turn) = turn() else { return };
    let Some(site) = Site::up() else { return };
    site.redirects();
    site.routes();
    site.users();
    site.cookies();
    site.rates();
    site.reports();
    site.networks();
}
