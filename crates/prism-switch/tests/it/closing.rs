//! The end of a connection: the owner's resets that a client must see, and the others.

use std::net::SocketAddr;

use super::common::packet::{ACK, FIN, RST, SYN, Tcp, verify};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{Ops, Status};

/// Sequence number of the owner's last byte; that of its FIN has wrapped.
const OWNER_SEQ: u32 = u32::MAX - 2;
const PAYLOAD: &[u8] = b"hello";
/// Sequence number that the client expects after the owner's FIN.
const OWNER_END: u32 = OWNER_SEQ.wrapping_add(PAYLOAD.len() as u32 + 1);

/// One packet of a connection's end.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The owner's last data, with its FIN.
    OwnerFin,
    /// The client's FIN, with this acknowledgement.
    ClientFin(u32),
    /// The client acknowledges up to here.
    ClientAck(u32),
}

use Step::{ClientAck, ClientFin, OwnerFin};

const BEFORE_END: u32 = OWNER_END.wrapping_sub(1);

/// Steps, and whether a reset of the owner is dropped after them.
const ROWS: [(&[Step], bool); 9] = [
    (&[OwnerFin, ClientFin(OWNER_END)], true),
    (
        &[OwnerFin, ClientAck(OWNER_END), ClientFin(OWNER_END)],
        true,
    ),
    (
        &[ClientFin(OWNER_SEQ), OwnerFin, ClientAck(OWNER_END)],
        true,
    ),
    (
        &[OwnerFin, ClientFin(BEFORE_END), ClientAck(OWNER_END)],
        true,
    ),
    // The client still sends: it must learn that nobody receives.
    (&[OwnerFin, ClientAck(OWNER_END)], false),
    // The client waits for data that it lacks.
    (&[OwnerFin, ClientFin(BEFORE_END)], false),
    (&[ClientFin(OWNER_SEQ), OwnerFin], false),
    (&[ClientFin(OWNER_SEQ)], false),
    (&[], false),
];

fn play(lab: &Lab, hook: Hook, owner: SocketAddr, step: Step) {
    let mut tcp = match step {
        OwnerFin => Tcp::new(owner, CLIENT),
        ClientFin(_) | ClientAck(_) => Tcp::new(CLIENT, VIP),
    };
    match step {
        OwnerFin => {
            (tcp.flags, tcp.seq) = (ACK | FIN, OWNER_SEQ);
            tcp.payload = PAYLOAD.to_vec();
        }
        ClientFin(ack) => (tcp.flags, tcp.ack) = (ACK | FIN, ack),
        ClientAck(ack) => tcp.ack = ack,
    }
    let run = lab.run(hook, &tcp.build());
    assert_eq!(run.verdict, Verdict::Send, "{step:?}");
    verify(&run.packet);
}

/// A host without the socket answers the client's acknowledgement.
fn reset(owner: SocketAddr) -> Vec<u8> {
    let mut tcp = Tcp::new(owner, CLIENT);
    (tcp.flags, tcp.seq, tcp.ack) = (RST, OWNER_END, 0);
    tcp.payload.clear();
    tcp.build()
}

/// A new connection of the same ports, owned by `owner`.
fn begin(lab: &Lab, hook: Hook, owner: SocketAddr) {
    if let Some(last) = lab.view.flow_of(&flow(CLIENT)).unwrap() {
        lab.plain(Ops::RELEASE, CLIENT, last.epoch + 1);
    }
    let mut syn = Tcp::new(CLIENT, VIP);
    syn.flags = SYN;
    assert_eq!(lab.run(hook, &syn.build()).verdict, Verdict::Send);
    let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
    let epoch = known.map_or(0, |f| f.epoch).max(lab.clock());
    assert_eq!(lab.own(CLIENT, owner, epoch + 1).status, Status::Ok);
}

fn check(lab: &Lab, hook: Hook, owner: SocketAddr, steps: &[Step], is_dropped: bool) {
    let name = format!("{hook:?} {owner} {steps:?}");
    begin(lab, hook, owner);
    steps.iter().for_each(|step| play(lab, hook, owner, *step));
    let dropped = lab.counter("drop_late_reset");
    let passed = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap().to_client;
    let packet = reset(owner);
    let run = lab.run(hook, &packet);
    let now = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap().to_client;
    if is_dropped {
        assert_eq!(
            (run.verdict, &run.packet),
            (Verdict::Drop, &packet),
            "{name}"
        );
        assert_eq!(lab.counter("drop_late_reset"), dropped + 1, "{name}");
        assert_eq!(now.packets, passed.packets, "{name}: not counted");
    } else {
        assert_eq!(run.verdict, Verdict::Send, "{name}");
        verify(&run.packet);
        assert_eq!(lab.counter("drop_late_reset"), dropped, "{name}");
        assert_eq!(now.packets, passed.packets + 1, "{name}");
    }
}

#[test]
fn a_reset_reaches_the_client_unless_both_ends_have_closed() {
    in_lab(
        "closing",
        |_| {},
        |lab| {
            for hook in [Hook::Tc, Hook::Xdp] {
                for owner in [BACKEND, BACKEND2, VIP] {
                    for (steps, is_dropped) in ROWS {
                        check(lab, hook, owner, steps, is_dropped);
                    }
                }
            }
        },
    );
}

