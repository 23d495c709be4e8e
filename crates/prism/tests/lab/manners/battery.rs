//! Requests of every form, pipelined, on connections that live long, while processes are replaced
//! and nodes leave and come back. Each answer is that of its request, each request is carried out
//! once, none is lost, and nothing grows.

use std::fs::Permissions;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use prism_config::RelayUpTo;
use prism_http::Method;
use prism_lab::{LabSpec, Mode};
use prism_netns::NetNs;
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

use crate::successor::take_over;
use crate::support::client::{Answer, Client};
use crate::support::packets::{ClientResets, Watch};
use crate::support::{eventually, output, say, tls, turn};
use crate::upstreams::PATIENCE;
use crate::upstreams::behind::{APP, Behind, pattern};

/// Requests by each of HTTP and HTTPS.
const REQUESTS: usize = 10_000;
/// Connections at once, of which half have TLS.
const CLIENTS: usize = 8;
/// Requests that are sent before the first one of them is answered.
const PIPELINED: [usize; 6] = [1, 1, 1, 2, 3, 5];
const ANSWER_BYTES: [usize; 7] = [0, 1, 200, 600, 3_000, 20_000, 100_000];
const BODY_BYTES: [usize; 6] = [0, 1, 50, 4_000, 16_385, 70_000];
/// The requests of a connection before its client opens another one.
const REQUESTS_OF_CONNECTION: usize = 60;
/// Growth that buffers and the allocator explain.
const MAX_GROWTH_KIB: u64 = 24 << 10;
const MAX_NEW_FILES: usize = 24;

/// A request, and what its answer has to be.
struct Asked {
    bytes: Vec<u8>,
    method: Method,
    status: u16,
    body: Vec<u8>,
}

impl Asked {
    fn random(rng: &mut fastrand::Rng, id: &str) -> Self {
        let choose = |rng: &mut fastrand::Rng, of: &[usize]| of[rng.usize(..of.len())];
        let len = choose(rng, &ANSWER_BYTES);
        let host = rng.u8(..3);
        let begin = |method: &str, target: &str| {
            let text = format!("{method} {target} HTTP/1.1\r\nHost: h{host}\r\nX-Id: {id}\r\n");
            text.into_bytes()
        };
        let (method, target, status, body) = match rng.u8(..8) {
            0..=2 => ("GET", format!("/bytes?n={len}"), 200, pattern(len)),
            3 => ("GET", format!("/chunks?n={len}"), 200, in_pieces(len)),
            4 => ("HEAD", format!("/bytes?n={len}"), 200, Vec::new()),
            5 => ("DELETE", "/none".to_owned(), 204, Vec::new()),
            _ => return Self::with_body(rng, begin("POST", "/digest")),
        };
        let mut bytes = begin(method, &target);
        bytes.extend_from_slice(b"\r\n");
        Self {
            bytes,
            method: match method {
                "HEAD" => Method::HEAD,
                _ => Method::GET,
            },
            status,
            body,
        }
    }

    /// An upload, of which the server tells the digest.
    fn with_body(rng: &mut fastrand::Rng, mut bytes: Vec<u8>) -> Self {
        let mut body = vec![0; BODY_BYTES[rng.usize(..BODY_BYTES.len())]];
        rng.fill(&mut body);
        let is_chunked = rng.bool();
        if rng.u8(..5) == 0 {
            bytes.extend_from_slice(b"Expect: 100-continue\r\n");
        }
        let mut trailer = "";
        if is_chunked {
            bytes.extend_from_slice(b"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n");
            let mut rest = &body[..];
            while !rest.is_empty() {
                let len = [1, 17, 3_000, 65_000][rng.usize(..4)].min(rest.len());
                let (chunk, left) = rest.split_at(len);
                bytes.extend(format!("{len:x}\r\n").into_bytes());
                bytes.extend_from_slice(chunk);
                bytes.extend_from_slice(b"\r\n");
                rest = left;
            }
            bytes.extend_from_slice(b"0\r\n");
            if rng.bool() {
                trailer = "eight";
                bytes.extend_from_slice(b"X-Sum: eight\r\n");
            }
            bytes.extend_from_slice(b"\r\n");
        } else {
            bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
            bytes.extend_from_slice(&body);
        }
        let digest = hex(digest(&SHA256, &body).as_ref());
        Self {
            bytes,
            method: Method::POST,
            status: 200,
            body: format!("{} {digest} {trailer}\n", body.len()).into_bytes(),
        }
    }

