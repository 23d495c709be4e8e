//! The data-plane program and the reference in Rust, command by command.

use std::net::SocketAddrV4;

use crate::common::packet::{SYN, Tcp, verify};
use crate::common::*;
use prism_proto::control::{Answer, FRESHNESS_NS, Ops, Owner, Request};
use prism_proto::flow_table::FlowTable;
use prism_switch::bench::{Hook, Verdict};

const STEPS: u32 = 20_000;
const CLIENTS: u16 = 6;

fn random_request(random: &mut fastrand::Rng, clock: u64) -> Request {
    let client = SocketAddrV4::new(*CLIENT.ip(), random.u16(1..=CLIENTS));
    let ops = match random.u8(0..20) {
        0 => Ops(random.u8(..)),
        1..4 => Ops::RELEASE,
        4..7 => Ops::BLOCK,
        7..10 => Ops::UNBLOCK,
        10 => Ops::QUERY,
        11..14 => Ops::OWN.and(Ops::BLOCK),
        14..17 => Ops::OWN.and(Ops::UNBLOCK),
        _ => Ops::OWN,
    };
    let mut r = request(ops, random.u64(0..30), flow(client), clock);
    r.request_id = random.u64(..);
    if ops.has(Ops::OWN) {
        r.owner = owned([BACKEND, BACKEND2, VIP][random.usize(0..3)]);
    }
    match random.u8(0..40) {
        0 => r.time_ns = clock - FRESHNESS_NS - 1_000_000_000,
        1 => r.time_ns = clock + FRESHNESS_NS + 1_000_000_000,
        _ => {}
    }
    r
}

/// What the packets of a flow do is what the reference's entry says.
fn check_packets(lab: &Lab, hook: Hook, table: &FlowTable, client: SocketAddrV4) {
    let entry = table.entry(&flow(client));
    let there = lab.run(hook, &Tcp::new(client, VIP).build());
    match entry {
        Some(e) if e.blocked => assert_eq!(there.verdict, Verdict::Drop),
        _ => {
            let owner = entry.map_or(VIP.into(), |e| e.owner.addr);
            verify(&there.packet);
            let parsed = packet::Parsed::new(&there.packet);
            assert_eq!(std::net::SocketAddr::V4(parsed.dest), owner);
        }
    }
    for host in [BACKEND, BACKEND2, VIP] {
        let back = lab.run(hook, &Tcp::new(host, client).build());
        let speaks = match entry {
            Some(e) => !e.blocked && e.owner.addr == host.into(),
            None => host == VIP,
        };
        assert_eq!(back.verdict == Verdict::Send, speaks, "{host} {entry:?}");
        if speaks {
            verify(&back.packet);
            assert_eq!(packet::Parsed::new(&back.packet).source, VIP);
        }
    }
}

#[test]
fn random_commands_do_what_the_reference_says() {
    let seed =
        std::env::var("PRISM_TEST_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("PRISM_TEST_SEED={seed}");
    in_lab(
        "differential",
        |_| {},
        |lab| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut table = FlowTable::new(usize::MAX);
            let mut raise = 0;
            for step in 0..STEPS {
                let hook = if random.bool() { Hook::Tc } else { Hook::Xdp };
                let mut r = random_request(&mut random, lab.clock());
                r.epoch += raise;
                let got = lab.raw_command(hook, &r.encode(&key())).unwrap();
                let mut expected = table.apply(&r, got.time_ns);
                if expected.status == prism_proto::control::Status::BadRequest
                    && r.owner == Owner::NONE
                {
                    expected = Answer {
                        owner: got.owner,
                        ..expected
                    };
                }
                assert_eq!(got, expected, "step {step}: {r:?}");
                if step % 4 == 0 {
                    let client = SocketAddrV4::new(*CLIENT.ip(), random.u16(1..=CLIENTS));
                    check_packets(lab, hook, &table, client);
                }
                if step % 64 == 0 {
                    raise += 3;
                }
            }
            assert_eq!(lab.live(), table.len());
            let mut syn = Tcp::new(SocketAddrV4::new(*CLIENT.ip(), 1), VIP);
            syn.flags = SYN;
            lab.run(Hook::Tc, &syn.build());
            table.syn(&flow(syn.source), lab.clock());
            assert_eq!(lab.live(), table.len());
        },
    );
}