#[test]
fn after_both_ends_have_closed_other_packets_still_pass() {
    in_lab(
        "closed",
        |_| {},
        |lab| {
            for hook in [Hook::Tc, Hook::Xdp] {
                check(lab, hook, BACKEND, ROWS[0].0, true);
                // The FIN and its acknowledgement may be lost and repeated.
                for step in [OwnerFin, ClientFin(OWNER_END), ClientAck(OWNER_END)] {
                    play(lab, hook, BACKEND, step);
                }
                let ack = Tcp::new(BACKEND, CLIENT).build();
                assert_eq!(lab.run(hook, &ack).verdict, Verdict::Send);
                assert_eq!(lab.run(hook, &reset(BACKEND)).verdict, Verdict::Drop);
            }
        },
    );
}

#[test]
fn the_end_of_a_connection_is_not_that_of_the_next_on_its_ports() {
    in_lab(
        "reopened",
        |_| {},
        |lab| {
            check(lab, Hook::Tc, BACKEND, ROWS[0].0, true);
            // `check` opens a new connection; so does a release before a new owner.
            check(lab, Hook::Tc, BACKEND, &[], false);
            check(lab, Hook::Tc, BACKEND, ROWS[0].0, true);
            let epoch = lab.flows()[0].epoch;
            let released = lab.plain(Ops::RELEASE, CLIENT, epoch + 1);
            assert_eq!(released.status, Status::Ok);
            assert_eq!(lab.own(CLIENT, BACKEND, epoch + 2).status, Status::Ok);
            assert_eq!(lab.run(Hook::Tc, &reset(BACKEND)).verdict, Verdict::Send);
        },
    );
}

/// Sends a packet of the frontend's own connection, and expects it to pass.
fn pass(lab: &Lab, hook: Hook, tcp: &Tcp) {
    let run = lab.run(hook, &tcp.build());
    assert_eq!(run.verdict, Verdict::Send);
    verify(&run.packet);
}

fn client_fin(lab: &Lab, hook: Hook) {
    let mut tcp = Tcp::new(CLIENT, VIP);
    tcp.flags = FIN | ACK;
    pass(lab, hook, &tcp);
}

fn frontend_fin(lab: &Lab, hook: Hook) {
    let mut tcp = Tcp::new(VIP, CLIENT);
    (tcp.flags, tcp.seq) = (ACK | FIN, OWNER_SEQ);
    tcp.payload = PAYLOAD.to_vec();
    pass(lab, hook, &tcp);
}

fn syn(lab: &Lab, hook: Hook) {
    let mut tcp = Tcp::new(CLIENT, VIP);
    tcp.flags = SYN;
    pass(lab, hook, &tcp);
}

#[test]
fn a_frontends_own_connections_end_without_a_late_reset_too() {
    in_lab(
        "unowned",
        |_| {},
        |lab| {
            let verdict = |hook, packet: &[u8]| lab.run(hook, packet).verdict;
            for hook in [Hook::Tc, Hook::Xdp] {
                for fins in [[client_fin, frontend_fin], [frontend_fin, client_fin]] {
                    syn(lab, hook);
                    fins[0](lab, hook);
                    assert_eq!(verdict(hook, &reset(VIP)), Verdict::Send, "one end");
                    fins[1](lab, hook);
                    let dropped = lab.counter("drop_late_reset");
                    assert_eq!(verdict(hook, &reset(VIP)), Verdict::Drop);
                    assert_eq!(lab.counter("drop_late_reset"), dropped + 1);
                    // The client has not acknowledged the end, or its program resets.
                    let mut other = Tcp::new(VIP, CLIENT);
                    (other.flags, other.seq) = (RST, BEFORE_END);
                    pass(lab, hook, &other);
                    (other.flags, other.seq) = (RST | ACK, OWNER_END);
                    pass(lab, hook, &other);
                }
                syn(lab, hook);
                assert_eq!(verdict(hook, &reset(VIP)), Verdict::Send, "the next");
                frontend_fin(lab, hook);
                assert_eq!(verdict(hook, &reset(VIP)), Verdict::Send, "the next");
            }
        },
    );
}

#[test]
fn a_client_that_closed_before_the_flow_had_an_owner_has_closed() {
    in_lab(
        "half-closed",
        |_| {},
        |lab| {
            for (is_closed, verdict) in [(true, Verdict::Drop), (false, Verdict::Send)] {
                syn(lab, Hook::Tc);
                if is_closed {
                    client_fin(lab, Hook::Tc);
                }
                let known = lab.view.flow_of(&flow(CLIENT)).unwrap();
                let epoch = known.map_or(0, |f| f.epoch).max(lab.clock());
                assert_eq!(lab.own(CLIENT, BACKEND, epoch + 1).status, Status::Ok);
                play(lab, Hook::Tc, BACKEND, OwnerFin);
                play(lab, Hook::Tc, BACKEND, ClientAck(OWNER_END));
                assert_eq!(lab.run(Hook::Tc, &reset(BACKEND)).verdict, verdict);
            }
        },
    );
}