    fn check(&self, answer: &Answer) {
        let asked = String::from_utf8_lossy(&self.bytes[..self.bytes.len().min(200)]);
        assert_eq!(answer.status(), self.status, "{asked}: {}", answer.text());
        assert!(answer.body == self.body, "{asked}: {}", answer.text());
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The application begins anew with each piece of 10,000 bytes.
fn in_pieces(len: usize) -> Vec<u8> {
    let mut body = pattern(10_000).repeat(len.div_ceil(10_000));
    body.truncate(len);
    body
}

/// A service, as clients in one namespace reach it.
struct Service {
    namespace: String,
    http: SocketAddr,
    https: (SocketAddr, Arc<ClientConfig>),
}

impl Service {
    fn connect(&self, is_tls: bool) -> io::Result<Client> {
        let address = if is_tls { self.https.0 } else { self.http };
        let netns = NetNs::named(&self.namespace).unwrap();
        let client = Client::new(netns.run(|| TcpStream::connect(address)).unwrap()?);
        if !is_tls {
            return Ok(client);
        }
        let name = ServerName::from(address.ip());
        client.try_with_tls(ClientConnection::new(self.https.1.clone(), name).unwrap())
    }

    /// Sends requests until `left` of them are answered. `id` makes identifiers.
    fn ask(&self, is_tls: bool, seed: u64, left: &AtomicUsize, id: &(impl Fn() -> String + Sync)) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut again: Vec<Asked> = Vec::new();
        while left.load(Ordering::Relaxed) > 0 {
            let mut client = self.connect(is_tls).unwrap();
            let mut asked = 0;
            let mut is_open = true;
            while is_open && asked < REQUESTS_OF_CONNECTION && left.load(Ordering::Relaxed) > 0 {
                let count = PIPELINED[rng.usize(..PIPELINED.len())];
                let mut batch = std::mem::take(&mut again);
                while batch.len() < count {
                    batch.push(Asked::random(&mut rng, &id()));
                }
                asked += batch.len();
                send_in_pieces(&mut client, &mut rng, &batch);
                let mut batch = batch.into_iter();
                for request in batch.by_ref() {
                    let answer = final_answer(&mut client, &request.method);
                    let answer = answer.unwrap_or_else(|error| {
                        let asked = &request.bytes[..request.bytes.len().min(80)];
                        panic!("{error}, for {}", String::from_utf8_lossy(asked));
                    });
                    request.check(&answer);
                    let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                        Some(left.saturating_sub(1))
                    });
                    if !answer.keep_alive() {
                        is_open = false;
                        break;
                    }
                }
                // Nobody has carried them out (RFC 9112, section 9.6).
                again = batch.collect();
            }
        }
    }
}

/// The answer behind interim ones.
fn final_answer(client: &mut Client, method: &Method) -> io::Result<Answer> {
    loop {
        let head = client.try_head()?;
        if head.status() >= 200 {
            let mut body = Vec::new();
            client.try_body(&head, method, |piece| body.extend_from_slice(piece))?;
            return Ok(Answer { head, body });
        }
    }
}

fn send_in_pieces(client: &mut Client, rng: &mut fastrand::Rng, batch: &[Asked]) {
    let bytes: Vec<u8> = batch.iter().flat_map(|asked| asked.bytes.clone()).collect();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let len = [1, 10, 1_000, 1_448, 20_000, usize::MAX][rng.usize(..6)];
        let (piece, left) = rest.split_at(len.min(rest.len()));
        // A connection that ends here has answered a request before with `Connection: close`.
        if client.try_send(piece).is_err() {
            return;
        }
        rest = left;
        if rng.u8(..50) == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Sends all requests, while `disturb` is called until they are done. Returns the identifiers that
/// were used, which begin at 0.
fn run(service: &Service, mut disturb: impl FnMut(usize)) -> usize {
    let next = AtomicUsize::new(0);
    let id = || next.fetch_add(1, Ordering::Relaxed).to_string();
    let left = [false, true].map(|_| AtomicUsize::new(REQUESTS));
    let seed = fastrand::u64(..);
    say(&format!("seed {seed}"));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|n| {
                let (is_tls, seed) = (n % 2 == 1, seed.wrapping_add(n as u64));
                let (left, id) = (&left[usize::from(is_tls)], &id);
                scope.spawn(move || service.ask(is_tls, seed, left, id))
            })
            .collect();
        let all = scope.spawn(move || {
            let joined: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
            joined.into_iter().find_map(Result::err)
        });
        let mut round = 0;
        while !all.is_finished() {
            disturb(round);
            round += 1;
        }
        say(&format!("{round} disturbances"));
        if let Some(panic) = all.join().unwrap() {
            std::panic::resume_unwind(panic);
        }
    });
    next.into_inner()
}

