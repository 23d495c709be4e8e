//! Requests are carried out once, while nodes and applications are killed and links between nodes
//! fail. The client repeats nothing, so every repetition is Prism's.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prism_config::RelayUpTo;
use prism_lab::{Lab, LabSpec, Mode};
use prism_netns::NetNs;

use super::behind::Behind;
use crate::support::client::Client;
use crate::support::{Stop, output, say, turn};

/// Time for faults.
const FAULTS_FOR: Duration = Duration::from_secs(30);
const CLIENTS: u64 = 10;
/// The number of the fault that lasts longest.
const LONG_CUT: usize = 4;
/// The longest time that a client waits: a link that fails is noticed before.
const GIVEN_UP_IN: Duration = Duration::from_secs(12);
/// Most times that a request is carried out which may be repeated, by the default of `retries`. What
/// HTTP calls idempotent is repeated only after the end of an idle connection.
const MAX_REPEATED: u64 = 3;

/// Methods, and how often their requests may be carried out.
const METHODS: [(&str, u64); 6] = [
    ("GET", MAX_REPEATED),
    ("PUT", MAX_REPEATED),
    ("DELETE", MAX_REPEATED),
    ("POST", 1),
    ("PATCH", 1),
    ("PURGE", 1),
];

/// The requests of clients by their identifiers: the method, the most times that it may be carried
/// out, and its status, or 0 without an answer.
type Asked = BTreeMap<String, (&'static str, u64, u16)>;

/// A random request.
fn request(rng: &mut fastrand::Rng, id: &str) -> (Vec<u8>, &'static str, u64) {
    let (method, most) = METHODS[rng.usize(..METHODS.len())];
    let len = [10, 3_000, 4_097, 60_000][rng.usize(..4)];
    let kind = ["bytes", "chunks"][rng.usize(..2)];
    let mut bytes = format!(
        "{method} /{kind}?n={len}&ms={} HTTP/1.1\r\nHost: h\r\nX-Id: {id}\r\n",
        rng.u32(..20)
    )
    .into_bytes();
    let body = vec![b'b'; [1, 5_000, 100_000][rng.usize(..3)]];
    match (method, rng.u8(..3)) {
        ("GET" | "DELETE", _) | (_, 0) => bytes.extend_from_slice(b"\r\n"),
        (_, 1) => {
            bytes.extend(format!("Content-Length: {}\r\n\r\n", body.len()).into_bytes());
            bytes.extend(body);
        }
        _ => {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            bytes.extend(format!("{:x}\r\n", body.len()).into_bytes());
            bytes.extend(body);
            bytes.extend_from_slice(b"\r\n0\r\n\r\n");
        }
    }
    (bytes, method, most)
}

/// A client's host, and the addresses of the service.
struct From {
    namespace: String,
    services: Vec<SocketAddr>,
}

impl From {
    /// A connection, which a frontend that was killed may refuse.
    fn connect(&self, rng: &mut fastrand::Rng) -> Option<Client> {
        let to = self.services[rng.usize(..self.services.len())];
        let netns = NetNs::named(&self.namespace).unwrap();
        let stream = netns.run(|| TcpStream::connect_timeout(&to, GIVEN_UP_IN));
        Some(Client::new(stream.unwrap().ok()?).with_timeout(GIVEN_UP_IN))
    }

    /// Sends random requests, each once.
    fn ask(&self, number: u64, stop: &AtomicBool) -> Asked {
        let (mut rng, mut all) = (fastrand::Rng::with_seed(number), Asked::new());
        let mut client = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(connected) = client.take().or_else(|| self.connect(&mut rng)) else {
                continue;
            };
            let mut connected: Client = connected;
            let id = format!("{number}.{}", all.len());
            let (bytes, method, most) = request(&mut rng, &id);
            let answer = connected.try_call(&bytes);
            let status = answer.as_ref().map_or(0, |answer| answer.status());
            all.insert(id, (method, most, status));
            let stays = answer.is_ok_and(|answer| answer.keep_alive());
            client = Some(connected).filter(|_| stays && rng.u8(..20) > 0);
        }
        all
    }
}

