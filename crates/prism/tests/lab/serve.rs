//! `prism serve` as a user runs it: one command without privilege, a real client, a restart,
//! and the messages when it cannot serve.
//!
//! It needs no root. As root the tests run `serve` as a user without privilege.

mod disk;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// "nobody".
const UID: u32 = 65_534;
const PATIENCE: Duration = Duration::from_secs(20);

/// A directory of a user without privilege, with a copy of the program: that user may not see
/// the directory of the build.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::copy(env!("CARGO_BIN_EXE_prism"), place.program()).unwrap();
        for path in [place.dir.path(), &place.program()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            if is_root() {
                chown(path, Some(UID), Some(UID)).unwrap();
            }
        }
        place
    }

    fn program(&self) -> PathBuf {
        self.dir.path().join("prism")
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A command as the user without privilege.
    fn command(&self, program: &Path) -> Command {
        let mut command = match is_root() {
            false => Command::new(program),
            true => {
                let mut command = Command::new("setpriv");
                let user = UID.to_string();
                command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
                command
                    .args(["--inh-caps=-all", "--no-new-privs"])
                    .arg(program);
                command
            }
        };
        command.current_dir(self.dir.path());
        command.env("TMPDIR", self.dir.path());
        for name in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            command.env_remove(name);
        }
        command
    }

    fn serve(&self, dir: &Path, listen: &str) -> Command {
        let mut command = self.command(&self.program());
        command.arg("serve").arg(dir).args(["--listen", listen]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// The message of `serve` when it cannot serve.
    fn refused(&self, mut command: Command) -> String {
        let Output { status, stderr, .. } = command.output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert!(!status.success(), "it ended well, saying {said:?}");
        said
    }
}

/// A running `serve`.
struct Server {
    child: Child,
    endpoint: String,
    /// Address and port of the pages for its administrator.
    admin: String,
    access_key: String,
    secret_key: String,
    /// The lines that it has printed.
    lines: Vec<String>,
    /// The pipe stays open, as its next message would end the program otherwise.
    _said: BufReader<ChildStdout>,
}

impl Server {
    fn start(command: Command) -> Self {
        Self::start_with(command, Stdio::inherit())
    }

    /// Starts it with another standard error.
    fn start_with(mut command: Command, errors: Stdio) -> Self {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()
            .unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap());
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(
                said.read_line(&mut line).unwrap() > 0,
                "it ended after {lines:?}"
            );
            let is_last = line.starts_with("Ctrl-C");
            lines.push(line);
            if is_last {
                break;
            }
        }
        let value = |name: &str| {
            let mut found = lines
                .iter()
                .filter_map(|line| line.trim().strip_prefix(name));
            found.next().unwrap_or_default().to_owned()
        };
        Self {
            endpoint: value("export AWS_ENDPOINT_URL="),
            admin: value("A page for a browser is at http://"),
            access_key: value("export AWS_ACCESS_KEY_ID="),
            secret_key: secret_in(child.id(), value("(kept in ").trim_end_matches(')')),
            lines,
            child,
            _said: said,
        }
    }

    fn session(&self, place: &Place, what: &str, (access_key, secret_key): (&str, &str)) {
        self.python(place, "session.py", &[what], (access_key, secret_key));
    }

    fn own_session(&self, place: &Place, what: &str) {
        self.session(place, what, (&self.access_key, &self.secret_key));
    }

    /// A script beside this file, with the endpoint and these arguments.
    fn python(&self, place: &Place, script: &str, what: &[&str], key: (&str, &str)) {
        let status = self.run_python(place, script, what, key);
        assert!(status.success(), "{script} {what:?}: {status}");
    }

    fn run_python(
        &self,
        place: &Place,
        script: &str,
        what: &[&str],
        key: (&str, &str),
    ) -> ExitStatus {
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/lab/serve");
        let mut python = Command::new("python3");
        python
            .current_dir(place.dir.path())
            .arg(scripts.join(script));
        python.arg(&self.endpoint).args(what);
        python.env("AWS_ACCESS_KEY_ID", key.0);
        python.env("AWS_SECRET_ACCESS_KEY", key.1);
        python.status().unwrap()
    }

    /// Runs `prism ctl scrub` on it.
    fn scrub(&self, place: &Place) -> (bool, serde_json::Value) {
        let mut command = place.command(&place.program());
        let socket = place.data().join("serve.sock");
        command
            .args(["ctl", "scrub", "--json", "--socket"])
            .arg(socket);
        let output = command.output().unwrap();
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.success(), found[0].clone())
    }

    fn full(&self, place: &Place, what: &[&str]) {
        let key = (self.access_key.as_str(), self.secret_key.as_str());
        self.python(place, "full.py", what, key);
    }

    /// Ends it by a signal.
    fn end(mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The secret key in a file of credentials; empty without a file.
/// The secret key in a file, as the process with this number sees its path.
fn secret_in(pid: u32, file: &str) -> String {
    let file = format!("/proc/{pid}/root{file}");
    let text = fs::read_to_string(file).unwrap_or_default();
    let mut lines = text.lines();
    let secret = lines.find_map(|line| line.strip_prefix("secret_key = "));
    secret.unwrap_or_default().trim_matches('"').to_owned()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn one_command_without_privilege_serves_a_real_client_and_a_restart_keeps_everything() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        serves_and_keeps_everything(listen);
    }
}