/// The descriptors and the memory of a process.
#[derive(Clone, Copy, Debug)]
struct Size {
    files: usize,
    memory_kib: u64,
}

impl Size {
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let memory = memory.unwrap().trim().trim_end_matches(" kB");
        Self {
            files: std::fs::read_dir(format!("/proc/{pid}/fd"))
                .unwrap()
                .count(),
            memory_kib: memory.parse().unwrap(),
        }
    }

    fn check_growth_to(self, now: Self) {
        say(&format!("{self:?}, then {now:?}"));
        assert!(
            now.files <= self.files + MAX_NEW_FILES,
            "files are left open"
        );
        assert!(
            now.memory_kib <= self.memory_kib + MAX_GROWTH_KIB,
            "memory grows"
        );
    }
}

fn each_request_is_answered_once(mode: Mode) {
    let up = |spec: &mut LabSpec| {
        (spec.mode, spec.tls, spec.relay_up_to) = (mode, true, RelayUpTo::default());
    };
    let mut behind = Behind::up(up, "");
    let watch = Watch::events(&behind.cluster, "battery");
    let lab = &behind.cluster.lab;
    let service = Service {
        namespace: format!("prism-{}-client", lab.name()),
        http: lab.service(),
        https: (
            lab.https_service().unwrap(),
            Arc::new(tls::config(&behind.cluster, rustls::ALL_VERSIONS)),
        ),
    };
    let stays = lab.pid("be2").unwrap();
    let mut first = None;
    let used = run(&service, |round| {
        if round == 1 {
            first = Some(Size::of(stays));
        }
        match round % 3 {
            0 => take_over(&behind.cluster, "be0"),
            1 => leave_and_return(&mut behind, "be1"),
            _ => take_over(&behind.cluster, "fe0"),
        }
        std::thread::sleep(Duration::from_millis(300));
    });
    if let Some(first) = first {
        first.check_growth_to(Size::of(stays));
    }
    check_counts(&behind, used);
    for host in ["fe0", "be0", "be1", "be2"] {
        eventually("no connection is left", PATIENCE, || {
            behind.cluster.counter(host, "handoff", "connections_open") == 0
        });
    }
    watch.finish(ClientResets::AtItsEnd);
}

/// Each of the requests with the first `used` identifiers was carried out at most once. A client
/// that is done sends its last ones not again.
fn check_counts(behind: &Behind, used: usize) {
    let counts = behind.counts();
    for id in (0..used).map(|id| id.to_string()) {
        let count = counts.get(&id).copied().unwrap_or(0);
        assert!(count <= 1, "{id}: {count} times, {}", behind.hosts_of(&id));
    }
    assert!(counts.len() >= 2 * REQUESTS, "{} of {used}", counts.len());
}

/// Ends the process of a node in order, and starts it again.
fn leave_and_return(behind: &mut Behind, host: &str) {
    let pid = behind.cluster.lab.pid(host).unwrap().cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    eventually("the node has left", PATIENCE, || {
        behind.cluster.lab.pid(host).is_none()
    });
    behind.cluster.lab.restart(host).unwrap();
    behind.cluster.await_servers();
}

#[test]
fn each_request_of_a_mix_is_answered_once_while_nodes_come_and_go() {
    let Some(_turn) = turn() else { return };
    each_request_is_answered_once(Mode::Switch);
}

