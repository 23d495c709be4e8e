//! Logins by NTLM and Negotiate, which belong to the server's connection, beside HAProxy in its
//! defaults: clients and strangers get the same answers both ways.

use std::process::{Child, Command};

use prism_lab::{LabName, LabSpec};

use super::PATIENCE;
use super::ambiguous::{HAPROXY, Haproxy, SERVER};
use super::behind::configure;
use crate::support::client::Client;
use crate::support::{Cluster, eventually, output, tls, turn};

/// The messages of a login: the first of every client, and the last ones with the user's name.
const FIRST: &str = "TlRMTVNTUAABAAAAAgAAAA==";
const ALICE: &str =
    "TlRMTVNTUAADAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABQAFAEAAAAAAAAAAAAAAAAAAAAAAAAAAAgAAAGFsaWNl";
const BOB: &str =
    "TlRMTVNTUAADAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAwADAEAAAAAAAAAAAAAAAAAAAAAAAAAAAgAAAGJvYg==";
const CAROL: &str =
    "TlRMTVNTUAADAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAABQAFAEAAAAAAAAAAAAAAAAAAAAAAAAAAAgAAAGNhcm9s";
/// Strangers who ask after each login.
const STRANGERS: usize = 8;

/// The server at a backend. It is killed with its test.
struct Server(Child);

