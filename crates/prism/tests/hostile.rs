//! What nobody should send: forged, replayed, cut and senseless messages at
//! the control address, the node port and the service port. Nothing changes,
//! it is counted, and the service goes on. Needs root; without it each test
//! says so and passes, except under CI, where it fails.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "test code"
)]

mod impair_support;
#[path = "impair_support/tls.rs"]
mod tls;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use impair_support::{Bed, Client, Known, Way, eventually, lab_control, path, say, turn};
use prism_lab::{Capture, CaptureOptions};
use prism_proto::control::{ControlKey, MESSAGE_BYTES, Ops, Owner, Request, offset};
use prism_proto::node::{ALPN_HAND_OFF, FRAME_PREFIX_BYTES, Frame, MAX_FRAME_BYTES, Refusal};
use tls::{Wire, acceptor, dialler, framed};

const SEED: u64 = 0x4057_11e5;
const OBJECTS: usize = 24;
/// Channels and relay streams to other nodes that may come up meanwhile and
/// stay; far fewer than the connections that must not.
const POOLED: usize = 8;
/// The statuses of answered control datagrams.
const ANSWERED: [&str; 7] = [
    "control_ok",
    "control_stale",
    "control_full",
    "control_denied",
    "control_no_service",
    "control_late",
    "control_bad_request",
];

/// A lab, and a connection that lives on a backend.
fn bed_with_connection(label: &str) -> (Bed, Client, Known) {
    let bed = Bed::up(label, &Way::Direct);
    bed.fill(OBJECTS);
    let mut client = bed.client();
    client.get_from(&bed, "be0");
    bed.assert_only(&client);
    let known = bed.flow_of(client.local()).unwrap();
    (bed, client, known)
}

impl Client {
    /// Fetches an object of `host` until the connection is there: the first
    /// requests after a start may be relayed.
    fn get_from(&mut self, bed: &Bed, host: &str) {
        let address = bed.lab.address(host).unwrap();
        eventually("a hand-off", Duration::from_secs(5), || {
            self.get(bed.object_of(host));
            let flow = bed.flow_of(self.local());
            flow.is_some_and(|known| known.owner.via == address)
        });
    }
}

impl Bed {
    /// The flows of earlier connections are gone.
    fn assert_only(&self, client: &Client) {
        eventually("earlier flows go", Duration::from_secs(5), || {
            self.flows().iter().all(|k| k.flow.client == client.local())
        });
    }

    /// Sends `datagrams` from `host` to the switch.
    fn send_control(&self, host: &str, datagrams: &[Vec<u8>]) {
        let control = lab_control(&self.lab);
        self.on(host, || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.connect(control).unwrap();
            for (n, datagram) in datagrams.iter().enumerate() {
                socket.send(datagram).unwrap();
                // A queue between two namespaces holds 1,000 packets.
                if n % 200 == 199 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
        });
    }

    /// Records what `host` says to the switch, whole.
    fn record_control(&self, host: &str, file: &Path) -> Capture {
        let whole = CaptureOptions {
            snaplen: 0,
            ..CaptureOptions::default()
        };
        let filter = "udp and dst port 7300";
        self.lab.capture_with(host, file, filter, &whole).unwrap()
    }

    fn answered(&self) -> u64 {
        ANSWERED.iter().map(|name| self.switch_count(name)).sum()
    }

    /// Certificates of the lab.
    fn pki(&self) -> PathBuf {
        self.lab.config_path().with_file_name("pki")
    }

    fn node_port(&self, host: &str) -> SocketAddr {
        (self.lab.address(host).unwrap(), 7400).into()
    }

    /// Resident memory of the process of `host`, in KiB.
    fn resident_kib(&self, host: &str) -> u64 {
        let status = format!("/proc/{}/status", self.lab.pid(host).unwrap());
        let text = std::fs::read_to_string(status).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.unwrap().parse().unwrap()
    }

    fn descriptors(&self, host: &str) -> usize {
        let path = format!("/proc/{}/fd", self.lab.pid(host).unwrap());
        std::fs::read_dir(path).unwrap().count()
    }
}

