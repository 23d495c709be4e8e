//! HTTPS connections that move between hosts whose kernels make the records of large bodies and
//! hosts that make all records themselves. On a kernel without TLS user space serves the same
//! connections, and the test says so.

mod server;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use prism_config::{ConfigFile, HandOffMethod, KernelTls};
use prism_sys::tcp::ktls::Offered;
use rustls::ClientConfig;

use crate::successor;
use crate::support::client::{Client, Request};
use crate::support::netem::{has_netem, impair_all};
use crate::support::objects::Object;
use crate::support::packets::{ClientResets, Watch};
use crate::support::tls::programs::path_of;
use crate::support::tls::{Aead, Version, config_with, connect, up_configured};
use crate::support::{Cluster, eventually, say, turn};

/// The backend that makes its records itself; the others use the kernel.
const OFF: &str = "be1";
/// Each connection moves at least this often.
const HAND_OFFS: u64 = 20;
/// Rounds of a connection over all backends.
const ROUNDS: usize = 7;
/// Connections that a node may have, for tests that fill one.
const LIMIT: u32 = 3;

/// Whether this machine's kernel has TLS. Prints a line if not.
fn has_ktls() -> bool {
    let probed = Offered::probe();
    if let Err(error) = &probed {
        let _ = writeln!(
            io::stderr(),
            "SKIPPED: {error}: bodies are sent in user space"
        );
    }
    probed.is_ok()
}

/// Three backends, one of which does not use its kernel.
fn mixed(method: HandOffMethod, change: impl FnOnce(&mut ConfigFile) + Send + 'static) -> Cluster {
    up_configured(
        3,
        |_| {},
        move |config| {
            config.service.first_mut().hand_off_method = method;
            for node in config.nodes.iter_mut().filter(|node| node.name == OFF) {
                node.kernel_tls = KernelTls::Off;
            }
            change(config);
        },
    )
}

/// A client that offers this suite alone.
fn config(cluster: &Cluster, version: Version, aead: Aead) -> Arc<ClientConfig> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let name = match aead {
        Aead::Aes128 => "AES_128_GCM",
        Aead::Aes256 => "AES_256_GCM",
        Aead::ChaCha20 => "CHACHA20_POLY1305",
    };
    provider
        .cipher_suites
        .retain(|suite| format!("{:?}", suite.suite()).contains(name));
    Arc::new(config_with(cluster, &[version.rustls()], provider))
}

/// A body of many records and one of less than one, on each backend.
struct Objects {
    large: Vec<Object>,
    small: Vec<Object>,
}

impl Objects {
    fn put(cluster: &Cluster) -> Self {
        let large = cluster.one_on_each("large", |n| 270_000 + 20_001 * n as u64);
        let small = cluster.one_on_each("small", |n| 3_000 + n as u64);
        cluster.put_all(&large);
        cluster.put_all(&small);
        cluster.assert_no_flows();
        Self { large, small }
    }
}

/// Fetches an object; the client asks for new keys while the body is on its way.
fn get_with_new_keys_within(cluster: &Cluster, client: &mut Client, object: &Object) {
    client.send(&Request::get(object).encode(cluster));
    let head = client.head();
    assert!(client.fill().unwrap());
    client.update_keys();
    client.expect_body(&head, object);
}

/// The nodes' counts of kTLS.
#[derive(Debug)]
struct Used {
    moved: u64,
    bodies: u64,
    left: u64,
    bodies_off: u64,
}

impl Used {
    fn now(cluster: &Cluster) -> Self {
        Self {
            moved: cluster.sum("handoff", "exports_moved"),
            bodies: cluster.sum("handoff", "tls_kernel_bodies"),
            left: cluster.sum("handoff", "tls_kernel_left"),
            bodies_off: cluster.counter(OFF, "handoff", "tls_kernel_bodies"),
        }
    }

