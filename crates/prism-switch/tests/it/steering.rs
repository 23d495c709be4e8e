//! Steering of packets: packet in, flows, verdict, packet out, counters.

use std::net::SocketAddr;

use super::common::packet::{ACK, SYN, Tcp, fragment, tagged, verify};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{Ops, Status};

struct Row {
    name: &'static str,
    flow: Flow,
    from: SocketAddr,
    to: SocketAddr,
    out: Result<Out, Verdict>,
    counter: Option<&'static str>,
}

#[test]
#[allow(clippy::too_many_lines, reason = "a table")]
fn packets_go_where_their_flow_says() {
    let frontend = mac_of(FRONTEND);
    let other_client = SocketAddr::new(host([192, 0, 2, 77]), 1);
    let rows = [
        Row {
            name: "new connection",
            flow: Flow::None,
            from: CLIENT,
            to: VIP,
            out: Ok((frontend, CLIENT, VIP)),
            counter: Some("forward_to_frontend"),
        },
        Row {
            name: "owned",
            flow: Flow::OwnedBy(BACKEND),
            from: CLIENT,
            to: VIP,
            out: Ok((mac_of(BACKEND.ip()), CLIENT, BACKEND)),
            counter: Some("forward_to_owner"),
        },
        Row {
            name: "owned on the service's port",
            flow: Flow::OwnedBy(BACKEND2),
            from: CLIENT,
            to: VIP,
            out: Ok((mac_of(BACKEND2.ip()), CLIENT, BACKEND2)),
            counter: Some("forward_to_owner"),
        },
        Row {
            name: "owned by the frontend",
            flow: Flow::OwnedBy(VIP),
            from: CLIENT,
            to: VIP,
            out: Ok((frontend, CLIENT, VIP)),
            counter: Some("forward_to_frontend"),
        },
        Row {
            name: "blocked",
            flow: Flow::BlockedAt(BACKEND),
            from: CLIENT,
            to: VIP,
            out: Err(Verdict::Drop),
            counter: Some("drop_blocked"),
        },
        Row {
            name: "released",
            flow: Flow::Released,
            from: CLIENT,
            to: VIP,
            out: Err(Verdict::Drop),
            counter: Some("drop_released"),
        },
        Row {
            name: "service without frontends",
            flow: Flow::None,
            from: CLIENT,
            to: OTHER_VIP,
            out: Err(Verdict::Pass),
            counter: Some("punt_no_frontend"),
        },
        Row {
            name: "owner's answer",
            flow: Flow::OwnedBy(BACKEND),
            from: BACKEND,
            to: CLIENT,
            out: Ok((CLIENT_MAC, VIP, CLIENT)),
            counter: Some("forward_to_client"),
        },
        Row {
            name: "owner's answer on the service's port",
            flow: Flow::OwnedBy(BACKEND2),
            from: BACKEND2,
            to: CLIENT,
            out: Ok((CLIENT_MAC, VIP, CLIENT)),
            counter: Some("forward_to_client"),
        },
        Row {
            name: "blocked owner's answer",
            flow: Flow::BlockedAt(BACKEND),
            from: BACKEND,
            to: CLIENT,
            out: Err(Verdict::Drop),
            counter: Some("drop_blocked"),
        },
        Row {
            name: "former owner",
            flow: Flow::OwnedBy(BACKEND2),
            from: BACKEND,
            to: CLIENT,
            out: Err(Verdict::Drop),
            counter: Some("drop_unmatched_backend"),
        },
        Row {
            name: "owner of a released flow",
            flow: Flow::Released,
            from: BACKEND,
            to: CLIENT,
            out: Err(Verdict::Drop),
            counter: Some("drop_unmatched_backend"),
        },
        Row {
            name: "owner to another client",
            flow: Flow::OwnedBy(BACKEND),
            from: BACKEND,
            to: other_client,
            out: Err(Verdict::Drop),
            counter: Some("drop_unmatched_backend"),
        },
        Row {
            name: "backend to another node",
            flow: Flow::None,
            from: BACKEND,
            to: SocketAddr::new(FRONTEND, 7000),
            out: Err(Verdict::Pass),
            counter: None,
        },
        Row {
            name: "frontend's answer",
            flow: Flow::None,
            from: VIP,
            to: CLIENT,
            out: Ok((CLIENT_MAC, VIP, CLIENT)),
            counter: Some("forward_from_frontend"),
        },
        Row {
            name: "frontend's answer, owned",
            flow: Flow::OwnedBy(VIP),
            from: VIP,
            to: CLIENT,
            out: Ok((CLIENT_MAC, VIP, CLIENT)),
            counter: Some("forward_from_frontend"),
        },
        Row {
            name: "frontend speaks on a migrated flow",
            flow: Flow::OwnedBy(BACKEND),
            from: VIP,
            to: CLIENT,
            out: Err(Verdict::Drop),
            counter: Some("drop_not_owner"),
        },
        Row {
            name: "frontend speaks on a blocked flow",
            flow: Flow::BlockedAt(VIP),
            from: VIP,
            to: CLIENT,
            out: Err(Verdict::Drop),
            counter: Some("drop_blocked"),
        },
        Row {
            name: "other traffic",
            flow: Flow::None,
            from: CLIENT,
            to: SocketAddr::new(VIP.ip(), 81),
            out: Err(Verdict::Pass),
            counter: None,
        },
    ];
    in_lab(
        "rows",
        |_| {},
        |lab| {
            for row in &rows {
                for hook in BOTH {
                    check_row(lab, row, hook);
                }
            }
        },
    );
}