/// UDP payloads of a capture of Ethernet frames.
fn payloads(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut found = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        // Ethernet, IPv4 without options, UDP.
        found.push(rest[16 + 14 + 20 + 8..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    found
}

fn key_of(bed: &Bed) -> (u32, ControlKey) {
    let config = prism_config::Config::load(&bed.lab.config_path()).unwrap();
    let switch = config.switch.unwrap();
    (
        switch.key_id,
        ControlKey::new(*switch.load_key().unwrap().bytes()),
    )
}

/// A command that would take the flow to another backend, were it believed.
fn theft(bed: &Bed, known: &Known) -> Request {
    let thief = bed.lab.address("be2").unwrap();
    Request {
        key_id: key_of(bed).0,
        request_id: 1,
        time_ns: known.epoch,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: known.epoch + 1_000_000,
        flow: known.flow,
        owner: Owner {
            addr: (thief, 80).into(),
            via: thief.into(),
        },
    }
}

#[test]
fn forged_and_malformed_control_datagrams_change_nothing_and_are_counted() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, known) = bed_with_connection("hos-forged");
    let mut random = fastrand::Rng::with_seed(SEED);
    let (_, key) = key_of(&bed);
    let valid = theft(&bed, &known).encode(&key).to_vec();

    let mut forged = vec![
        theft(&bed, &known)
            .encode(&ControlKey::new([7; 16]))
            .to_vec(),
    ];
    let mut malformed: Vec<Vec<u8>> = (0..MESSAGE_BYTES).map(|n| valid[..n].to_vec()).collect();
    // Each bit of it changed by itself. The first six bytes say what it is.
    for bit in 0..8 * MESSAGE_BYTES {
        let mut changed = valid.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let list = if bit / 8 <= offset::KIND {
            &mut malformed
        } else {
            &mut forged
        };
        list.push(changed);
    }
    for len in [1, 2, 8, 120, 500, 1_280] {
        let tail = std::iter::repeat_with(|| random.u8(..)).take(len);
        malformed.push(valid.iter().copied().chain(tail).collect());
    }
    for _ in 0..500 {
        let len = random.usize(0..1_400);
        malformed.push(std::iter::repeat_with(|| random.u8(..)).take(len).collect());
        let mut with_head = valid.clone();
        random.fill(&mut with_head[offset::KIND + 1..]);
        forged.push(with_head);
    }
    for host in ["client", "be1"] {
        let before = ["control_forged", "control_malformed"].map(|c| bed.switch_count(c));
        bed.send_control(host, &forged);
        bed.send_control(host, &malformed);
        std::thread::sleep(Duration::from_millis(50));
        let after = ["control_forged", "control_malformed"].map(|c| bed.switch_count(c));
        let grown = [after[0] - before[0], after[1] - before[1]];
        assert_eq!(
            grown,
            [forged.len() as u64, malformed.len() as u64],
            "from {host}"
        );
        assert_eq!(bed.flows(), std::slice::from_ref(&known), "from {host}");
    }
    say(&format!(
        "seed {SEED:#x}: from each of two hosts {} forged, {} malformed",
        forged.len(),
        malformed.len()
    ));
    client.get(bed.object_of("be0"));
    client.get(bed.object_of("be1"));
    drop(client);
    bed.assert_drained();
}

/// What nodes say to the switch while one connection comes, moves and goes.
fn recorded(bed: &Bed) -> (Vec<Vec<u8>>, SocketAddr) {
    let hosts = ["fe0", "be0", "be1", "be2"];
    let file = |host: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{host}-ctl.pcap"));
    let captures = hosts.map(|host| bed.record_control(host, &file(host)));
    let mut client = bed.client();
    for host in ["be0", "be1", "be2", "be0"] {
        client.get_from(bed, host);
    }
    let local = client.local();
    drop(client);
    eventually("the flow goes", Duration::from_secs(5), || {
        bed.flow_of(local).is_none()
    });
    for capture in captures {
        capture.stop().unwrap();
    }
    let all = hosts.iter().flat_map(|host| payloads(&file(host)));
    let zero = [0; 16];
    let is_command = |d: &Vec<u8>| d.len() == MESSAGE_BYTES && d[40..56] != zero;
    (all.filter(is_command).collect(), local)
}

