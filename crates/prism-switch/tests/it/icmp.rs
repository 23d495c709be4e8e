//! ICMP errors that quote a flow's packets.

use crate::common::packet::{ACK, icmp_error, ip, tcp_segment, verify};
use crate::common::*;
use prism_packets::{Hook, Run, Verdict};
use prism_proto::control::Ops;

const BOTH: [Hook; 2] = [Hook::Tc, Hook::Xdp];

#[test]
fn icmp_errors_about_a_flow_reach_its_owner_rewritten() {
    in_lab(
        "icmp",
        |_| {},
        |lab| {
            let router = [192, 0, 2, 99];
            let segment = tcp_segment(VIP, CLIENT, ACK, &[7; 100]);
            let sent = ip(
                VIP.ip().octets(),
                CLIENT.ip().octets(),
                6,
                60,
                &[],
                &segment,
            );
            let error = |kind, code, bytes: usize| {
                icmp_error(router, VIP.ip().octets(), kind, code, &sent[..bytes])
            };
            let icmp = |run: &Run| {
                verify(&run.packet);
                let quoted = run.packet[14 + 20 + 8..].to_vec();
                let outer: [u8; 4] = run.packet[30..34].try_into().unwrap();
                let inner: [u8; 4] = quoted[12..16].try_into().unwrap();
                (outer, inner, u16::from_be_bytes([quoted[20], quoted[21]]))
            };
            for hook in BOTH {
                let run = lab.run(hook, &error(3, 4, 28));
                assert_eq!(run.verdict, Verdict::Send, "no entry: to the frontend");
                assert_eq!(icmp(&run), (VIP.ip().octets(), VIP.ip().octets(), 80));
                assert_eq!(run.packet[..6], mac_of(FRONTEND));
                own_next(lab);
                for (kind, code, bytes) in [(3, 4, 28), (3, 1, 140), (11, 0, 29), (12, 0, 28)] {
                    let run = lab.run(hook, &error(kind, code, bytes));
                    assert_eq!(run.verdict, Verdict::Send);
                    let owner = BACKEND.ip().octets();
                    assert_eq!(icmp(&run), (owner, owner, BACKEND.port()), "{kind} {bytes}");
                    assert_eq!(run.packet[..6], mac_of(*BACKEND.ip()));
                    assert_eq!(run.packet[26..30], router, "its source stays");
                }
                let before = lab.counter("drop_blocked");
                let epoch = own_next(lab);
                lab.plain(Ops::BLOCK, CLIENT, epoch + 1);
                assert_eq!(lab.run(hook, &error(3, 4, 28)).verdict, Verdict::Drop);
                assert_eq!(lab.counter("drop_blocked"), before + 1);
                let epoch = lab.flows()[0].epoch;
                lab.plain(Ops::RELEASE, CLIENT, epoch + 1);
                for frame in [error(8, 0, 28), error(3, 4, 27), error(3, 4, 20)] {
                    let run = lab.run(hook, &frame);
                    assert_eq!((run.verdict, run.packet), (Verdict::Pass, frame));
                }
            }
            assert_eq!(lab.counter("forward_icmp"), 10);
        },
    );
}

#[test]
fn a_backends_icmp_error_about_a_flow_stays_inside() {
    in_lab(
        "icmp-backend",
        |_| {},
        |lab| {
            let segment = tcp_segment(CLIENT, BACKEND, ACK, &[]);
            let (client, backend) = (CLIENT.ip().octets(), BACKEND.ip().octets());
            let quoted = ip(client, backend, 6, 60, &[], &segment);
            let outside = icmp_error(backend, client, 3, 3, &quoted);
            let inside = icmp_error(backend, FRONTEND.octets(), 3, 3, &quoted);
            for hook in BOTH {
                assert_eq!(lab.run(hook, &outside).verdict, Verdict::Drop);
                assert_eq!(lab.run(hook, &inside).verdict, Verdict::Pass);
            }
            assert_eq!(lab.counters(), [("drop_icmp_backend".to_owned(), 2)]);
        },
    );
}

/// Gives the flow to the backend with an epoch above all before. Returns the epoch.
fn own_next(lab: &Lab) -> u64 {
    let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
    let epoch = known.map_or(5, |f| f.epoch + 1);
    lab.own(CLIENT, BACKEND, epoch).epoch
}
