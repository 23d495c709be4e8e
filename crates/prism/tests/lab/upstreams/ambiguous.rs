//! Malformed and ambiguous requests and answers, beside HAProxy in its defaults: nothing that it
//! refuses reaches a server, and the server understands a request as Prism does.

mod requests;

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use prism_config::RelayUpTo;
use prism_lab::{LabName, LabSpec};
use prism_netns::NetNs;

use super::PATIENCE;
use super::behind::configure;
use crate::support::{Cluster, eventually, say, turn};
use requests::{ANSWERS, INNER, REQUESTS};

/// The server of the backend, and HAProxy before it.
pub const SERVER: &str = "127.0.0.1:9003";
pub const HAPROXY: &str = "127.0.0.1:9100";
/// A side that is silent for this time says nothing more.
const SILENCE: Duration = Duration::from_millis(700);
/// Requests under way at once.
const TOGETHER: usize = 16;

/// A server that keeps what it gets. It takes one request from each connection.
struct Recorder {
    netns: NetNs,
    requests: Arc<Mutex<Vec<String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    fn start(netns: NetNs) -> Self {
        let listener = netns.run(|| TcpListener::bind(SERVER).unwrap()).unwrap();
        let (requests, stop) = (Arc::<Mutex<Vec<String>>>::default(), Arc::default());
        let (kept, stopped): (_, Arc<AtomicBool>) = (requests.clone(), stop);
        let stop = stopped.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let kept = kept.clone();
                std::thread::spawn(move || serve(stream.unwrap(), &kept));
            }
        });
        Self {
            netns,
            requests,
            stop,
            thread: Some(thread),
        }
    }

    /// The requests with this identifier, or with that of the hidden one.
    fn of(&self, id: &str) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let of_case = requests.iter().filter(|request| request.contains(id));
        of_case.cloned().collect()
    }

    fn connect(&self, address: &'static str) -> io::Result<TcpStream> {
        self.netns.run(|| TcpStream::connect(address)).unwrap()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.connect(SERVER);
        let _ = self.thread.take().unwrap().join();
    }
}

/// Reads one request, and answers it.
fn serve(mut stream: TcpStream, kept: &Mutex<Vec<String>>) {
    let mut request = String::new();
    while rest_of_body(&request) != Some(0) {
        let more = read_some(&mut stream);
        if more.is_empty() {
            break;
        }
        request.push_str(&more);
    }
    let answer = request.split(' ').nth(1).and_then(|target| {
        let number = target.strip_prefix("/answer/")?;
        Some(ANSWERS[number.parse::<usize>().unwrap()].1)
    });
    if !request.is_empty() {
        kept.lock().unwrap().push(request);
    }
    let _ = stream.write_all(answer.unwrap_or(ANSWERS[0].1).as_bytes());
}

/// The next bytes as Latin-1; none at the end, and after a silence.
fn read_some(stream: &mut TcpStream) -> String {
    let mut piece = [0; 4096];
    stream.set_read_timeout(Some(SILENCE)).unwrap();
    let read = stream.read(&mut piece).unwrap_or(0);
    piece[..read].iter().copied().map(char::from).collect()
}

/// The value of a header field.
fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let found = lines.find(|(found, _)| found.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.trim())
}

/// Bytes that are missing at the end of a message, at least. `None`: the head is not whole.
fn rest_of_body(message: &str) -> Option<usize> {
    let (head, body) = message.split_once("\r\n\r\n")?;
    if field(head, "Transfer-Encoding").is_some() {
        return Some(usize::from(!body.ends_with("0\r\n\r\n")));
    }
    let length = field(head, "Content-Length").and_then(|length| length.parse::<usize>().ok());
    Some(length.unwrap_or(0).saturating_sub(body.chars().count()))
}

/// Why two servers could understand a request differently.
fn ambiguity(request: &str) -> Option<&'static str> {
    let (head, body) = request.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let first: Vec<_> = lines.next()?.split(' ').collect();
    if first.len() != 3 || first[2] != "HTTP/1.1" {
        return Some("the first line");
    }
    let is_odd = |c: char| c.is_control() && c != '\t';
    if head.split("\r\n").any(|line| line.contains(is_odd)) {
        return Some("a control character");
    }
    let is_token = |name: &str| {
        let is_part = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
        !name.is_empty() && name.chars().all(is_part)
    };
    if !lines.all(|line| line.split_once(':').is_some_and(|(name, _)| is_token(name))) {
        return Some("a field's name");
    }
    let all = |name: &str| {
        let fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
        let values = fields.filter(|(found, _)| found.eq_ignore_ascii_case(name));
        let values = values.map(|(_, value)| value.trim().to_owned());
        values.collect::<Vec<_>>()
    };
    if all("Host").len() != 1 {
        return Some("the host");
    }
    let (lengths, codings) = (all("Content-Length"), all("Transfer-Encoding"));
    match (&lengths[..], &codings[..]) {
        ([], []) => (!body.is_empty()).then_some("bytes behind the head"),
        ([length], []) => {
            let is_number = length.bytes().all(|byte| byte.is_ascii_digit());
            let is_more = length
                .parse()
                .is_ok_and(|n: usize| body.chars().count() > n);
            (!is_number || is_more).then_some("the length")
        }
        ([], [coding]) => (coding != "chunked").then_some("the coding"),
        _ => Some("two lengths"),
    }
}

/// Sends bytes, and returns all that comes back.
fn answer_to(mut stream: TcpStream, request: &str) -> String {
    // Latin-1, as in the table.
    let bytes: Vec<u8> = request.chars().map(|c| c as u8).collect();
    // A server that refuses it may close before the end.
    let _ = stream.write_all(&bytes);
    let (mut answer, begun) = (String::new(), Instant::now());
    while begun.elapsed() < PATIENCE {
        match read_some(&mut stream) {
            more if more.is_empty() => break,
            more => answer.push_str(&more),
        }
    }
    answer
}