fn serves_and_keeps_everything(listen: &str) {
    let place = Place::new();
    let first = Server::start(place.serve(&place.data(), listen));
    first.own_session(&place, "fill");
    let store = fs::metadata(place.data().join("store")).unwrap();
    assert_eq!(store.permissions().mode() & 0o777, 0o700);
    assert_is_private(&place.data());
    let secret = first.secret_key.as_str();
    assert!(!secret.is_empty() && !first.lines.concat().contains(secret));
    let key = (first.access_key.clone(), first.secret_key.clone());
    let file = fs::metadata(place.data().join("credentials.toml")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert!(first.end(Signal::TERM).success());

    let second = Server::start(place.serve(&place.data(), listen));
    assert_eq!((&second.access_key, &second.secret_key), (&key.0, &key.1));
    second.own_session(&place, "check");
    assert!(second.end(Signal::INT).success());

    // The key in the environment counts, and the one in the file does not.
    let mut command = place.serve(&place.data(), listen);
    command
        .env("AWS_ACCESS_KEY_ID", "theirs")
        .env("AWS_SECRET_ACCESS_KEY", "secret");
    let third = Server::start(command);
    assert_eq!(
        third.secret_key, "",
        "a secret that the user gave is not repeated"
    );
    third.session(&place, "check", ("theirs", "secret"));
    assert!(third.end(Signal::TERM).success());
}

/// No other user has a right on a directory of the store, or on a file in it.
fn assert_is_private(directory: &Path) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let metadata = entry.metadata().unwrap();
        let mode = metadata.permissions().mode();
        assert_eq!(mode & 0o007, 0, "{}: {mode:o}", entry.path().display());
        if metadata.is_dir() {
            assert_is_private(&entry.path());
        }
    }
}