#[test]
fn replayed_control_datagrams_change_nothing_and_are_counted() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, known) = bed_with_connection("hos-replay");
    let (datagrams, gone) = recorded(&bed);
    // Block and own for each of four moves, and the release.
    assert!(datagrams.len() >= 9, "{}", datagrams.len());
    // Fresh ones of the flow that is released by now.
    let before = bed.answered();
    bed.send_control("client", &datagrams);
    bed.send_control("be2", &datagrams);
    std::thread::sleep(Duration::from_millis(20));
    let grown = bed.answered() - before;
    assert!(bed.flow_of(gone).is_none(), "a released flow came back");
    assert_eq!(bed.flows(), std::slice::from_ref(&known));
    let sent = 2 * datagrams.len() as u64;
    // Four nodes ask for the clock every ten seconds.
    assert!((sent..=sent + 4).contains(&grown), "{grown} of {sent}");

    // Fresh ones of a connection that lives: what its owners have just said.
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("live-ctl.pcap");
    let captures = ["be0", "be1"].map(|host| {
        let file = file.with_file_name(format!("{host}-live.pcap"));
        (bed.record_control(host, &file), file)
    });
    client.get_from(&bed, "be1");
    let moved = bed.flow_of(client.local()).unwrap();
    let mut live = Vec::new();
    for (capture, file) in captures {
        capture.stop().unwrap();
        live.extend(payloads(&file));
    }
    for host in ["client", "be2"] {
        bed.send_control(host, &live);
        assert_eq!(
            bed.flow_of(client.local()).as_ref(),
            Some(&moved),
            "from {host}"
        );
    }
    client.get(bed.object_of("be1"));

    std::thread::sleep(Duration::from_millis(2_200));
    let before = bed.switch_count("control_late");
    for host in ["client", "be2"] {
        bed.send_control(host, &datagrams);
        bed.send_control(host, &live);
    }
    std::thread::sleep(Duration::from_millis(20));
    let sent = 2 * (datagrams.len() + live.len()) as u64;
    assert_eq!(bed.switch_count("control_late") - before, sent);
    assert_eq!(bed.flows(), [moved]);
    client.get(bed.object_of("be0"));
    drop(client);
    bed.assert_drained();
}

/// Node `host` refuses whoever `dial` makes, before any frame.
fn refuses(bed: &Bed, host: &str, what: &str, dial: impl FnOnce(SocketAddr) + Send) {
    let before = bed.count(host, "peers_refused");
    let address = bed.node_port(host);
    // Not from outside: the switch lets no node's TCP out that is no flow.
    bed.on("be1", || dial(address));
    eventually(what, Duration::from_secs(3), || {
        bed.count(host, "peers_refused") == before + 1
    });
}

#[test]
fn strangers_at_the_node_port_are_refused_and_counted() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, known) = bed_with_connection("hos-strange");
    let pki = bed.pki();
    let other = tempdir("other-authority");
    prism_handoff::pki::init(&other, &["fe0".into(), "be1".into()]).unwrap();
    refuses(&bed, "be0", "plain garbage", |address| {
        let mut tcp = TcpStream::connect(address).unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let _ = tcp.read_to_end(&mut Vec::new());
    });
    let strangers = [
        ("no certificate", dialler(&pki, None, ALPN_HAND_OFF)),
        (
            "another authority",
            dialler(&pki, Some((&other, "be1")), ALPN_HAND_OFF),
        ),
        (
            "the node's own name",
            dialler(&pki, Some((&pki, "be0")), ALPN_HAND_OFF),
        ),
    ];
    for (what, config) in strangers {
        refuses(&bed, "be0", what, move |address| {
            // The refusal comes after our half of a TLS 1.3 handshake.
            if let Ok(mut wire) = Wire::dial(address, "be0", config) {
                let _ = wire.send(&framed(&[2; 9]));
                wire.assert_ended();
            }
        });
    }
    // Many that say nothing: each costs a descriptor for five seconds.
    let (descriptors, before) = (bed.descriptors("be0"), bed.count("be0", "peers_refused"));
    let address = bed.node_port("be0");
    let silent: Vec<TcpStream> = bed.on("be1", || {
        (0..500)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect()
    });
    client.get(bed.object_of("be0"));
    client.get(bed.object_of("be1"));
    client.get(bed.object_of("be0"));
    eventually("the silent are sent away", Duration::from_secs(8), || {
        bed.count("be0", "peers_refused") == before + 500
    });
    drop(silent);
    eventually("their descriptors go", Duration::from_secs(3), || {
        bed.descriptors("be0") <= descriptors + POOLED
    });
    let flow = bed.flow_of(client.local()).unwrap();
    assert_eq!(flow.flow, known.flow);
    drop(client);
    bed.assert_drained();
}