/// The n-th fault. Returns what it was.
fn fail(behind: &mut Behind, n: usize, rng: &mut fastrand::Rng) -> String {
    let host = format!("be{}", rng.u8(..3));
    let lab = &mut behind.cluster.lab;
    let mut pause = |least_ms: u64| {
        std::thread::sleep(Duration::from_millis(rng.u64(least_ms..least_ms * 3)));
    };
    match n % 5 {
        0 => {
            lab.kill(&host).unwrap();
            pause(50);
            lab.restart(&host).unwrap();
            format!("{host} was killed")
        }
        1 => {
            behind.apps.kill(&host);
            pause(200);
            behind.apps.start(&host);
            format!("the server of {host} was killed")
        }
        2 => {
            lab.kill("fe1").unwrap();
            pause(50);
            lab.restart("fe1").unwrap();
            "fe1 was killed".into()
        }
        kind => {
            let hook = ["output", "input"][kind % 2];
            cut(lab, &host, hook);
            // Once for so long that nodes give requests to it up.
            pause(if n == LONG_CUT { 3_000 } else { 500 });
            mend(lab, &host);
            format!("{host} had no {hook}")
        }
    }
}

/// Drops all that a backend sends to other hosts (`output`), or all that it gets (`input`).
fn cut(lab: &Lab, host: &str, hook: &str) {
    let chain = format!("{{ type filter hook {hook} priority 0; policy drop; }}");
    let own = format!("{}ifname lo accept", &hook[..1]);
    let rules =
        format!("add table inet cut; add chain inet cut way {chain}; add rule inet cut way {own}");
    output(lab.command(host, "nft").unwrap().arg(rules));
}

fn mend(lab: &Lab, host: &str) {
    output(
        lab.command(host, "nft")
            .unwrap()
            .arg("delete table inet cut"),
    );
}

#[test]
fn no_request_is_carried_out_twice_whatever_fails() {
    let Some(_turn) = turn() else { return };
    none_is_carried_out_twice(Mode::Switch);
}

#[test]
fn no_request_is_carried_out_twice_in_host_mode() {
    let Some(_turn) = turn() else { return };
    none_is_carried_out_twice(Mode::Host);
}

fn none_is_carried_out_twice(mode: Mode) {
    let seed = std::env::var("PRISM_SEED").map_or(7, |seed| seed.parse().unwrap());
    let up = |spec: &mut LabSpec| {
        // Some answers are relayed, and some wait for their connection.
        (spec.mode, spec.frontends, spec.relay_up_to) = (mode, 2, RelayUpTo::Bytes(4_096));
    };
    let mut behind = Behind::up(up, "");
    let lab = &behind.cluster.lab;
    let from = From {
        namespace: format!("prism-{}-client", lab.name()),
        services: lab.services().collect(),
    };
    let stop = AtomicBool::new(false);
    let asked = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        let (from, stopped) = (&from, &stop);
        let clients = (0..CLIENTS).map(|n| scope.spawn(move || from.ask(seed * 100 + n, stopped)));
        let clients: Vec<_> = clients.collect();
        let (begun, mut rng) = (Instant::now(), fastrand::Rng::with_seed(seed));
        for n in (0..).take_while(|_| begun.elapsed() < FAULTS_FOR) {
            std::thread::sleep(Duration::from_millis(rng.u64(200..800)));
            say(&fail(&mut behind, n, &mut rng));
        }
        stop.store(true, Ordering::Relaxed);
        let asked = clients.into_iter().map(|client| client.join().unwrap());
        asked.flatten().collect::<Asked>()
    });
    let counts = behind.counts();
    let mut worst = BTreeMap::new();
    for (id, (method, most, status)) in &asked {
        let count = counts.get(id).copied().unwrap_or_default();
        assert!(
            count <= *most,
            "{method} {id} was carried out {count} times, status {status}: {}",
            behind.hosts_of(id)
        );
        assert!(
            count > 0 || *status != 200,
            "{method} {id} was answered by nobody"
        );
        let seen = worst.entry((*method, *status)).or_insert((0, 0));
        *seen = (seen.0 + 1, count.max(seen.1));
    }
    for ((method, status), (requests, most)) in worst {
        say(&format!(
            "{method} {status}: {requests} requests, at most {most} times each"
        ));
    }
    let failed = asked
        .values()
        .filter(|(_, _, status)| *status != 200)
        .count();
    assert!(
        asked.len() > 2_000 && failed < asked.len() / 4,
        "{failed} of {} failed",
        asked.len()
    );
}