/// Whether a client takes this for a whole answer of the server.
fn is_whole(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200") && rest_of_body(answer) == Some(0)
}

pub struct Haproxy(Child);

impl Haproxy {
    pub fn start(mut command: Command, directory: &Path) -> Self {
        let config = directory.join("haproxy.cfg");
        let text = format!(
            "defaults\n mode http\n timeout connect 5s\n timeout client 20s\n timeout server 20s\n\
             frontend clients\n bind {HAPROXY}\n default_backend servers\n\
             backend servers\n server one {SERVER}\n"
        );
        std::fs::write(&config, text).unwrap();
        let command = command.args(["-db", "-q", "-f"]).arg(config);
        Self(command.spawn().unwrap())
    }
}

impl Drop for Haproxy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The two ways to one server.
struct Ways {
    cluster: Cluster,
    recorder: Recorder,
    _haproxy: Haproxy,
    _directory: tempfile::TempDir,
}

impl Ways {
    fn up() -> Self {
        let name: LabName = format!("a{}", std::process::id()).parse().unwrap();
        let mut spec = LabSpec::new(name, env!("CARGO_BIN_EXE_prism").into());
        spec.backends = 1;
        spec.relay_up_to = RelayUpTo::Bytes(0);
        let upstream = format!("upstream = \"{SERVER}\"\n");
        spec.configure = Some(Box::new(move |config| configure(config, &upstream)));
        let cluster = Cluster::around(prism_lab::Lab::up(spec).unwrap());
        let netns = NetNs::named(&format!("prism-{}-be0", cluster.lab.name())).unwrap();
        let recorder = Recorder::start(netns);
        let directory = tempfile::tempdir().unwrap();
        let haproxy = cluster.lab.command("be0", "haproxy").unwrap();
        let haproxy = Haproxy::start(haproxy, directory.path());
        let ways = Self {
            cluster,
            recorder,
            _haproxy: haproxy,
            _directory: directory,
        };
        eventually("HAProxy listens", PATIENCE, || {
            ways.recorder.connect(HAPROXY).is_ok()
        });
        eventually("both ways work", PATIENCE, || {
            let ask = "GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n";
            let answers = ways.both(ask, "warm");
            answers.iter().all(|answer| is_whole(answer))
        });
        ways
    }

    /// The answers by Prism and by HAProxy. The identifiers have `p` and `h` before `case`.
    fn both(&self, request: &str, case: &str) -> [String; 2] {
        let of = |way: &str| {
            let request = request.replace("INNER", INNER);
            request.replace("ID", &format!("{way}{case}"))
        };
        let by_prism = answer_to(self.cluster.connect().stream, &of("p"));
        let haproxy = self.recorder.connect(HAPROXY).unwrap();
        [by_prism, answer_to(haproxy, &of("h"))]
    }

    /// The number of requests of the table that reached the server this way.
    fn passed(&self, way: &str) -> usize {
        let id = |n: &usize| format!("{way}{n:03}");
        let all = 0..REQUESTS.len();
        all.filter(|n| !self.recorder.of(&id(n)).is_empty()).count()
    }

    /// The faults in the handling of a request.
    fn faults_of(&self, request: &str, case: &str) -> Vec<String> {
        let [answer, _] = self.both(request, case);
        let (by_prism, by_haproxy) = (
            self.recorder.of(&format!("p{case}")),
            self.recorder.of(&format!("h{case}")),
        );
        let mut faults = Vec::new();
        if by_haproxy.is_empty() && !by_prism.is_empty() {
            faults.push(format!(
                "HAProxy refuses it, and the server got {by_prism:?}"
            ));
        }
        let answers = answer.matches("HTTP/1.1 200").count();
        if answers != by_prism.len() {
            faults.push(format!(
                "{answers} answers: {answer}; the server got {by_prism:?}"
            ));
        }
        let ambiguous = by_prism.iter().filter_map(|request| ambiguity(request));
        faults.extend(ambiguous.map(|what| format!("{what}: {by_prism:?}")));
        faults
    }
}

/// Looks at each row of a table, several at once, and fails with all faults.
fn each(table: &[(&str, &str)], look: impl Fn(usize, &str) -> Vec<String> + Sync) {
    let faults = Mutex::new(Vec::new());
    let next = std::sync::atomic::AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..TOGETHER {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let Some((name, text)) = table.get(n) else {
                        return;
                    };
                    let found = look(n, text);
                    let found = found.iter().map(|fault| format!("{name}: {fault}"));
                    faults.lock().unwrap().extend(found);
                }
            });
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_haproxy_refuses_reaches_no_server_and_nothing_is_understood_in_two_ways() {
    let Some(_turn) = turn() else { return };
    let ways = Ways::up();
    each(REQUESTS, |n, request| {
        ways.faults_of(request, &format!("{n:03}"))
    });
    let [by_prism, by_haproxy] = ["p", "h"].map(|way| ways.passed(way));
    let all = REQUESTS.len();
    say(&format!(
        "of {all} requests Prism passed {by_prism}, HAProxy {by_haproxy}"
    ));
    // Some have only one meaning.
    assert!(0 < by_prism && by_prism <= by_haproxy && by_haproxy < all);
    each(ANSWERS, |n, _| {
        let request = format!("GET /answer/{n} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let [by_prism, by_haproxy] = ways.both(&request, "answer");
        let is_wrong = is_whole(&by_prism) && !is_whole(&by_haproxy);
        let fault = format!("HAProxy: {by_haproxy:?}, Prism: {by_prism:?}");
        is_wrong.then_some(fault).into_iter().collect()
    });
}
