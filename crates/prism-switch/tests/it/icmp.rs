//! ICMP errors that quote a flow's packets.

use super::common::packet::{ACK, Quoting, icmp_error, ip, tcp_segment, verify};
use super::common::*;
use prism_packets::{Run, Verdict};
use prism_proto::control::Ops;

/// Types and codes of errors: a packet too big, unreachable, time exceeded, parameter problem.
const ERRORS: [(u8, u8); 4] = match IS_V6 {
    false => [(3, 4), (3, 1), (11, 0), (12, 0)],
    true => [(2, 0), (1, 3), (3, 0), (4, 1)],
};
const TOO_BIG: (u8, u8) = ERRORS[0];
/// Messages that are no errors: echo, and neighbour discovery.
const OTHERS: [u8; 2] = if IS_V6 { [128, 135] } else { [8, 9] };
/// Bytes of the shortest quote: an IP header, and eight bytes of TCP.
const QUOTE: usize = IP_BYTES + 8;

#[test]
fn icmp_errors_about_a_flow_reach_its_owner_rewritten() {
    in_lab(
        "icmp",
        |_| {},
        |lab| {
            let router = host([192, 0, 2, 99]);
            let segment = tcp_segment(VIP, CLIENT, ACK, &[7; 100]);
            let sent = ip(VIP.ip(), CLIENT.ip(), 6, 60, &[], &segment);
            let error = |(kind, code), bytes: usize| {
                icmp_error(router, VIP.ip(), kind, code, &sent[..bytes])
            };
            let icmp = |run: &Run| {
                verify(&run.packet);
                let q = Quoting::new(&run.packet);
                assert_eq!((q.source, q.quoted_dest), (router, CLIENT.ip()));
                (q.dest, q.quoted_source)
            };
            for hook in BOTH {
                let run = lab.run(hook, &error(TOO_BIG, QUOTE));
                assert_eq!(run.verdict, Verdict::Send, "no entry: to the frontend");
                assert_eq!(icmp(&run), (VIP.ip(), VIP));
                assert_eq!(run.packet[..6], mac_of(FRONTEND));
                own_next(lab);
                for (error_kind, more) in ERRORS.into_iter().zip([0, 112, 1, 0]) {
                    let run = lab.run(hook, &error(error_kind, QUOTE + more));
                    assert_eq!(run.verdict, Verdict::Send);
                    assert_eq!(icmp(&run), (BACKEND.ip(), BACKEND), "{error_kind:?} {more}");
                    assert_eq!(run.packet[..6], mac_of(BACKEND.ip()));
                }
                let before = lab.counter("drop_blocked");
                let epoch = own_next(lab);
                lab.plain(Ops::BLOCK, CLIENT, epoch + 1);
                assert_eq!(lab.run(hook, &error(TOO_BIG, QUOTE)).verdict, Verdict::Drop);
                assert_eq!(lab.counter("drop_blocked"), before + 1);
                let epoch = lab.flows()[0].epoch;
                lab.plain(Ops::RELEASE, CLIENT, epoch + 1);
                let others = OTHERS.map(|kind| error((kind, 0), QUOTE));
                let short = [QUOTE - 1, IP_BYTES].map(|bytes| error(TOO_BIG, bytes));
                for frame in others.into_iter().chain(short) {
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
            let (client, backend) = (CLIENT.ip(), BACKEND.ip());
            let quoted = ip(client, backend, 6, 60, &[], &segment);
            let (kind, code) = ERRORS[1];
            let outside = icmp_error(backend, client, kind, code, &quoted);
            let inside = icmp_error(backend, FRONTEND, kind, code, &quoted);
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
