//! The switch's control address: datagrams that are forged, malformed or
//! replayed.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::time::Duration;

use prism_lab::{Capture, CaptureOptions, Family};
use prism_proto::control::{ControlKey, MESSAGE_BYTES, OFFSETS, Ops, Owner, Request, RunId};

use super::{SEED, bed_with_connection};
use crate::support::bed::Bed;
use crate::support::{Known, eventually, node_key, say, turn};

/// The statuses of answered control datagrams.
const ANSWERED: [&str; 8] = [
    "control_ok",
    "control_stale",
    "control_full",
    "control_denied",
    "control_no_service",
    "control_late",
    "control_bad_request",
    "control_ahead",
];

impl Bed {
    /// Sends them to the switch's control address of `family`.
    pub(super) fn send_control(&self, host: &str, family: Family, datagrams: &[Vec<u8>]) {
        let control = self.control(family);
        let any = match family {
            Family::V4 => "0.0.0.0:0",
            Family::V6 => "[::]:0",
        };
        self.on(host, || {
            let socket = UdpSocket::bind(any).unwrap();
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
}

/// UDP payloads of a capture of Ethernet frames.
fn payloads(file: &Path) -> Vec<Vec<u8>> {
    let bytes = std::fs::read(file).unwrap();
    let mut rest = &bytes[24..];
    let mut found = Vec::new();
    while rest.len() >= 16 {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let frame = &rest[16..16 + len];
        // Ethernet, IPv4 without options or IPv6, UDP.
        let ip = if frame[14] >> 4 == 4 { 20 } else { 40 };
        found.push(frame[14 + ip + 8..].to_vec());
        rest = &rest[16 + len..];
    }
    found
}

fn key_of(bed: &Bed) -> (u32, ControlKey) {
    let config = prism_config::ConfigFile::load(&bed.lab.config_path()).unwrap();
    node_key(&config.switch.unwrap(), "be2")
}

/// A command that would take the flow to another backend.
fn theft(bed: &Bed, known: &Known) -> Request {
    let thief = bed.address_like("be2", known.flow.client.ip());
    Request {
        key_id: key_of(bed).0,
        request_id: 1,
        time_ns: known.epoch,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: known.epoch + 1_000_000,
        flow: known.flow,
        owner: Owner {
            addr: (thief, 80).into(),
            via: thief,
        },
        run: RunId::NONE,
    }
}

#[test]
fn forged_and_malformed_control_datagrams_change_nothing_and_are_counted() {
    let Some(_turn) = turn() else { return };
    for family in Family::ALL {
        forged_and_malformed_change_nothing(family);
    }
}

fn forged_and_malformed_change_nothing(family: Family) {
    let (bed, mut client, known) = bed_with_connection("hos-forged", family);
    let mut random = fastrand::Rng::with_seed(SEED);
    let (_, key) = key_of(&bed);
    let valid = theft(&bed, &known).encode(&key).to_vec();

    let mut forged = vec![
        theft(&bed, &known)
            .encode(&ControlKey::new([7; 16]))
            .to_vec(),
    ];
    let mut malformed: Vec<Vec<u8>> = (0..MESSAGE_BYTES).map(|n| valid[..n].to_vec()).collect();
    // Each of its bits is changed alone. The first six bytes are the message's type.
    for bit in 0..8 * MESSAGE_BYTES {
        let mut changed = valid.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let list = if bit / 8 <= OFFSETS[0] {
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
        random.fill(&mut with_head[OFFSETS[0] + 1..]);
        forged.push(with_head);
    }
    // The client's link leads to no node.
    let elsewhere = bed.switch_count("control_interface");
    bed.send_control("client", family, &forged);
    bed.send_control("client", family, &malformed);
    std::thread::sleep(Duration::from_millis(50));
    let dropped = bed.switch_count("control_interface") - elsewhere;
    assert_eq!(dropped, (forged.len() + malformed.len()) as u64);
    for host in ["be1", "fe0"] {
        let before = ["control_forged", "control_malformed"].map(|c| bed.switch_count(c));
        bed.send_control(host, family, &forged);
        bed.send_control(host, family, &malformed);
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

/// The nodes' datagrams to the switch while one connection comes, moves and goes.
fn recorded(bed: &Bed, family: Family) -> (Vec<Vec<u8>>, SocketAddr) {
    let hosts = ["fe0", "be0", "be1", "be2"];
    let file = |host: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{host}-ctl.pcap"));
    let captures = hosts.map(|host| bed.record_control(host, &file(host)));
    let mut client = bed.client_over(family);
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
    for family in Family::ALL {
        replayed_change_nothing(family);
    }
}

fn replayed_change_nothing(family: Family) {
    let (bed, mut client, known) = bed_with_connection("hos-replay", family);
    let (datagrams, gone) = recorded(&bed, family);
    // Block and own for the first move, own for three more, and the release.
    assert!(datagrams.len() >= 6, "{}", datagrams.len());
    // The recorded datagrams are fresh, but their flow is released.
    let before = bed.answered();
    bed.send_control("be1", family, &datagrams);
    bed.send_control("be2", family, &datagrams);
    std::thread::sleep(Duration::from_millis(20));
    let grown = bed.answered() - before;
    assert!(bed.flow_of(gone).is_none(), "a released flow came back");
    assert_eq!(bed.flows(), std::slice::from_ref(&known));
    let sent = 2 * datagrams.len() as u64;
    // Four nodes ask for the clock every ten seconds.
    assert!((sent..=sent + 4).contains(&grown), "{grown} of {sent}");

    // Fresh datagrams of a live connection, just sent by its owners.
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
    for host in ["be1", "be2"] {
        bed.send_control(host, family, &live);
        assert_eq!(
            bed.flow_of(client.local()).as_ref(),
            Some(&moved),
            "from {host}"
        );
    }
    client.get(bed.object_of("be1"));

    std::thread::sleep(Duration::from_millis(2_200));
    let before = bed.switch_count("control_late");
    for host in ["be1", "be2"] {
        bed.send_control(host, family, &datagrams);
        bed.send_control(host, family, &live);
    }
    std::thread::sleep(Duration::from_millis(20));
    let sent = 2 * (datagrams.len() + live.len()) as u64;
    assert_eq!(bed.switch_count("control_late") - before, sent);
    assert_eq!(bed.flows(), [moved]);
    client.get(bed.object_of("be0"));
    drop(client);
    bed.assert_drained();
}