/// A directory of this test program's own, empty.
fn tempdir(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// A hand-off that the frontend sends to `be2`, whose place the test takes.
fn intercept(bed: &Bed, client: &mut Client, listener: &TcpListener) -> (Wire, Vec<u8>) {
    let target = path(bed.object_of("be2"));
    let acceptor = acceptor(&bed.pki(), "be2");
    listener.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let request = client.signed("GET", &target, b"");
        client.stream.write_all(&request).unwrap();
        // Answered once the frontend has tried in vain, without a hand-off.
        client.stream.set_nonblocking(true).unwrap();
        while client.stream.peek(&mut [0]).is_err() && Instant::now() < deadline {
            let Ok((tcp, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            tcp.set_nonblocking(false).unwrap();
            let wire = Wire::accept(tcp, acceptor.clone());
            if let Ok(mut wire) = wire
                && wire.is_for_hand_offs()
            {
                client.stream.set_nonblocking(false).unwrap();
                let frame = wire.frame().unwrap();
                return (wire, frame);
            }
        }
        client.stream.set_nonblocking(false).unwrap();
        assert_eq!(client.answer("GET").unwrap().status, 503);
    }
    panic!("the frontend does not hand over");
}

/// The same connection, with a request that `be0` can answer.
fn redirected(bed: &Bed, frame: &[u8]) -> Vec<u8> {
    let Ok(Frame::HandOff(mut hand_off)) = Frame::decode(&frame[FRAME_PREFIX_BYTES..]) else {
        panic!("no hand-off");
    };
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: x\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n\r\n",
        path(bed.object_of("be0"))
    );
    hand_off.input = head.into_bytes();
    hand_off.tcp.received.clear();
    Frame::HandOff(hand_off).encode()
}

#[test]
fn a_hand_off_sent_again_does_not_disturb_the_connection() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-again", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let resets = bed.watch_resets();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    // The frontend may have found nobody there just now.
    std::thread::sleep(Duration::from_millis(400));
    let mut client = bed.client();
    let (mut source, frame) = intercept(&bed, &mut client, &listener);
    let frame = redirected(&bed, &frame);
    let Ok(Frame::HandOff(sent)) = Frame::decode(&frame[FRAME_PREFIX_BYTES..]) else {
        panic!("no hand-off");
    };
    let dial = |host: &str| {
        let config = dialler(&bed.pki(), Some((&bed.pki(), "be2")), ALPN_HAND_OFF);
        let address = bed.node_port(host);
        bed.on("be2", || Wire::dial(address, host, config)).unwrap()
    };
    let mut target = dial("be0");
    target.send(&frame).unwrap();
    let verdict = target.verdict().unwrap();
    assert_eq!(verdict, Frame::Accepted { id: sent.id });
    source.send(&verdict.encode()).unwrap();
    let answer = client.answer("GET").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let known = bed.flow_of(client.local()).unwrap();
    assert_eq!(known.epoch, sent.epoch, "the hand-off's own epoch");

    // To its owner, at the very epoch of the flow; and to another node.
    let stale = Frame::Refused {
        id: sent.id,
        reason: Refusal::Stale,
    };
    let mut other = dial("be1");
    for round in 0..20 {
        for (host, wire) in [("be0", &mut target), ("be1", &mut other)] {
            // A node that is not to answer may pass it on to the one that is.
            let before = bed.total("imports_refused");
            wire.send(&frame).unwrap();
            assert_eq!(wire.verdict().unwrap(), stale, "{host}, round {round}");
            assert_eq!(bed.total("imports_refused"), before + 1, "{host}");
            assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known), "{host}");
        }
        client.get(bed.object_of("be0"));
    }
    // After it has moved on, to the node that it moved from.
    client.get_from(&bed, "be1");
    let known = bed.flow_of(client.local()).unwrap();
    target.send(&frame).unwrap();
    assert_eq!(target.verdict().unwrap(), stale, "after it moved on");
    client.get(bed.object_of("be1"));
    assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known));
    // After it has ended.
    let local = client.local();
    drop(client);
    eventually("the flow goes", Duration::from_secs(5), || {
        bed.flow_of(local).is_none()
    });
    target.send(&frame).unwrap();
    assert_eq!(target.verdict().unwrap(), stale, "after its end");
    assert!(bed.flow_of(local).is_none(), "the flow came back");
    assert_eq!(bed.total("connections_open"), 0);
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

