//! SYNs for existing connections: forged ones, and those of a client that uses a port again.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use prism_lab::Family;
use prism_proto::control::{FlowKey, Ops, Owner, Pass, Passage, Request, RunId, Term};
use socket2::{Domain, Protocol, Socket, Type};

use super::{SEED, bed_with_connection};
use crate::support::bed::Bed;
use crate::support::{eventually, node_key, say, turn};

const FORGED: usize = 40;

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes
        .chunks(2)
        .map(|pair| u16::from_be_bytes([pair[0], pair[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// An IP packet; the kernel fills in the length and checksum of IPv4.
fn syn(from: SocketAddr, to: SocketAddr, seq: u32) -> Vec<u8> {
    let mut tcp = [from.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    tcp.extend(seq.to_be_bytes());
    tcp.extend([0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    let addresses = [from, to].map(|end| match end.ip() {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    });
    let addresses = addresses.concat();
    // The sum does not depend on the order of 16-bit words.
    let pseudo = [&addresses[..], &[0, 6, 0, 20], &tcp].concat();
    tcp[16..18].copy_from_slice(&checksum(&pseudo).to_be_bytes());
    let head: &[u8] = match from {
        SocketAddr::V4(_) => &[0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0],
        SocketAddr::V6(_) => &[0x60, 0, 0, 0, 0, 20, 6, 64],
    };
    [head, &addresses, &tcp].concat()
}

impl Bed {
    /// Sends SYNs of a connection that another socket has.
    fn forge_syns(&self, from: SocketAddr, count: usize) {
        let to = self.service_of(Family::of(from.ip()));
        let mut random = fastrand::Rng::with_seed(SEED);
        self.on("client", || {
            let protocol = Some(Protocol::from(255));
            let socket = Socket::new(Domain::for_address(to), Type::RAW, protocol).unwrap();
            let raw = SocketAddr::new(to.ip(), 0);
            for _ in 0..count {
                let packet = syn(from, to, random.u32(..));
                socket.send_to(&packet, &raw.into()).unwrap();
                std::thread::sleep(Duration::from_millis(2));
            }
        });
    }
}

#[test]
fn forged_syns_end_no_connection() {
    let Some(_turn) = turn() else { return };
    for family in Family::ALL {
        forged_syns_end_no_connection_of(family);
    }
}

fn forged_syns_end_no_connection_of(family: Family) {
    let (bed, mut client, known) = bed_with_connection("hos-syn", family);
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
    for family in Family::ALL {
        port_is_used_again_over(family);
    }
}

fn port_is_used_again_over(family: Family) {
    let (bed, client, known) = bed_with_connection("hos-port", family);
    let config = prism_config::ConfigFile::load(&bed.lab.config_path()).unwrap();
    let switch = config.switch.unwrap();
    let [(fe0_id, fe0), (be2_id, be2)] = ["fe0", "be2"].map(|node| node_key(&switch, node));
    let like = client.local().ip();
    let (address, owner) = (
        bed.address_like("client", like),
        bed.address_like("be2", like),
    );
    // A flow of a socket that be2 does not have.
    let port = match family {
        Family::V4 => 39_998,
        Family::V6 => 39_999,
    };
    let own = Request {
        key_id: be2_id,
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
            via: owner,
        },
        run: RunId::NONE,
    };
    // A frontend has made it, and passed it on.
    let frontend = bed.address_like("fe0", like);
    let made = Request {
        key_id: fe0_id,
        epoch: own.epoch - 1,
        owner: Owner {
            addr: own.flow.vip,
            via: frontend,
        },
        ..own
    };
    let to = Passage {
        flow: own.flow,
        epoch: own.epoch,
        via: owner,
    };
    let pass = Some(Pass::new(&fe0, &to));
    let taken = own.in_term(Term::NONE).encode_with(pass, &be2);
    let commands = [made.encode(&fe0), taken].map(Vec::from);
    bed.send_control("be1", family, &commands);
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