    fn since(&self, cluster: &Cluster) -> Self {
        let now = Self::now(cluster);
        Self {
            moved: now.moved - self.moved,
            bodies: now.bodies - self.bodies,
            left: now.left - self.left,
            bodies_off: now.bodies_off - self.bodies_off,
        }
    }
}

/// The number of sockets of a host whose keys the kernel has.
fn kernel_counts(cluster: &Cluster, host: &str) -> u64 {
    let mut cat = cluster.lab.command(host, "cat").unwrap();
    let output = cat.arg("/proc/net/tls_stat").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = text.lines().find_map(|line| line.strip_prefix("TlsTxSw"));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// One connection that moves round and round: bodies of both sizes, several from the same host,
/// and new keys in the middle of bodies, before a hand-off, and before a request to the same
/// host.
fn go_round(cluster: &Cluster, objects: &Objects, version: Version, aead: Aead) {
    let before = Used::now(cluster);
    let mut client = connect(cluster, &config(cluster, version, aead));
    for round in 0..ROUNDS {
        for n in 0..objects.large.len() {
            let (large, small) = (&objects.large[n], &objects.small[n]);
            let updates = version == Version::Tls13 && (round + n) % 3 == 1;
            match updates {
                true => get_with_new_keys_within(cluster, &mut client, large),
                false => client.get(cluster, large),
            }
            // After new keys one request stays, and one moves the connection.
            if round % 2 == 0 {
                client.get(cluster, small);
                client.get(cluster, large);
            }
        }
    }
    client.close_tls();
    let used = before.since(cluster);
    say(&format!("{version:?} {aead:?}: {used:?}"));
    assert!(used.moved >= HAND_OFFS, "{used:?}");
    assert_eq!(used.bodies_off, 0, "{used:?}");
    if Offered::probe().is_ok() {
        assert!(used.bodies > ROUNDS as u64, "{used:?}");
        let must_leave = version == Version::Tls13;
        assert_eq!(used.left > 0, must_leave, "{used:?}");
    }
}

/// All of them use one cluster, as an emulated kernel is slow to start one.
#[test]
fn connections_alternate_between_hosts_with_and_without_kernel_tls() {
    let Some(_turn) = turn() else { return };
    let has_ktls = has_ktls();
    let cluster = mixed(HandOffMethod::Freeze, |_| {});
    let objects = Objects::put(&cluster);
    let watch = Watch::events(&cluster, "ktls");
    for (version, aead) in [
        (Version::Tls13, Aead::Aes128),
        (Version::Tls13, Aead::Aes256),
        (Version::Tls12, Aead::Aes128),
        (Version::Tls12, Aead::Aes256),
    ] {
        go_round(&cluster, &objects, version, aead);
    }
    explicit_nonces_of_tls_1_2_never_come_twice(&cluster, &objects);
    a_client_that_reads_late_gets_all_answers(&cluster, &objects);
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
    assert_eq!(kernel_counts(&cluster, "be0") > 0, has_ktls);
    assert_eq!(kernel_counts(&cluster, OFF), 0);
    cluster.assert_no_flows();
    let ports = Version::ALL.map(|version| the_last_answer_ends_in_order(&cluster, version));
    // The server closed first, and stays in TIME_WAIT.
    cluster.assert_flows(&ports);
    watch.finish(ClientResets::None);
}

#[test]
fn it_does_so_in_two_phases_through_loss_and_delay() {
    let Some(_turn) = turn() else { return };
    if !has_netem() {
        return;
    }
    has_ktls();
    let cluster = mixed(HandOffMethod::TwoPhase, |_| {});
    let objects = Objects::put(&cluster);
    let watch = Watch::events(&cluster, "ktls-netem");
    let impaired = impair_all(&cluster);
    go_round(&cluster, &objects, Version::Tls13, Aead::Aes128);
    drop(impaired);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// The socket is thawed, and its kernel goes on. In two phases it is built again, as for each
/// change of keys.
#[test]
fn a_hand_off_that_is_refused_leaves_the_session_in_its_kernel() {
    let Some(_turn) = turn() else { return };
    let has_ktls = has_ktls();
    let cluster = mixed(HandOffMethod::Freeze, |config| {
        config.limits.connections = LIMIT;
        config.limits.unknown_per_address = Some(LIMIT);
    });
    let objects = Objects::put(&cluster);
    let watch = Watch::events(&cluster, "ktls-refused");
    let mut holders: Vec<Client> = (0..LIMIT).map(|_| cluster.connect()).collect();
    for holder in &mut holders {
        holder.get(&cluster, &objects.small[1]);
    }
    // A frontend that has not heard of their arrival counts them as its own.
    eventually("the frontend has room", Duration::from_secs(2), || {
        cluster.counter("fe0", "handoff", "connections_open") == 0
    });
    let count = |name| cluster.counter("be0", "handoff", name);
    let client_config = config(&cluster, Version::Tls13, Aead::Aes128);
    let mut client = connect(&cluster, &client_config);
    for round in 0..4 {
        client.get(&cluster, &objects.large[0]);
        if round == 3 {
            client.update_keys();
        }
        // A full node refuses them, so they are relayed.
        client.get(&cluster, &objects.large[1]);
        client.get(&cluster, &objects.small[1]);
        // They are still those of the first socket, until the keys had to change.
        assert_eq!(count("tls_kernel_begun"), u64::from(has_ktls));
        let has_left = has_ktls && round == 3;
        assert_eq!(count("tls_kernel_left"), u64::from(has_left));
    }
    assert_eq!(count("kept_target_refused"), 8);
    // It still moves where there is room.
    client.get(&cluster, &objects.large[2]);
    client.close_tls();
    drop(holders);
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// The socket passes with the kernel's keys. The new process follows the kernel's records, and
/// makes those behind new keys itself.
#[test]
fn sessions_in_the_kernel_pass_to_a_successor() {
    let Some(_turn) = turn() else { return };
    let has_ktls = has_ktls();
    let cluster = mixed(HandOffMethod::Freeze, |_| {});
    let objects = Objects::put(&cluster);
    let watch = Watch::events(&cluster, "ktls-successor");
    let count = |name| cluster.counter("be0", "handoff", name);
    let mut clients = Version::ALL.map(|version| {
        let mut client = connect(&cluster, &config(&cluster, version, Aead::Aes128));
        client.get(&cluster, &objects.large[0]);
        client
    });
    assert_eq!(count("tls_kernel_begun") > 0, has_ktls);
    for _ in 0..2 {
        successor::take_over(&cluster, "be0");
        for client in &mut clients {
            client.get(&cluster, &objects.small[0]);
            client.get(&cluster, &objects.large[0]);
        }
        let kernel = [count("tls_kernel_begun"), count("tls_kernel_bodies")];
        assert_eq!(kernel, [0, if has_ktls { 2 } else { 0 }]);
    }
    for (mut client, version) in clients.into_iter().zip(Version::ALL) {
        if version == Version::Tls13 {
            get_with_new_keys_within(&cluster, &mut client, &objects.large[0]);
            client.get(&cluster, &objects.large[0]);
        }
        // It moves to a host that makes all records itself, and back.
        client.get(&cluster, &objects.large[1]);
        client.get(&cluster, &objects.large[0]);
        client.close_tls();
    }
    assert_eq!(count("tls_kernel_left") > 0, has_ktls);
    assert_eq!(cluster.sum("handoff", "exports_lost"), 0);
    cluster.assert_no_flows();
    watch.finish(ClientResets::None);
}

/// Checks that the last answer is whole, and that close_notify follows. Returns the client's
/// port.
fn the_last_answer_ends_in_order(cluster: &Cluster, version: Version) -> u16 {
    let object = Object::new(cluster.key_on("be0", &format!("{version:?}")), 3 << 20);
    cluster.put_all(std::slice::from_ref(&object));
    let mut client = connect(cluster, &config(cluster, version, Aead::Aes128));
    client.get(cluster, &object);
    let last = Request::get(&object).header("Connection", "close");
    client.send(&last.encode(cluster));
    // The server is far ahead of the client, which has not begun to read.
    std::thread::sleep(Duration::from_millis(500));
    client.expect(&object);
    // An end without close_notify would be an error.
    assert!(!client.fill().unwrap());
    client.port()
}

/// Answers of several hosts wait for each other in the order of the requests.
fn a_client_that_reads_late_gets_all_answers(cluster: &Cluster, objects: &Objects) {
    let mut client = connect(cluster, &config(cluster, Version::Tls13, Aead::Aes128));
    for round in 0..4 {
        let order = [0, 1, 2, 0, 2, 2, 1];
        let requests = order.map(|n| Request::get(&objects.large[n]).encode(cluster));
        client.send(&requests.concat());
        if round % 2 == 1 {
            client.update_keys();
        }
        std::thread::sleep(Duration::from_millis(300));
        for n in order {
            client.expect(&objects.large[n]);
        }
    }
    client.close_tls();
}

/// A stream that keeps the bytes which a client reads, as they came from the network.
struct Tee {
    stream: std::net::TcpStream,
    received: Vec<u8>,
}

impl io::Read for Tee {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.stream.read(buffer)?;
        self.received.extend_from_slice(&buffer[..n]);
        Ok(n)
    }
}

impl io::Write for Tee {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// In TLS 1.2 with GCM each record shows its nonce, also to those who could abuse a repeated
/// one.
fn explicit_nonces_of_tls_1_2_never_come_twice(cluster: &Cluster, objects: &Objects) {
    let before = Used::now(cluster);
    let service = cluster.next_https_service();
    let name = rustls::pki_types::ServerName::from(service.ip());
    let config = config(cluster, Version::Tls12, Aead::Aes256);
    let mut tls = rustls::ClientConnection::new(config, name).unwrap();
    let plain = cluster.connect_to(service, |_| {});
    let mut tee = Tee {
        stream: plain.stream().try_clone().unwrap(),
        received: Vec::new(),
    };
    for object in objects.large.iter().chain(&objects.small).cycle().take(24) {
        let mut stream = rustls::Stream::new(&mut tls, &mut tee);
        let path = path_of(object);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: s3\r\n\r\n").unwrap();
        let mut answer = vec![0; 4];
        // The length of the head is unknown: it ends with an empty line.
        stream.read_exact(&mut answer).unwrap();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(0);
            let last = answer.len() - 1;
            stream.read_exact(&mut answer[last..]).unwrap();
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"));
        let mut body = vec![0; usize::try_from(object.len).unwrap()];
        stream.read_exact(&mut body).unwrap();
        object.check(0, &body);
    }
    let nonces = explicit_nonces(&tee.received);
    let different: HashSet<[u8; 8]> = nonces.iter().copied().collect();
    let used = before.since(cluster);
    say(&format!("{} nonces, {used:?}", nonces.len()));
    assert!(used.moved >= HAND_OFFS && nonces.len() > 200);
    assert_eq!(different.len(), nonces.len(), "a nonce came twice");
    tls.send_close_notify();
    tls.write_tls(&mut tee).unwrap();
}

/// The nonces of every record behind the server's change of cipher, its Finished included.
fn explicit_nonces(mut bytes: &[u8]) -> Vec<[u8; 8]> {
    const CHANGE_CIPHER_SPEC: u8 = 20;
    let (mut nonces, mut is_sealed) = (Vec::new(), false);
    while let [kind, _, _, high, low, rest @ ..] = bytes {
        let (record, next) = rest.split_at(usize::from(u16::from_be_bytes([*high, *low])));
        if is_sealed {
            nonces.push(*record.first_chunk().unwrap());
        }
        is_sealed |= *kind == CHANGE_CIPHER_SPEC;
        bytes = next;
    }
    nonces
}