#[test]
fn the_edges_of_s3_are_those_of_s3() {
    let place = Place::new();
    let server = Server::start(place.serve(&place.data(), "127.0.0.1:0"));
    let key = (server.access_key.as_str(), server.secret_key.as_str());
    server.python(&place, "edges.py", &[], key);
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn an_application_has_its_objects_sent_by_the_process_in_front_of_it() {
    let place = Place::new();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let mut command = place.serve(&place.data(), "127.0.0.1:0");
    command.args(["--upstream", &format!("127.0.0.1:{port}")]);
    let server = Server::start(command);
    let key = (server.access_key.as_str(), server.secret_key.as_str());
    server.python(&place, "redirects.py", &[&port.to_string()], key);
    assert!(server.end(Signal::TERM).success());
}

/// Debian 12's curl sends no `x-amz-content-sha256`. The printed commands work with it.
#[test]
fn curl_puts_reads_and_deletes_and_is_told_what_to_add() {
    let place = Place::new();
    let server = Server::start(place.serve(&place.data(), "127.0.0.1:0"));
    let sent = place.dir.path().join("sent");
    fs::write(&sent, "what curl sends").unwrap();
    let curl = |path: &str, arguments: &[&str]| {
        let mut curl = Command::new("curl");
        let user = format!("{}:{}", server.access_key, server.secret_key);
        curl.args(["-sS", "--aws-sigv4", "aws:amz:us-east-1:s3", "-u", &user]);
        curl.args(["-w", " %{http_code}"]).args(arguments);
        let output = curl.arg(format!("{}{path}", server.endpoint)).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    assert_eq!(curl("/first", &["-X", "PUT"]), " 200");
    let put = ["-T", sent.to_str().unwrap()];
    let refused = curl("/first/file", &put);
    let remedy = "-H 'x-amz-content-sha256: UNSIGNED-PAYLOAD'";
    let is_old = refused.ends_with(" 400");
    assert!(is_old || refused.ends_with(" 200"), "{refused}");
    assert!(!is_old || refused.contains(remedy), "{refused}");
    let field = ["-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD"];
    assert_eq!(curl("/first/file", &[put, field].concat()), " 200");
    assert_eq!(curl("/first/file", &[]), "what curl sends 200");
    assert!(curl("/first/file", &["-I"]).ends_with(" 200"));
    let listed = curl("/first?list-type=2", &[]);
    assert!(listed.contains("<Key>file</Key>"), "{listed}");
    assert_eq!(curl("/first/file", &["-X", "DELETE"]), " 204");
    assert!(curl("/first/file", &[]).ends_with(" 404"));
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn a_quota_is_set_through_the_admin_socket_of_serve() {
    let place = Place::new();
    let server = Server::start(place.serve(&place.data(), "127.0.0.1:0"));
    server.own_session(&place, "fill");
    let socket = place.data().join("serve.sock");
    let quota = |bucket: &str, arguments: &[&str]| {
        let mut command = place.command(&place.program());
        command.args(["ctl", "bucket", "quota", bucket, "--socket"]);
        let output = command.arg(&socket).args(arguments).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(text).unwrap())
    };
    let (done, said) = quota("nowhere", &["--bytes", "1G"]);
    assert!(!done && said.contains("NoSuchBucket"), "{said}");
    let (done, said) = quota("first", &["--bytes", "1G", "--objects", "2K"]);
    assert!(done, "{said}");
    assert!(
        said.contains("of 1073741824") && said.contains("of 2048"),
        "{said}"
    );
    let (_, said) = quota("first", &["--none"]);
    assert!(said.contains("no limit"), "{said}");
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn a_directory_or_port_in_use_is_named_and_left_alone() {
    let place = Place::new();
    let server = Server::start(place.serve(&place.data(), "127.0.0.1:0"));
    let again = place.refused(place.serve(&place.data(), "127.0.0.1:0"));
    assert!(again.contains("in use by another process"), "{again}");
    let address = server.endpoint.strip_prefix("http://").unwrap();
    let other = place.dir.path().join("other");
    let taken = place.refused(place.serve(&other, address));
    assert!(taken.contains("another process listens on"), "{taken}");
    server.own_session(&place, "fill");
    assert!(server.end(Signal::TERM).success());
}

#[test]
fn what_cannot_be_meant_is_refused_with_the_reason() {
    let place = Place::new();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let remote = place.refused(place.serve(&place.data(), listen));
        assert!(remote.contains("--allow-remote"), "{remote}");
    }
    let mut half = place.serve(&place.data(), "127.0.0.1:0");
    half.env("AWS_ACCESS_KEY_ID", "only this");
    let half = place.refused(half);
    assert!(half.contains("or neither"), "{half}");
    // The directory has the program, which `serve` must not serve.
    let foreign = place.refused(place.serve(place.dir.path(), "127.0.0.1:0"));
    assert!(foreign.contains("has other contents"), "{foreign}");
    assert!(!place.dir.path().join("store").exists());
    if is_root() {
        let locked = place.dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        let denied = place.refused(place.serve(&locked, "127.0.0.1:0"));
        assert!(denied.contains("Permission denied"), "{denied}");
        assert!(denied.contains("locked"), "{denied}");
    }
    let file = place.dir.path().join("file");
    fs::write(&file, "").unwrap();
    let no_directory = place.refused(place.serve(&file, "127.0.0.1:0"));
    assert!(
        no_directory.contains("cannot use the directory"),
        "{no_directory}"
    );
}

#[test]
fn it_has_an_audit_log_whatever_the_level_of_its_log() {
    let place = Place::new();
    let audit = place.dir.path().join("audit");
    let mut command = place.serve(&place.data(), "127.0.0.1:0");
    command.args(["--log", "off", "--audit-log"]).arg(&audit);
    let server = Server::start(command);
    server.own_session(&place, "fill");
    assert!(server.end(Signal::TERM).success());
    let text = fs::read_to_string(&audit).unwrap();
    assert!(text.contains(r#""action":"CreateBucket""#), "{text}");
    assert!(text.contains(r#""at":"serve""#), "{text}");

    // Without a file its lines are in the log.
    let log = fs::File::create(place.dir.path().join("log")).unwrap();
    let mut command = place.serve(&place.data(), "127.0.0.1:0");
    command.args(["--log", "warn"]);
    let server = Server::start_with(command, log.into());
    let request = "DELETE /first HTTP/1.1\r\nHost: s3\r\n\r\n";
    let mut stream = TcpStream::connect(server.endpoint.trim_start_matches("http://")).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    stream.read_exact(&mut [0; 12]).unwrap();
    assert!(server.end(Signal::TERM).success());
    let text = fs::read_to_string(place.dir.path().join("log")).unwrap();
    assert!(
        text.contains("DeleteBucket") && text.contains("prism::audit"),
        "{text}"
    );
}

#[test]
fn it_shows_its_administrator_what_it_does() {
    for listen in ["127.0.0.1:0", "[::1]:0"] {
        shows_what_it_does(listen);
    }
}

fn shows_what_it_does(listen: &str) {
    let place = Place::new();
    let mut command = place.serve(&place.data(), listen);
    command.args(["--admin-listen", listen]);
    let server = Server::start(command);
    server.own_session(&place, "fill");
    let page = |path: &str| {
        let mut stream = TcpStream::connect(&server.admin).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{path}: {head}");
        (head.to_owned(), body.to_owned())
    };
    assert_eq!(page("/-/ready").1, "ready\n");
    let metrics = page("/metrics").1;
    let puts = "prism_s3_requests_total{operation=\"PutObject\",code=\"200\",path=\"direct\"} ";
    assert!(metrics.contains(puts), "{metrics}");
    let state: serde_json::Value = serde_json::from_str(&page("/state").1).unwrap();
    assert_eq!(state["kind"], "serve");
    // A browser's policy cannot name an IPv6 address, so the page offers none.
    let offered = listen.starts_with("127").then_some(&server.endpoint);
    assert_eq!(state["store_urls"][0].as_str(), offered.map(String::as_str));
    assert!(
        state["nodes"][0]["requests"].as_array().unwrap().len() > 2,
        "{state}"
    );
    let head = page("/").0;
    let offered = offered.map_or("", |endpoint| endpoint);
    let policy = format!("connect-src 'self' {offered};");
    assert!(head.contains(&policy), "{head}");
}

/// Answers every request on a free port with this text and the client's address as Prism says it,
/// until the listener is dropped by the end of the test.
fn application(text: &'static str) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            std::thread::spawn(move || {
                let (mut head, mut line) = (String::new(), String::new());
                while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line != "\r\n" {
                        head += &std::mem::take(&mut line);
                        continue;
                    }
                    let client = head.lines().find(|l| l.starts_with("X-Forwarded-For: "));
                    let body = format!("{text} for {}", client.unwrap_or("nobody"));
                    let bytes = body.len();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n{body}");
                    stream.get_mut().write_all(answer.as_bytes()).unwrap();
                    head.clear();
                    line.clear();
                }
            });
        }
    });
    address
}

