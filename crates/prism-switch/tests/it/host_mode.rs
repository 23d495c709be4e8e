//! Host mode: packets go on to their flow's owner unchanged, or up the stack if a socket of this
//! host may answer them.

use std::net::SocketAddr;

use super::common::packet::{ACK, SYN, Tcp};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_switch::{SwitchConfig, TermPhase};

/// A frontend's host.
fn at_frontend(config: &mut SwitchConfig) {
    config.host_mode = Some([FRONTEND].into());
}

/// A backend's host.
fn at_backend(config: &mut SwitchConfig) {
    config.host_mode = Some([BACKEND.ip()].into());
}

/// The verdict about a packet of the client that is left as it is, and the counter that grew.
fn left(lab: &Lab, from: SocketAddr, flags: u8, counter: &str) -> Verdict {
    let mut tcp = Tcp::new(from, VIP);
    tcp.flags = flags;
    let (packet, before) = (tcp.build(), lab.counter(counter));
    let run = lab.run(Hook::Tc, &packet);
    assert_eq!(run.packet, packet, "untouched");
    assert_eq!(lab.counter(counter), before + 1, "{counter}");
    run.verdict
}

#[test]
fn a_frontend_sends_packets_of_a_moved_flow_to_its_owner_as_they_are() {
    in_lab("host-moved", at_frontend, |lab| {
        own_at(lab, BACKEND.ip());
        for flags in [ACK, SYN] {
            let mut tcp = Tcp::new(CLIENT, VIP);
            tcp.flags = flags;
            let out = (mac_of(BACKEND.ip()), CLIENT, VIP);
            check_sent(&lab.run(Hook::Tc, &tcp.build()), &tcp, out, "moved");
        }
        assert_eq!(lab.counter("forward_to_owner"), 2);
        let mut last = Tcp::new(CLIENT, VIP);
        last.ttl = 1;
        assert_eq!(lab.run(Hook::Tc, &last.build()).verdict, Verdict::Drop);
        assert_eq!(lab.counter("drop_no_way"), 1);
    });
}

#[test]
fn a_frontend_accepts_what_has_no_owner_and_leaves_answers_alone() {
    in_lab("host-new", at_frontend, |lab| {
        for flags in [SYN, ACK] {
            assert_eq!(left(lab, CLIENT, flags, "punt_here"), Verdict::Pass);
        }
        let answer = Tcp::new(VIP, CLIENT).build();
        let run = lab.run(Hook::Tc, &answer);
        assert_eq!((run.verdict, run.packet), (Verdict::Pass, answer));
        set(lab, Flow::BlockedAt(BACKEND));
        assert_eq!(left(lab, CLIENT, ACK, "drop_blocked"), Verdict::Drop);
        set(lab, Flow::Released);
        assert_eq!(left(lab, CLIENT, ACK, "drop_released"), Verdict::Drop);
        assert_eq!(left(lab, CLIENT, SYN, "punt_here"), Verdict::Pass);
    });
}

#[test]
fn an_own_flow_without_a_socket_is_no_reason_for_a_reset() {
    in_lab("host-own", at_frontend, |lab| {
        own_at(lab, FRONTEND);
        for flags in [ACK, SYN] {
            assert_eq!(left(lab, CLIENT, flags, "drop_no_socket"), Verdict::Drop);
        }
    });
}

#[test]
fn a_backend_takes_only_packets_of_its_sockets() {
    in_lab("host-backend", at_backend, |lab| {
        for flags in [ACK, SYN] {
            assert_eq!(left(lab, CLIENT, flags, "drop_no_socket"), Verdict::Drop);
        }
        let (client, _sockets) = connect();
        assert_eq!(left(lab, client, ACK, "punt_here"), Verdict::Pass);
        // The owner's kernel challenges the SYN.
        assert_eq!(left(lab, client, SYN, "punt_here"), Verdict::Pass);
    });
}

#[test]
fn a_young_frontend_takes_new_connections_and_those_that_it_has() {
    in_lab("host-young", at_frontend, |lab| {
        set_term(lab, 1, TermPhase::Young, 1);
        assert_eq!(left(lab, CLIENT, ACK, "drop_young"), Verdict::Drop);
        assert_eq!(left(lab, CLIENT, SYN, "punt_here"), Verdict::Pass);
        let (client, _sockets) = connect();
        assert_eq!(left(lab, client, ACK, "punt_here"), Verdict::Pass);
        set_term(lab, 1, TermPhase::Standby, 1);
        assert_eq!(left(lab, client, ACK, "punt_here"), Verdict::Pass);
        for flags in [ACK, SYN] {
            assert_eq!(left(lab, CLIENT, flags, "drop_no_socket"), Verdict::Drop);
        }
    });
}

#[test]
fn a_standby_keeps_packets_of_its_sockets_whatever_its_copies_say() {
    in_lab("host-standby", at_frontend, |lab| {
        let (client, _sockets) = connect();
        for from in [client, CLIENT] {
            own_flow_at(lab, from, BACKEND.ip());
        }
        set_term(lab, 1, TermPhase::Standby, 1);
        for flags in [ACK, SYN] {
            assert_eq!(left(lab, client, flags, "punt_here"), Verdict::Pass);
        }
        let tcp = Tcp::new(CLIENT, VIP);
        let out = (mac_of(BACKEND.ip()), CLIENT, VIP);
        check_sent(&lab.run(Hook::Tc, &tcp.build()), &tcp, out, "by the copy");
    });
}

#[test]
fn a_syn_cookie_is_taken_by_a_settled_arbiter_that_knows_no_flow() {
    in_lab("host-cookie", at_frontend, |lab| {
        let (ack, _sockets) = cookie();
        let verdict = |counter: &str| {
            let before = lab.counter(counter);
            let run = lab.run(Hook::Tc, &ack.build());
            assert_eq!(lab.counter(counter), before + 1, "{counter}");
            run.verdict
        };
        set_term(lab, 1, TermPhase::Young, 1);
        assert_eq!(verdict("drop_young"), Verdict::Drop);
        set_term(lab, 1, TermPhase::Settled, 1);
        assert_eq!(verdict("punt_here"), Verdict::Pass);
        // The connection has moved, and this packet is late.
        own_flow_at(lab, ack.source, BACKEND.ip());
        assert_eq!(verdict("forward_to_owner"), Verdict::Send);
        own_flow_at(lab, ack.source, FRONTEND);
        assert_eq!(verdict("drop_no_socket"), Verdict::Drop);
    });
}
