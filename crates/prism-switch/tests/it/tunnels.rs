//! Host mode across routers: packets to owners go in a tunnel, and those that arrive in one are
//! for sockets of this host.

use std::net::{IpAddr, SocketAddr};

use std::time::Duration;

use super::common::packet::{ACK, RST, SYN, Tcp, ethernet, icmp_error, ip, tcp_segment};
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
    check_outer(&sent, FRONTEND, to);
    assert_eq!(sent[14 + IP_BYTES..], frame[14..], "the inner packet");
}

/// The outer header of a sent packet, without the fields that tests' own packets number otherwise.
fn check_outer(sent: &[u8], from: IpAddr, to: IpAddr) {
    let expected = ip(from, to, INNER, 64, &[], &sent[14 + IP_BYTES..]);
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
    // A member of the cluster that carries no connections.
    let etcd = host([10, 0, 0, 77]);
    let adjust = |config: &mut SwitchConfig| {
        at(BACKEND.ip())(config);
        config.nodes.push(node(etcd, 1, false, false));
    };
    in_lab("tunnel-foreign", adjust, |lab| {
        let to_service = segment(CLIENT, ACK);
        let to_node = Tcp::new(CLIENT, BACKEND).build();
        for (from, to, inner) in [
            (CLIENT.ip(), BACKEND.ip(), &to_service),
            (etcd, BACKEND.ip(), &to_service),
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
        own_at(lab, BACKEND.ip());
        let sent = run(lab, &frame, Verdict::Send, "forward_in_tunnel");
        check_outer(&sent, FRONTEND, BACKEND.ip());
        assert_eq!(sent[14 + IP_BYTES..], packet[14..]);
        // So the flow is not idle.
        let known = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
        assert_eq!(known.to_owner.packets, 1);
        // To this host as a node: for its sockets alone.
        let frame = tunnelled(FRONTEND2, FRONTEND, &packet);
        run(lab, &frame, Verdict::Drop, "drop_no_socket");
    });
}

#[test]
fn the_arbiter_sends_back_what_it_does_not_know() {
    in_lab("tunnel-back", at_frontend_of_two, |lab| {
        let packet = segment(CLIENT, ACK);
        let frame = tunnelled(FRONTEND2, CONTROL.ip(), &packet);
        let sent = run(lab, &frame, Verdict::Send, "forward_in_tunnel");
        check_outer(&sent, CONTROL.ip(), FRONTEND2);
        assert_eq!(sent[14 + IP_BYTES..], packet[14..]);
        // No frontend can have a cookie for these.
        run(lab, &packet, Verdict::Drop, "drop_no_socket");
        let reset = tunnelled(FRONTEND2, CONTROL.ip(), &segment(CLIENT, ACK | RST));
        run(lab, &reset, Verdict::Drop, "drop_no_socket");
        set_term(lab, 1, TermPhase::Young, 1);
        run(lab, &frame, Verdict::Drop, "drop_young");
    });
}

#[test]
fn a_syn_cookie_counts_where_the_arbiter_knows_no_flow() {
    in_lab("tunnel-cookie", at_frontend_of_two, |lab| {
        let (mut ack, _sockets) = cookie();
        let packet = ack.build();
        let from_arbiter = tunnelled(CONTROL.ip(), FRONTEND, &packet);
        let from_node = tunnelled(FRONTEND2, FRONTEND, &packet);
        ack.ack += 1;
        let forged = tunnelled(CONTROL.ip(), FRONTEND, &ack.build());
        run(lab, &packet, Verdict::Pass, "punt_here");
        set_term(lab, 1, TermPhase::Standby, 1);
        check_tunnelled(lab, &packet, CONTROL.ip());
        let given = run(lab, &from_arbiter, Verdict::Pass, "punt_here");
        assert_eq!(given, packet);
        for frame in [from_node, forged] {
            run(lab, &frame, Verdict::Drop, "drop_no_socket");
        }
        set_term(lab, 1, TermPhase::Settled, 1);
        own_flow_at(lab, ack.source, BACKEND.ip());
        check_tunnelled(lab, &packet, BACKEND.ip());
    });
}

#[test]
fn the_arbiter_sees_packets_of_another_frontends_sockets_at_times() {
    let adjust = |config: &mut SwitchConfig| {
        at_frontend_of_two(config);
        config.idle = Duration::from_secs(4);
    };
    in_lab("tunnel-seen", adjust, |lab| {
        set_term(lab, 1, TermPhase::Standby, 1);
        let (client, _sockets) = connect();
        let packet = segment(client, ACK);
        run(lab, &packet, Verdict::Pass, "punt_here");
        pause(1_100);
        run(lab, &segment(client, SYN), Verdict::Pass, "punt_here");
        check_tunnelled(lab, &packet, CONTROL.ip());
        let back = tunnelled(FRONTEND2, FRONTEND, &packet);
        run(lab, &back, Verdict::Pass, "punt_here");
        run(lab, &packet, Verdict::Pass, "punt_here");
    });
}

/// A router's error about a packet from the service to a client.
fn error_about(client: SocketAddr) -> Vec<u8> {
    let sent = ip(VIP.ip(), client.ip(), 6, 60, &[], &tcp_segment(VIP, client, ACK, &[]));
    let (kind, code) = if IS_V6 { (2, 0) } else { (3, 4) };
    icmp_error(host([192, 0, 2, 99]), VIP.ip(), kind, code, &sent)
}

#[test]
fn an_error_about_a_flow_reaches_the_host_of_its_socket() {
    in_lab("tunnel-icmp", at_frontend_of_two, |lab| {
        let (client, _sockets) = connect();
        let (own, other) = (error_about(client), error_about(CLIENT));
        for from in [client, CLIENT] {
            own_flow_at(lab, from, BACKEND.ip());
        }
        check_tunnelled(lab, &other, BACKEND.ip());
        let frame = tunnelled(FRONTEND2, CONTROL.ip(), &other);
        let sent = run(lab, &frame, Verdict::Send, "forward_in_tunnel");
        check_outer(&sent, FRONTEND, BACKEND.ip());
        let as_node = lab.run(Hook::Tc, &tunnelled(FRONTEND2, FRONTEND, &other));
        assert_eq!((as_node.verdict, &as_node.packet), (Verdict::Pass, &other));
        // The entries are copies now.
        set_term(lab, 1, TermPhase::Standby, 1);
        let here = lab.run(Hook::Tc, &own);
        assert_eq!((here.verdict, &here.packet), (Verdict::Pass, &own));
        check_tunnelled(lab, &other, CONTROL.ip());
    });
}