#[test]
fn an_application_is_seen_through_one_command_without_root() {
    let place = Place::new();
    let command = |arguments: &[&str]| {
        let mut command = place.command(&place.program());
        command.arg("serve").args(arguments);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        command
    };
    let application = application("hello").to_string();
    let server = Server::start(command(&[
        "--upstream",
        &application,
        "--listen",
        "127.0.0.1:0",
    ]));
    let service = server.lines.iter().find_map(|line| {
        let (service, there) = line.strip_prefix("Requests to ")?.split_once(" go to ")?;
        (there.trim() == application).then(|| service.to_owned())
    });
    let curl = Command::new("curl")
        .args(["-sS", &service.unwrap()])
        .output();
    let said = String::from_utf8(curl.unwrap().stdout).unwrap();
    assert_eq!(said, "hello for X-Forwarded-For: 127.0.0.1");
    drop(server);

    for (arguments, expected) in [
        (
            &["--upstream", "127.0.0.1:9000"][..],
            "the address of Prism itself",
        ),
        (
            &["--upstream", "localhost:3000"],
            "use an address and a port",
        ),
        (&["--upstream", "127.0.0.1:3000", "--no-fsync"], "required"),
        (&[], "required"),
    ] {
        let said = place.refused(command(arguments));
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
}