#[test]
fn senseless_frames_of_a_node_are_refused_and_counted() {
    let Some(_turn) = turn() else { return };
    let mut bed = Bed::up("hos-frames", &Way::Direct);
    bed.fill(OBJECTS);
    bed.lab.stop("be2").unwrap();
    let listener = bed.on("be2", || TcpListener::bind(bed.node_port("be2")).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut lost = bed.client();
    let (source, frame) = intercept(&bed, &mut lost, &listener);
    // Both ends of that hand-off are given up: the frontend takes it back.
    drop((source, lost, listener));
    let mut client = bed.client();
    client.get_from(&bed, "be0");
    let known = bed.flow_of(client.local()).unwrap();

    let pki = bed.pki();
    let address = bed.node_port("be0");
    let dial = || {
        let config = dialler(&pki, Some((&pki, "be2")), ALPN_HAND_OFF);
        bed.on("be2", || Wire::dial(address, "be0", config))
            .unwrap()
    };
    let malformed = || bed.count("be0", "frames_malformed");
    let (start, resident) = (malformed(), bed.resident_kib("be0"));
    let mut sent = 0;

    // A hand-off whose body is cut, at every place: refused by its number.
    let body = &frame[FRAME_PREFIX_BYTES..];
    let mut wire = dial();
    for len in 9..body.len() {
        wire.send(&framed(&body[..len])).unwrap();
        sent += 1;
        let verdict = wire.verdict().unwrap();
        let refused = matches!(
            &verdict,
            Frame::Refused {
                reason: Refusal::Malformed,
                ..
            }
        );
        assert!(refused, "cut to {len}: {verdict:?}");
    }
    // With bytes behind its end, and with nonsense behind its number.
    let mut bodies = vec![[body, b"more"].concat()];
    for _ in 0..100 {
        let len = random.usize(0..4_096);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(len);
        bodies.push(body[..9].iter().copied().chain(noise).collect());
    }
    for body in &bodies {
        wire.send(&framed(body)).unwrap();
        sent += 1;
        let verdict = wire.verdict().unwrap();
        assert!(matches!(verdict, Frame::Refused { .. }), "{verdict:?}");
    }
    assert_eq!(malformed(), start + sent);

    // What has no number ends the channel.
    let mut fatal = vec![
        vec![],
        vec![0],
        vec![99; 20],
        vec![3; 5],
        vec![2; 8],
        vec![1; 4],
    ];
    for _ in 0..50 {
        let len = random.usize(1..600);
        let mut noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
        noise[0] |= 4;
        fatal.push(noise);
    }
    for body in &fatal {
        let mut wire = dial();
        wire.send(&framed(body)).unwrap();
        sent += 1;
        wire.assert_ended();
    }
    eventually("they are counted", Duration::from_secs(2), || {
        malformed() >= start + sent
    });
    assert_eq!(malformed(), start + sent);

    // Verdicts that nobody waits for.
    let before = bed.count("be0", "verdicts_unexpected");
    let mut wire = dial();
    for id in 0..100 {
        wire.send(&Frame::Accepted { id }.encode()).unwrap();
    }
    eventually("they are counted", Duration::from_secs(2), || {
        bed.count("be0", "verdicts_unexpected") == before + 100
    });

    // Frames longer than any; and the longest, begun and never ended.
    for len in [MAX_FRAME_BYTES + 1, u32::MAX as usize] {
        let mut wire = dial();
        wire.send(&u32::try_from(len).unwrap().to_be_bytes())
            .unwrap();
        wire.assert_ended();
        sent += 1;
    }
    let counted = malformed() - start;
    let longest = u32::try_from(MAX_FRAME_BYTES).unwrap().to_be_bytes();
    let begun: Vec<Wire> = (0..40)
        .map(|_| {
            let mut wire = dial();
            wire.send(&longest).unwrap();
            wire.send(&vec![1; 256 << 10]).unwrap();
            wire
        })
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    let grown = bed.resident_kib("be0").saturating_sub(resident);
    say(&format!(
        "seed {SEED:#x}: {sent} senseless frames; {grown} KiB more with 40 frames of {} MiB begun",
        MAX_FRAME_BYTES >> 20
    ));
    assert!(grown < 96 << 10, "{grown} KiB");
    drop(begun);

    assert_eq!(bed.flow_of(client.local()).as_ref(), Some(&known));
    client.get(bed.object_of("be1"));
    client.get(bed.object_of("be0"));
    drop(client);
    assert_eq!(
        counted, sent,
        "frames that are too long are counted as well"
    );
}

/// Sends bytes and gives the answer's status, which has to be followed by an
/// orderly end.
fn ends_with(bed: &Bed, bytes: &[u8]) -> (u16, String) {
    let mut client = bed.client();
    client.stream.write_all(bytes).unwrap();
    let answer = client.answer("GET");
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
    let answer = answer.unwrap_or_else(|error| panic!("{shown:?}: {error}"));
    assert!(!answer.keep_alive, "{shown:?}: {}", answer.text());
    client.assert_closed();
    (answer.status, answer.text())
}

#[test]
fn garbage_at_the_service_port_is_answered_and_ends_the_connection() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up_with("hos-garbage", &Way::Direct, |config| {
        config.limits.head_timeout_s = 1;
    });
    bed.fill(OBJECTS);
    let resets = bed.watch_resets();
    let get = "GET /bucket/k HTTP/1.1\r\nHost: x\r\n";
    let put = "PUT /bucket/k HTTP/1.1\r\nHost: x\r\n";
    let long = "a".repeat(20_000);
    let vectors: Vec<(String, u16)> = vec![
        (
            format!(
                "{put}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET / HTTP/1.1\r\n\r\n"
            ),
            400,
        ),
        (
            format!("{put}Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"),
            400,
        ),
        (
            format!("{put}Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
            400,
        ),
        (format!("{put}Content-Length: +5\r\n\r\nhello"), 400),
        (format!("{put}Content-Length: 0x5\r\n\r\nhello"), 400),
        (format!("{put}Content-Length: 5, 5\r\n\r\nhello"), 400),
        (
            format!("{put}Content-Length: 99999999999999999999\r\n\r\n"),
            400,
        ),
        (
            format!("{put}Content-Length: 18446744073709551615\r\n\r\n"),
            413,
        ),
        (
            format!("{put}Transfer-Encoding: chunked, identity\r\n\r\n"),
            400,
        ),
        (format!("{put}Transfer-Encoding: xchunked\r\n\r\n"), 400),
        (
            format!("{put}Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n"),
            400,
        ),
        (format!("{put}Transfer-Encoding : chunked\r\n\r\n"), 400),
        (
            format!("{put}Transfer-Encoding: gzip, chunked\r\n\r\n"),
            501,
        ),
        (
            "PUT /bucket/k HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            400,
        ),
        (format!("{get}X: a\r\n b\r\n\r\n"), 400),
        (format!("{get}X: a\nY: b\r\n\r\n"), 400),
        (format!("{get}X: a\rb\r\n\r\n"), 400),
        (format!("{get}X: a\0b\r\n\r\n"), 400),
        (format!("{get}Host: y\r\n\r\n"), 400),
        (format!("{get}: empty\r\n\r\n"), 400),
        (format!("{get}Expect: wonders\r\n\r\n"), 417),
        ("GET /bucket/k HTTP/1.1\r\n\r\n".into(), 400),
        ("GET /bucket/k HTTP/2.0\r\nHost: x\r\n\r\n".into(), 505),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), 505),
        ("GET  /bucket/k HTTP/1.1\r\nHost: x\r\n\r\n".into(), 400),
        ("CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n".into(), 501),
        (format!("GET /{long} HTTP/1.1\r\nHost: x\r\n\r\n"), 431),
        (format!("{get}X: {long}\r\n\r\n"), 431),
        (format!("{get}{}\r\n", "a: b\r\n".repeat(200)), 431),
        (long.clone(), 431),
        ("\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n".into(), 400),
    ];
    for (vector, status) in &vectors {
        let (got, text) = ends_with(&bed, vector.as_bytes());
        assert_eq!(
            got,
            *status,
            "{:?}: {text}",
            &vector[..vector.len().min(90)]
        );
    }
    let mut random = fastrand::Rng::with_seed(SEED);
    for n in 0..300 {
        let len = random.usize(1..3_000);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(len);
        let bytes: Vec<u8> = noise.chain(*b"\r\n\r\n").collect();
        let (status, text) = ends_with(&bed, &bytes);
        assert!((400..600).contains(&status), "noise {n}: {text}");
    }
    say(&format!(
        "seed {SEED:#x}: {} vectors, 300 times noise",
        vectors.len()
    ));
    slow_heads_end(&bed);
    assert_eq!(bed.flows(), [], "nothing of that was handed off");
    bed.assert_drained();
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
}

