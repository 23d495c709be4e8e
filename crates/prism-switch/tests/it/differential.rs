//! Compares the eBPF program with the reference in Rust, command by command.

use std::net::SocketAddr;

use std::time::{Duration, Instant};

use super::common::packet::{ACK, FIN, RST, SYN, Tcp, verify};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{
    Answer, FRESHNESS_NS, MAX_EPOCH_AHEAD_NS, MAX_EPOCH_STEP, Ops, Owner, Request, TOMBSTONE_NS,
};
use prism_reference::{FlowTable, SynFate};

const STEPS: u32 = 20_000;
const CLIENTS: u16 = 6;
/// A flow whose epochs are near the limit, so that few other commands apply to it.
const AHEAD: u16 = CLIENTS + 1;

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.ip(), port)
}

/// An epoch on either side of the limit, which advances with the clock.
fn epoch_near_limit(random: &mut fastrand::Rng, clock: u64, known: u64) -> u64 {
    match random.u8(0..8) {
        0 => u64::MAX,
        1 => known + MAX_EPOCH_STEP + random.u64(0..3),
        2 => known + MAX_EPOCH_STEP - 1,
        3 => known + 1,
        _ => clock + MAX_EPOCH_AHEAD_NS + random.u64(0..1_000_000),
    }
}

fn random_request(random: &mut fastrand::Rng, clock: u64) -> Request {
    let client = client(random.u16(1..=CLIENTS));
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
    let mut r = request(ops, 0, flow(client), clock);
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

/// Checks that the packets of a flow go as the reference's entry says.
fn check_packets(lab: &Lab, hook: Hook, table: &FlowTable, client: SocketAddr) {
    let entry = table.entry(&flow(client));
    let there = lab.run(hook, &Tcp::new(client, VIP).build());
    match entry {
        Some(e) if e.blocked => assert_eq!(there.verdict, Verdict::Drop),
        _ => {
            let owner = entry.map_or(VIP, |e| e.owner.addr);
            verify(&there.packet);
            let parsed = packet::Parsed::new(&there.packet);
            assert_eq!(parsed.dest, owner);
        }
    }
    for host in [BACKEND, BACKEND2, VIP] {
        let back = lab.run(hook, &Tcp::new(host, client).build());
        let speaks = match entry {
            Some(e) => !e.blocked && e.owner.addr == host,
            None => host == VIP,
        };
        assert_eq!(back.verdict == Verdict::Send, speaks, "{host} {entry:?}");
        if speaks {
            verify(&back.packet);
            assert_eq!(packet::Parsed::new(&back.packet).source, VIP);
        }
    }
}

/// A SYN of the client; an answer to one, by this host; the end of a connection.
fn check_syn(lab: &Lab, hook: Hook, table: &mut FlowTable, random: &mut fastrand::Rng) {
    let client = client(random.u16(1..=CLIENTS));
    let of = flow(client);
    // The epoch of a tombstone that a SYN leaves is the clock's.
    let now = || lab.view.flow_of(&of).unwrap().map_or(0, |f| f.epoch);
    let entry = table.entry(&of).copied();
    let mut to_vip = Tcp::new(client, VIP);
    if random.bool() {
        to_vip.flags = SYN;
        let run = lab.run(hook, &to_vip.build());
        let owner = match table.syn(&of, now()) {
            SynFate::Dropped => return assert_eq!(run.verdict, Verdict::Drop),
            SynFate::Frontend => VIP,
            SynFate::Owner(owner) => owner.addr,
        };
        let dest = packet::Parsed::new(&run.packet).dest;
        return assert_eq!(dest, owner, "{entry:?}");
    }
    let host = [BACKEND, BACKEND2, VIP][random.usize(0..3)];
    let mut from_host = Tcp::new(host, client);
    if random.bool() {
        let accepts = random.bool();
        from_host.flags = if accepts { SYN | ACK } else { RST | ACK };
        from_host.seq = 0;
        let run = lab.run(hook, &from_host.build());
        let passes = match entry {
            _ if table.syn_answered(&of, &owned(host), now()) => accepts && host == VIP,
            Some(e) if e.is_over && !accepts => false,
            Some(e) => !e.blocked && e.owner.addr == host,
            None => host == VIP,
        };
        return assert_eq!(run.verdict == Verdict::Send, passes, "{host} {entry:?}");
    }
    if entry.is_some_and(|e| !e.blocked && e.owner.addr == host) {
        from_host.flags = FIN | ACK;
        to_vip.flags = FIN | ACK;
        to_vip.ack = from_host.seq + from_host.payload.len() as u32 + 1;
        lab.run(hook, &from_host.build());
        lab.run(hook, &to_vip.build());
        table.close(&of);
    }
}

/// Lets every tombstone expire and be deleted.
fn collect(lab: &Lab, table: &mut FlowTable) {
    std::thread::sleep(Duration::from_nanos(TOMBSTONE_NS) + Duration::from_millis(100));
    let aged = lab.agent().step(Instant::now()).unwrap();
    // The random commands may have left none.
    let collected = u32::try_from(table.collect(lab.clock())).unwrap();
    assert_eq!((aged.collected, aged.expired), (collected, 0), "{aged:?}");
    assert_eq!(lab.flows().len(), table.len(), "no tombstone is left");
}

#[test]
fn random_commands_do_what_the_reference_says() {
    let seed =
        std::env::var("PRISM_TEST_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("PRISM_TEST_SEED={seed}");
    in_lab(
        "differential",
        |config| config.blocked = Duration::from_hours(1),
        |lab| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut table = FlowTable::new(usize::MAX);
            for step in 0..STEPS {
                let hook = if random.bool() { Hook::Tc } else { Hook::Xdp };
                let mut r = random_request(&mut random, lab.clock());
                let is_ahead = random.u8(0..8) == 0;
                if is_ahead {
                    r.flow = flow(client(AHEAD));
                }
                let known = table.epoch(&r.flow);
                r.epoch = match is_ahead {
                    true => epoch_near_limit(&mut random, lab.clock(), known),
                    false => (known + random.u64(0..4)).saturating_sub(1),
                };
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
                    let client = client(random.u16(1..=CLIENTS));
                    check_packets(lab, hook, &table, client);
                }
                if step % 4 == 1 {
                    check_syn(lab, hook, &mut table, &mut random);
                }
                if step == STEPS / 2 {
                    collect(lab, &mut table);
                }
            }
            assert_eq!(lab.live(), table.len());
        },
    );
}
