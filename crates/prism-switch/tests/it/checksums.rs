//! Checksums of rewritten packets that are whole, or whose sum the driver gave. `network.rs` tests
//! checksums that are computed later (GSO, offload).

use std::net::SocketAddr;
use std::sync::Once;

use super::common::packet::{Parsed, Tcp, verify};
use super::common::*;
use libbpf_rs::ErrorKind;
use prism_packets::{Hook, Verdict};
use prism_proto::control::Status;

const PACKETS: usize = 5_000;

/// A packet to or from the owner, of any content, with its source and destination behind the
/// switch.
fn random_packet(
    random: &mut fastrand::Rng,
    owner: SocketAddr,
) -> (Tcp, SocketAddr, SocketAddr) {
    let (from, to, out) = match random.bool() {
        true => (CLIENT, VIP, (CLIENT, owner)),
        false => (owner, CLIENT, (VIP, CLIENT)),
    };
    let mut tcp = Tcp::new(from, to);
    (tcp.seq, tcp.ack) = (random.u32(..), random.u32(..));
    tcp.ttl = random.u8(2..);
    tcp.payload = (0..random.usize(0..64)).map(|_| random.u8(..)).collect();
    if random.u8(0..4) == 0 {
        tcp.options = vec![1; 4 * random.usize(1..=10)];
    }
    (tcp, out.0, out.1)
}

fn for_random_packets(name: &str, check: impl Fn(&Lab, &mut fastrand::Rng, SocketAddr) + Sync) {
    let seed =
        std::env::var("PRISM_TEST_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    println!("PRISM_TEST_SEED={seed}");
    in_lab(
        name,
        |_| {},
        |lab| {
            let mut random = fastrand::Rng::with_seed(seed);
            for owner in [BACKEND, BACKEND2] {
                let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
                let epoch = known.map_or(0, |f| f.epoch).max(lab.clock());
                assert_eq!(lab.own(CLIENT, owner, epoch + 1).status, Status::Ok);
                (0..PACKETS).for_each(|_| check(lab, &mut random, owner));
            }
        },
    );
}

#[test]
fn rewritten_packets_have_right_checksums_whatever_they_hold() {
    for_random_packets("checksums", |lab, random, owner| {
        let (tcp, source, dest) = random_packet(random, owner);
        let hook = if random.bool() { Hook::Tc } else { Hook::Xdp };
        let run = lab.run(hook, &tcp.build());
        assert_eq!(run.verdict, Verdict::Send);
        verify(&run.packet);
        let parsed = Parsed::new(&run.packet);
        assert_eq!((parsed.source, parsed.dest), (source, dest));
    });
}

#[test]
fn a_sum_that_the_driver_gave_stays_right() {
    static SKIPPED: Once = Once::new();
    for_random_packets("sums", |lab, random, owner| {
        let (tcp, source, dest) = random_packet(random, owner);
        let run = match prism_packets::run_summed_packet(&lab.switch, &tcp.build()) {
            Ok(run) => run,
            Err(e) if e.kind() == ErrorKind::InvalidInput => {
                return SKIPPED.call_once(|| eprintln!("SKIPPED: not on this kernel"));
            }
            Err(e) => panic!("{e}"),
        };
        assert_eq!(run.verdict, Verdict::Send);
        verify(&run.packet);
        let parsed = Parsed::new(&run.packet);
        assert_eq!((parsed.source, parsed.dest), (source, dest));
    });
}