fn check_row(lab: &Lab, row: &Row, hook: Hook) {
    set(lab, row.flow);
    let mut expected: std::collections::BTreeMap<_, _> = lab.counters().into_iter().collect();
    let tcp = Tcp::new(row.from, row.to);
    let packet = tcp.build();
    // The first packet to a next hop asks the kernel, later ones the cache.
    for _ in 0..2 {
        let run = lab.run(hook, &packet);
        match row.out {
            Ok(out) => check_sent(&run, &tcp, out, row.name),
            Err(verdict) => {
                assert_eq!(run.verdict, verdict, "{}", row.name);
                assert_eq!(run.packet, packet, "{}: untouched", row.name);
            }
        }
        if let Some(name) = row.counter {
            *expected.entry(name.to_owned()).or_default() += 1;
        }
    }
    let counters = lab.counters().into_iter().collect();
    assert_eq!(expected, counters, "{}: counters", row.name);
}

#[test]
fn after_a_release_only_a_new_connection_passes() {
    in_lab(
        "released",
        |_| {},
        |lab| {
            for hook in [Hook::Tc, Hook::Xdp] {
                set(lab, Flow::Released);
                let mut tcp = Tcp::new(CLIENT, VIP);
                let dropped = lab.counter("drop_released");
                assert_eq!(lab.run(hook, &tcp.build()).verdict, Verdict::Drop);
                assert_eq!(lab.counter("drop_released"), dropped + 1);
                let to_frontend = (mac_of(FRONTEND), CLIENT, VIP);
                for flags in [SYN, ACK] {
                    tcp.flags = flags;
                    check_sent(
                        &lab.run(hook, &tcp.build()),
                        &tcp,
                        to_frontend,
                        "new connection",
                    );
                }
                // The release is a fence: the flow had no owner since the SYN.
                let epoch = lab.flows()[0].epoch.max(lab.clock()) + 1;
                let answer = lab.plain(Ops::RELEASE, CLIENT, epoch);
                assert_eq!(answer.status, Status::Ok);
                check_sent(
                    &lab.run(hook, &tcp.build()),
                    &tcp,
                    to_frontend,
                    "after a fence",
                );
            }
        },
    );
}

