//! Host mode across routers: packets to owners go in a tunnel, and those that arrive in one are
//! for sockets of this host.

use std::net::{IpAddr, SocketAddr};

use super::common::packet::{ACK, SYN, Tcp, ethernet, ip};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_switch::{ServiceConfig, SwitchConfig, TermPhase};

/// The other frontend, when there are two.
const FRONTEND2: IpAddr = host([10, 0, 0, 9]);
/// The protocol number of an IP packet of the family in one of the same.
const INNER: u8 = if IP_BYTES == 20 { 4 } else { 41 };
const MTU: usize = 1_500;

fn at(here: IpAddr) -> impl FnOnce(&mut SwitchConfig) {
    move |config| {
        config.host_mode = Some([here].into());
        config.tunnel_mtu_bytes = MTU as u32;
    }
}

/// One of two frontends.
fn at_frontend_of_two(config: &mut SwitchConfig) {
    at(FRONTEND)(config);
    config.nodes.push(node(FRONTEND2, 1, true, false));
    config.nodes.push(node(CONTROL.ip(), 1, false, false));
    config.services = vec![ServiceConfig {
        addr: VIP,
        tenant: 1,
        frontends: vec![FRONTEND, FRONTEND2],
    }];
}

/// A frame with the packet of `frame` in a tunnel.
fn tunnelled(from: IpAddr, to: IpAddr, frame: &[u8]) -> Vec<u8> {
    ethernet(&ip(from, to, INNER, 64, &[], &frame[14..]))
}

fn segment(from: SocketAddr, flags: u8) -> Vec<u8> {
    let mut tcp = Tcp::new(from, VIP);
    tcp.flags = flags;
    tcp.build()
}

/// Runs the program. Checks the verdict, and the counter that grew.
fn run(lab: &Lab, frame: &[u8], verdict: Verdict, counter: &str) -> Vec<u8> {
    let before = lab.counter(counter);
    let run = lab.run(Hook::Tc, frame);
    assert_eq!(run.verdict, verdict, "{counter}: {:?}", lab.counters());
    assert_eq!(lab.counter(counter), before + 1, "{counter}");
    run.packet
}

/// Checks that a frame has gone to `to` in a tunnel, unchanged.
fn check_tunnelled(lab: &Lab, frame: &[u8], to: IpAddr) {
    let sent = run(lab, frame, Verdict::Send, "forward_in_tunnel");
    check_outer(&sent, to);
    assert_eq!(sent[14 + IP_BYTES..], frame[14..], "the inner packet");
}

/// The outer header of a sent packet, without the fields that tests' own packets number otherwise.
fn check_outer(sent: &[u8], to: IpAddr) {
    let expected = ip(FRONTEND, to, INNER, 64, &[], &sent[14 + IP_BYTES..]);
    let (sent, expected) = (&sent[14..14 + IP_BYTES], &expected[..IP_BYTES]);
    if IP_BYTES == 20 {
        // No fragments, so no number.
        assert_eq!(sent[4..8], [0, 0, 0x40, 0]);
        assert_eq!(packet::checksum(&[sent]), 0);
        assert_eq!((&sent[..4], &sent[8..10]), (&expected[..4], &expected[8..10]));
        assert_eq!(sent[12..], expected[12..]);
        return;
    }
    assert_eq!((sent[0], &sent[4..]), (expected[0], &expected[4..]));
}

#[test]
fn packets_to_an_owner_go_in_a_tunnel() {
    in_lab("tunnel-out", at(FRONTEND), |lab| {
        own_at(lab, BACKEND.ip());
        for flags in [ACK, SYN] {
            check_tunnelled(lab, &segment(CLIENT, flags), BACKEND.ip());
        }
        for (missing, verdict, counter) in [
            (0, Verdict::Send, "forward_in_tunnel"),
            (1, Verdict::Drop, "drop_mtu"),
        ] {
            let mut tcp = Tcp::new(CLIENT, VIP);
            tcp.payload = vec![7; MTU - 2 * IP_BYTES - 20 + missing];
            run(lab, &tcp.build(), verdict, counter);
        }
    });
}

#[test]
fn a_packet_in_a_tunnel_is_for_a_socket_here() {
    in_lab("tunnel-in", at(BACKEND.ip()), |lab| {
        let (client, _sockets) = connect();
        for flags in [ACK, SYN] {
            let inner = segment(client, flags);
            let frame = tunnelled(FRONTEND, BACKEND.ip(), &inner);
            assert_eq!(run(lab, &frame, Verdict::Pass, "punt_here"), inner);
            let foreign = segment(CLIENT, flags);
            let frame = tunnelled(FRONTEND, BACKEND.ip(), &foreign);
            run(lab, &frame, Verdict::Drop, "drop_no_socket");
        }
    });
}

#[test]
fn other_tunnels_of_the_host_are_left_alone() {
    in_lab("tunnel-foreign", at(BACKEND.ip()), |lab| {
        let to_service = segment(CLIENT, ACK);
        let to_node = Tcp::new(CLIENT, BACKEND).build();
        for (from, to, inner) in [
            (CLIENT.ip(), BACKEND.ip(), &to_service),
            (FRONTEND, BACKEND2.ip(), &to_service),
            (FRONTEND, BACKEND.ip(), &to_node),
        ] {
            let frame = tunnelled(from, to, inner);
            let run = lab.run(Hook::Tc, &frame);
            assert_eq!((run.verdict, run.packet), (Verdict::Pass, frame));
        }
    });
}

#[test]
fn a_frontend_that_is_not_the_arbiter_accepts_and_sends_the_rest_to_it() {
    in_lab("tunnel-aside", at_frontend_of_two, |lab| {
        set_term(lab, 1, TermPhase::Standby, 1);
        let syn = segment(CLIENT, SYN);
        assert_eq!(run(lab, &syn, Verdict::Pass, "punt_here"), syn);
        check_tunnelled(lab, &segment(CLIENT, ACK), CONTROL.ip());
        let (client, _sockets) = connect();
        run(lab, &segment(client, ACK), Verdict::Pass, "punt_here");
        // A packet that was for the arbiter goes no further.
        let late = tunnelled(FRONTEND2, CONTROL.ip(), &segment(CLIENT, ACK));
        run(lab, &late, Verdict::Drop, "drop_no_socket");
    });
}

#[test]
fn the_arbiter_sends_on_what_another_frontend_has_sent_to_it() {
    in_lab("tunnel-arbiter", at_frontend_of_two, |lab| {
        let packet = segment(CLIENT, ACK);
        let frame = tunnelled(FRONTEND2, CONTROL.ip(), &packet);
        run(lab, &frame, Verdict::Drop, "drop_no_socket");
        own_at(lab, BACKEND.ip());
        let sent = run(lab, &frame, Verdict::Send, "forward_in_tunnel");
        check_outer(&sent, BACKEND.ip());
        assert_eq!(sent[14 + IP_BYTES..], packet[14..]);
        // To this host as a node: for its sockets alone.
        let frame = tunnelled(FRONTEND2, FRONTEND, &packet);
        run(lab, &frame, Verdict::Drop, "drop_no_socket");
    });
}