/// Heads that come a byte at a time, for longer than they may.
fn slow_heads_end(bed: &Bed) {
    let start = Instant::now();
    let mut clients: Vec<Client> = (0..200).map(|_| bed.client()).collect();
    let head = b"GET /bucket/k HTTP/1.1\r\nHost: x\r\n";
    for byte in head.iter().take(6) {
        for client in &mut clients {
            client.stream.write_all(std::slice::from_ref(byte)).unwrap();
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    for client in &mut clients {
        let answer = client.answer("GET").unwrap();
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.text().contains("<Code>RequestTimeout</Code>"));
        client.assert_closed();
    }
    assert!(
        start.elapsed() < Duration::from_secs(4),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn thousands_of_connections_leave_nothing_behind() {
    let Some(_turn) = turn() else { return };
    let bed = Bed::up("hos-many", &Way::Direct);
    bed.fill(OBJECTS);
    // All channels there are, so that none is counted as left behind.
    let mut client = bed.client();
    for n in (0..OBJECTS).chain(0..OBJECTS) {
        client.get(n);
    }
    drop(client);
    bed.assert_drained();
    let hosts = impair_support::servers(&bed.lab);
    let count = || hosts.iter().map(|h| bed.descriptors(h)).collect::<Vec<_>>();
    let before = count();
    let start = Instant::now();
    let service: SocketAddr = bed.lab.service().into();
    bed.on("client", || {
        for n in 0..4_000_u32 {
            let mut tcp = TcpStream::connect(service).unwrap();
            // Nothing, half a head, or something that is refused.
            match n % 3 {
                0 => {}
                1 => tcp.write_all(b"GET /bucket/k HT").unwrap(),
                _ => tcp.write_all(b"nonsense\r\n\r\n").unwrap(),
            }
        }
        // Many at a time.
        let open: Vec<TcpStream> = (0..1_000)
            .map(|_| TcpStream::connect(service).unwrap())
            .collect();
        drop(open);
    });
    for n in 0..200 {
        bed.client().get(n % OBJECTS);
    }
    let took = start.elapsed();
    bed.assert_drained();
    let is_back = || {
        count()
            .iter()
            .zip(&before)
            .all(|(now, then)| *now <= then + POOLED)
    };
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_back() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(is_back(), "descriptors {before:?}, then {:?}", count());
    say(&format!(
        "5,200 connections in {took:.1?}; descriptors {before:?}, then {:?}",
        count()
    ));
}