impl Server {
    fn start(cluster: &Cluster, host: &str) -> Self {
        let (address, port) = SERVER.split_once(':').unwrap();
        let script = format!(
            "{}/tests/lab/upstreams/logins.py",
            env!("CARGO_MANIFEST_DIR")
        );
        let mut python = cluster.lab.command(host, "python3").unwrap();
        Self(python.args([&script, address, port]).spawn().unwrap())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The two ways to the server, and what each needs.
struct Ways {
    cluster: Cluster,
    _servers: Vec<Server>,
    _haproxy: Haproxy,
    _directory: tempfile::TempDir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Haproxy,
    Prism,
    /// Prism by HTTPS.
    Secure,
}

impl Ways {
    fn up() -> Self {
        let name: LabName = format!("l{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
        spec.backends = 2;
        spec.tls = true;
        let upstream = format!("upstream = \"{SERVER}\"\n");
        spec.configure = Some(Box::new(move |config| configure(config, &upstream)));
        let cluster = Cluster::around(prism_lab::Lab::up(spec).unwrap());
        let hosts = cluster.backends();
        let servers = hosts.iter().map(|host| Server::start(&cluster, host));
        let servers = servers.collect();
        let directory = tempfile::tempdir().unwrap();
        let haproxy = cluster.lab.command("be0", "haproxy").unwrap();
        let ways = Self {
            _haproxy: Haproxy::start(haproxy, directory.path()),
            cluster,
            _servers: servers,
            _directory: directory,
        };
        ways.cluster.await_servers();
        eventually("both ways work", PATIENCE, || {
            [Way::Haproxy, Way::Prism].into_iter().all(|way| {
                let asked = ways
                    .curl(way)
                    .args(["--fail", &ways.url(way, "/open")])
                    .output();
                asked.unwrap().status.success()
            })
        });
        ways
    }

    fn connect(&self, way: Way) -> Client {
        match way {
            Way::Haproxy => self.cluster.on("be0", || {
                Client::new(std::net::TcpStream::connect(HAPROXY).unwrap())
            }),
            Way::Prism => self.cluster.connect(),
            Way::Secure => {
                let config = tls::config(&self.cluster, rustls::ALL_VERSIONS);
                tls::connect(&self.cluster, &config.into())
            }
        }
    }

    fn curl(&self, way: Way) -> Command {
        let host = if way == Way::Haproxy { "be0" } else { "client" };
        let mut curl = self.cluster.lab.command(host, "curl").unwrap();
        curl.args(["--silent", "--show-error", "--max-time", "20"]);
        curl
    }

    fn url(&self, way: Way, path: &str) -> String {
        match way {
            Way::Haproxy => format!("http://{HAPROXY}{path}"),
            _ => format!("{}{path}", self.cluster.lab.endpoint()),
        }
    }

    /// The connections to all servers on which somebody is logged in.
    fn logged_in(&self) -> usize {
        let hosts = self.cluster.backends();
        let at = |host: &String| {
            let mut curl = self.cluster.lab.command(host, "curl").unwrap();
            let url = format!("http://{SERVER}/logged-in");
            let text = output(curl.args(["--silent", "--fail", &url]));
            text.parse::<usize>().unwrap()
        };
        hosts.iter().map(at).sum()
    }
}

/// The answer to a GET: its status and text.
fn ask(client: &mut Client, path: &str, login: Option<(&str, &str)>) -> String {
    let login = login.map_or_else(String::new, |(scheme, message)| {
        format!("Authorization: {scheme} {message}\r\n")
    });
    let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\n{login}\r\n");
    let answer = client.call(request.as_bytes());
    assert!(answer.keep_alive(), "{}", answer.text());
    format!("{} {}", answer.status(), answer.text())
}

/// All answers to a number of clients, in order.
fn visit(ways: &Ways, way: Way, scheme: &str, has_settled: bool) -> Vec<String> {
    let connect = || {
        let mut client = ways.connect(way);
        // The connection is then at its backend.
        for _ in 0..if has_settled { 4 } else { 0 } {
            assert_eq!(ask(&mut client, "/open", None), "200 open to None");
        }
        client
    };
    let mut answers = Vec::new();
    let mut note = |who: &str, answer: String| answers.push(format!("{who}: {answer}"));
    let strangers = |note: &mut dyn FnMut(&str, String)| {
        for _ in 0..STRANGERS {
            let mut stranger = connect();
            for path in ["/mail", "/open", "/mail", "/mail"] {
                note("a stranger", ask(&mut stranger, path, None));
            }
        }
    };
    let (mut alice, mut bob) = (connect(), connect());
    note("alice", ask(&mut alice, "/mail", None));
    note("alice", ask(&mut alice, "/mail", Some((scheme, FIRST))));
    // Half a login is nobody's.
    strangers(&mut note);
    note("alice", ask(&mut alice, "/mail", Some((scheme, ALICE))));
    strangers(&mut note);
    for message in [FIRST, BOB] {
        note("bob", ask(&mut bob, "/mail", Some((scheme, message))));
    }
    for _ in 0..3 {
        note("alice", ask(&mut alice, "/mail", None));
        note("bob", ask(&mut bob, "/mail", None));
    }
    for message in [FIRST, CAROL] {
        note("carol", ask(&mut alice, "/mail", Some((scheme, message))));
    }
    note("carol", ask(&mut alice, "/mail", None));
    assert_eq!(ways.logged_in(), 2);
    drop(alice);
    strangers(&mut note);
    note("bob", ask(&mut bob, "/mail", None));
    drop(bob);
    eventually("the logins end with their clients", PATIENCE, || {
        ways.logged_in() == 0
    });
    strangers(&mut note);
    answers
}

#[test]
fn a_login_is_for_its_client_alone_and_holds_as_behind_haproxy() {
    let Some(_turn) = turn() else { return };
    let ways = Ways::up();
    for scheme in ["NTLM", "Negotiate"] {
        for has_settled in [false, true] {
            let expected = visit(&ways, Way::Haproxy, scheme, has_settled);
            // What HAProxy does has to be right itself.
            let strangers: Vec<_> = expected.iter().filter(|a| a.contains("stranger")).collect();
            assert_eq!(strangers.len(), 4 * 4 * STRANGERS);
            let is_refused = |answer: &&&String| answer.ends_with(": 401 who?");
            assert_eq!(
                strangers.iter().filter(is_refused).count(),
                3 * 4 * STRANGERS
            );
            for user in ["alice", "bob", "carol"] {
                assert!(expected.contains(&format!("{user}: 200 mail of {user}")));
            }
            for way in [Way::Prism, Way::Secure] {
                let found = visit(&ways, way, scheme, has_settled);
                assert_eq!(found, expected, "{way:?}, {scheme}, settled: {has_settled}");
            }
        }
    }
    // An unmodified client logs in once for all requests of its connection.
    let told = [Way::Haproxy, Way::Prism].map(|way| {
        let mut curl = ways.curl(way);
        curl.args(["--ntlm", "--user", "dave:secret"]);
        curl.args(["--write-out", ", %{num_connects} connected\n"]);
        let urls = [(); 3].map(|()| ways.url(way, "/mail"));
        output(curl.args(urls))
    });
    assert_eq!(told[0], told[1]);
    let lines: Vec<_> = told[0].lines().collect();
    let again = "mail of dave, 0 connected";
    assert_eq!(lines, ["mail of dave, 1 connected", again, again]);
}