#[test]
fn each_request_of_a_mix_is_answered_once_in_host_mode_while_nodes_come_and_go() {
    let Some(_turn) = turn() else { return };
    each_request_is_answered_once(Mode::Host);
}

/// A node alone, without a switch: in the namespace of a backend, and before its application.
struct Alone<'b> {
    behind: &'b Behind,
    directory: tempfile::TempDir,
    child: Child,
}

/// The addresses of the service and of the node.
const ALONE: [&str; 2] = ["10.99.0.1", "10.99.0.2"];
const ALONE_AT: &str = "be0";

impl<'b> Alone<'b> {
    fn start(behind: &'b Behind) -> (Self, Service) {
        let lab = &behind.cluster.lab;
        for address in ALONE {
            let mut ip = lab.command(ALONE_AT, "ip").unwrap();
            output(ip.args(["address", "add", &format!("{address}/32"), "dev", "lo"]));
        }
        let directory = tempfile::tempdir().unwrap();
        let own = rcgen::generate_simple_self_signed(vec![ALONE[0].to_owned()]).unwrap();
        for (name, text) in [
            ("tls.crt", own.cert.pem()),
            ("tls.key", own.signing_key.serialize_pem()),
            ("config.toml", config_of_alone()),
        ] {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        }
        let mut pki = lab.command(ALONE_AT, env!("CARGO_BIN_EXE_prism")).unwrap();
        pki.args(["pki", "init", "--nodes", "alone", "--dir"]);
        output(pki.arg(directory.path().join("pki")));
        let child = node_alone(behind, directory.path(), &[]);
        let mut roots = RootCertStore::empty();
        roots.add(own.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots).with_no_client_auth();
        let address = |port| SocketAddr::new(ALONE[0].parse().unwrap(), port);
        let service = Service {
            namespace: format!("prism-{}-{ALONE_AT}", lab.name()),
            http: address(80),
            https: (address(443), Arc::new(config)),
        };
        eventually("the node alone listens", PATIENCE, || {
            let warm = b"GET /bytes?n=1 HTTP/1.1\r\nHost: h\r\n\r\n";
            let client = service.connect(true);
            client.is_ok_and(|mut client| client.call(warm).status() == 200)
        });
        let alone = Self {
            behind,
            directory,
            child,
        };
        (alone, service)
    }

    fn is_replaced(&mut self) {
        let successor = node_alone(self.behind, self.directory.path(), &["--take-over"]);
        let mut former = std::mem::replace(&mut self.child, successor);
        eventually("the former process ends", PATIENCE, || {
            former.try_wait().unwrap().is_some()
        });
        assert!(former.wait().unwrap().success());
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn node_alone(behind: &Behind, directory: &Path, more: &[&str]) -> Child {
    let program = env!("CARGO_BIN_EXE_prism");
    let mut command = behind.cluster.lab.command(ALONE_AT, program).unwrap();
    command.args(["node", "--node", "alone"]).args(more);
    command.arg("--config").arg(directory.join("config.toml"));
    command.spawn().unwrap()
}

fn config_of_alone() -> String {
    let [service, node] = ALONE;
    format!(
        "[cluster]\nname = \"alone\"\n[service]\naddress = \"{service}:80\"\nupstream = \"{APP}\"\n\
         [service.tls]\n[[service.tls.certificate]]\nfile = \"tls.crt\"\nkey_file = \"tls.key\"\n\
         [[node]]\nname = \"alone\"\naddress = \"{node}\"\nroles = [\"frontend\", \"backend\"]\n\
         [peers]\nca_file = \"pki/ca.crt\"\ncert_dir = \"pki\"\n\
         [admin]\nsocket_dir = \"run\"\nlisten = \"{node}:9465\"\n[log]\nlevel = \"warn\"\n"
    )
}

#[test]
fn each_request_of_a_mix_is_answered_once_by_a_node_alone_while_it_is_replaced() {
    let Some(_turn) = turn() else { return };
    let behind = Behind::up(|spec| spec.backends = 1, "");
    let (mut alone, service) = Alone::start(&behind);
    let used = run(&service, |_| {
        alone.is_replaced();
        std::thread::sleep(Duration::from_millis(500));
    });
    check_counts(&behind, used);
}
