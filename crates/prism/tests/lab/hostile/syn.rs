//! SYNs for existing connections: forged ones, and those of a client that uses a port again.

use std::net::{SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use prism_proto::control::{ControlKey, FlowKey, Ops, Owner, Request, RunId};
use socket2::{Domain, Protocol, Socket, Type};

use super::{SEED, bed_with_connection};
use crate::support::bed::Bed;
use crate::support::{eventually, say, turn};

const FORGED: usize = 40;

fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address {
        SocketAddr::V4(v4) => v4,
        SocketAddr::V6(_) => unreachable!("labs are IPv4"),
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An IPv4 packet; the kernel fills in its length and checksum.
fn syn(from: SocketAddrV4, to: SocketAddrV4, seq: u32) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let addresses = [from.ip().octets(), to.ip().octets()].concat();
    let pseudo = [&addresses[..], &[0, 6, 0, 20], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    [
        &[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0],
        &addresses[..],
        &tcp,
    ]
    .concat()
}

impl Bed {
    /// Sends SYNs of a connection that another socket has.
    fn forge_syns(&self, from: SocketAddr, count: usize) {
        let (from, to) = (v4(from), self.lab.service());
        let mut random = fastrand::Rng::with_seed(SEED);
        self.on("client", || {
            let protocol = Some(Protocol::from(255));
            let socket = Socket::new(Domain::IPV4, Type::RAW, protocol).unwrap();
            for _ in 0..count {
                let packet = syn(from, to, random.u32(..));
                socket.send_to(&packet, &SocketAddr::V4(to).into()).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }
}

#[test]
fn forged_syns_end_no_connection() {
    let Some(_turn) = turn() else { return };
    let (bed, mut client, known) = bed_with_connection("hos-syn");
    let resets = bed.watch_resets();
    let purged = bed.switch_count("flow_syn_purged");
    bed.forge_syns(client.local(), FORGED);
    eventually("all SYNs are there", Duration::from_secs(2), || {
        bed.switch_count("flow_syn_challenged") >= FORGED as u64
    });
    assert_eq!(bed.flows(), [known], "nothing has changed");
    client.get(bed.object_of("be0"));
    // The same while it moves.
    std::thread::scope(|scope| {
        let (bed, from) = (&bed, client.local());
        let forger = scope.spawn(move || bed.forge_syns(from, 5 * FORGED));
        let mut moves = 0;
        while !forger.is_finished() {
            client.get(bed.object_of(["be1", "be2", "be0"][moves % 3]));
            moves += 1;
        }
        say(&format!("{moves} requests under forged SYNs"));
    });
    client.get(bed.object_of("be1"));
    assert_eq!(bed.switch_count("flow_syn_purged"), purged);
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
    drop(client);
    bed.assert_drained();
}

#[test]
fn a_port_is_used_again_though_the_owner_has_lost_the_connection_before() {
    let Some(_turn) = turn() else { return };
    let (bed, client, known) = bed_with_connection("hos-port");
    let config = prism_config::Config::load(&bed.lab.config_path()).unwrap();
    let switch = config.switch.unwrap();
    let key = ControlKey::new(*switch.load_key().unwrap().bytes());
    let (address, owner) = (
        bed.lab.address("client").unwrap(),
        bed.lab.address("be2").unwrap(),
    );
    // A flow of a socket that be2 does not have.
    let port = 39_999;
    let own = Request {
        key_id: switch.key_id,
        request_id: 1,
        time_ns: known.epoch,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: known.epoch,
        flow: FlowKey {
            client: (address, port).into(),
            ..known.flow
        },
        owner: Owner {
            addr: (owner, 44_444).into(),
            via: owner.into(),
        },
        run: RunId::NONE,
    };
    bed.send_control("be1", &[own.encode(&key).to_vec()]);
    eventually("the flow is there", Duration::from_secs(1), || {
        bed.flow_of(own.flow.client).is_some()
    });
    let resets = bed.watch_resets();
    let begun = Instant::now();
    let mut again = bed.client_from(port);
    say(&format!("connected after {:.2?}", begun.elapsed()));
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "one SYN is repeated"
    );
    again.get(bed.object_of("be0"));
    assert_eq!(bed.switch_count("drop_syn_refused"), 1);
    assert_eq!(resets.stop().unwrap().captured, 0, "resets");
    drop((client, again));
    bed.assert_drained();
}