#[test]
fn packets_and_bytes_are_counted_per_direction() {
    in_lab(
        "stats",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            let there = Tcp::new(CLIENT, VIP).build();
            let back = Tcp::new(BACKEND, CLIENT).build();
            for _ in 0..3 {
                lab.run(Hook::Tc, &there);
            }
            lab.run(Hook::Xdp, &back);
            let f = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
            assert_eq!((f.to_owner.packets, f.to_client.packets), (3, 1));
            assert_eq!(f.to_owner.bytes, 3 * there.len() as u64);
            assert_eq!(f.to_client.bytes, back.len() as u64);
            assert!(f.idle.as_millis() < 500, "{f:?}");
        },
    );
}

#[test]
fn ip_options_are_kept_and_counted() {
    in_lab(
        "options",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            for hook in BOTH {
                let before = lab.counter("seen_ip_options");
                for (from, to, out) in [
                    (CLIENT, VIP, (mac_of(BACKEND.ip()), CLIENT, BACKEND)),
                    (BACKEND, CLIENT, (CLIENT_MAC, VIP, CLIENT)),
                ] {
                    let mut tcp = Tcp::new(from, to);
                    tcp.options = vec![1; 40];
                    let run = lab.run(hook, &tcp.build());
                    check_sent(&run, &tcp, out, "options");
                    // In IPv6 behind the two bytes that begin an extension header.
                    let at = 14 + IP_BYTES + if IS_V6 { 2 } else { 0 };
                    assert_eq!(run.packet[at..at + 40], [1; 40]);
                }
                assert_eq!(lab.counter("seen_ip_options"), before + 2);
            }
        },
    );
}

#[test]
fn fragments_of_service_tcp_are_dropped_and_others_left_alone() {
    in_lab(
        "fragments",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            let (first, later) = (0x2000, 0x00b9);
            let other = SocketAddr::new(host([203, 0, 113, 5]), 80);
            let rows = [
                (CLIENT, VIP, first, Verdict::Drop),
                (CLIENT, VIP, later, Verdict::Drop),
                (VIP, CLIENT, later, Verdict::Drop),
                (BACKEND, CLIENT, first, Verdict::Drop),
                (BACKEND, CLIENT, later, Verdict::Drop),
                (CLIENT, other, later, Verdict::Pass),
            ];
            for hook in BOTH {
                let before = lab.counter("drop_fragment");
                for (from, to, field, verdict) in rows {
                    let frame = fragment(Tcp::new(from, to).build(), field);
                    assert_eq!(
                        lab.run(hook, &frame).verdict,
                        verdict,
                        "{from} {to} {field:x}"
                    );
                }
                assert_eq!(lab.counter("drop_fragment"), before + 5);
                let udp = fragment(packet::udp(CLIENT, VIP, &[1; 20]), later);
                assert_eq!(lab.run(hook, &udp).verdict, Verdict::Pass);
            }
        },
    );
}

#[test]
fn what_is_not_ours_passes_untouched() {
    in_lab(
        "foreign",
        |_| {},
        |lab| {
            let tcp = Tcp::new(CLIENT, VIP).build();
            let vlan = tagged(tcp.clone(), &[7]);
            let mut other_family = tcp.clone();
            let other = if IS_V6 { [8, 0] } else { [0x86, 0xdd] };
            other_family[12..14].copy_from_slice(&other);
            let mut broadcast = tcp.clone();
            broadcast[..6].fill(0xff);
            let mut arp = tcp.clone();
            arp[12..14].copy_from_slice(&[8, 6]);
            let mut short_ihl = tcp.clone();
            short_ihl[14] = 0x44;
            let frames = [vlan, other_family, broadcast, arp, short_ihl];
            let udp = packet::udp(CLIENT, VIP, b"x");
            let other_port = packet::udp(CLIENT, SocketAddr::new(CONTROL.ip(), 1), b"x");
            for hook in BOTH {
                for frame in frames.iter().chain([&udp, &other_port]) {
                    let run = lab.run(hook, frame);
                    assert_eq!(run.verdict, Verdict::Pass);
                    assert_eq!(&run.packet, frame);
                }
                let mut cut = tcp[..14 + IP_BYTES + 6].to_vec();
                let (at, bytes) = if IS_V6 { (18, 6u16) } else { (16, 26) };
                cut[at..at + 2].copy_from_slice(&bytes.to_be_bytes());
                assert_eq!(lab.run(hook, &cut).verdict, Verdict::Pass);
            }
            let counters = [("punt_truncated", 2), ("punt_tagged", 1), ("punt_xdp", 1)];
            assert_eq!(lab.counters(), counters.map(|(name, n)| (name.to_owned(), n)));
        },
    );
}

#[test]
fn an_expired_ttl_is_left_to_the_kernel() {
    in_lab(
        "ttl",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            for hook in BOTH {
                for ttl in [0, 1] {
                    let mut tcp = Tcp::new(CLIENT, VIP);
                    tcp.ttl = ttl;
                    let packet = tcp.build();
                    let run = lab.run(hook, &packet);
                    assert_eq!((run.verdict, run.packet), (Verdict::Pass, packet));
                }
            }
            assert_eq!(lab.counter("punt_ttl"), 4);
        },
    );
}

#[test]
fn packets_too_long_for_their_way_never_show_or_miss_the_owner() {
    let small = |config: &mut prism_switch::SwitchConfig| {
        for node in &mut config.nodes {
            node.link.as_mut().unwrap().mtu_bytes = 100;
        }
    };
    in_lab("mtu", small, |lab| {
        set(lab, Flow::OwnedBy(BACKEND));
        let mut tcp = Tcp::new(CLIENT, VIP);
        tcp.payload = vec![0; 100 - IP_BYTES - 20 + 1];
        assert_eq!(lab.run(Hook::Tc, &tcp.build()).verdict, Verdict::Drop);
        assert_eq!(lab.counter("drop_mtu"), 1);
        tcp.payload = vec![0; 100 - IP_BYTES - 20];
        assert_eq!(lab.run(Hook::Tc, &tcp.build()).verdict, Verdict::Send);
        let mut back = Tcp::new(BACKEND, CLIENT);
        back.payload = vec![0; 1461];
        let packet = back.build();
        let run = lab.run(Hook::Tc, &packet);
        assert_eq!(
            (run.verdict, &run.packet),
            (Verdict::Pass, &packet),
            "the kernel answers the owner"
        );
        assert_eq!(lab.counter("punt_mtu"), 1);
        if !IS_V6 {
            let may_cut = fragment(packet, 0);
            assert_eq!(lab.run(Hook::Tc, &may_cut).verdict, Verdict::Drop);
        }
    });
}

#[test]
fn a_next_hop_without_arp_entry_is_asked_for_by_tc_and_left_to_it_by_xdp() {
    in_lab(
        "neighbour",
        |_| {},
        |lab| {
            let unknown = SocketAddr::new(host([192, 0, 2, 50]), 1234);
            let packet = Tcp::new(VIP, unknown).build();
            let run = lab.run(Hook::Xdp, &packet);
            assert_eq!((run.verdict, &run.packet), (Verdict::Pass, &packet));
            assert_eq!(lab.counter("punt_xdp"), 1);
            let run = lab.run(Hook::Tc, &packet);
            assert_eq!(run.verdict, Verdict::Send);
            verify(&run.packet);
            assert_eq!(lab.counter("seen_neighbour_missing"), 1);
            let nowhere = SocketAddr::new(host([203, 0, 113, 9]), 1);
            let run = lab.run(Hook::Tc, &Tcp::new(VIP, nowhere).build());
            assert_eq!(run.verdict, Verdict::Pass);
            assert_eq!(lab.counter("punt_no_route"), 1);
        },
    );
}
