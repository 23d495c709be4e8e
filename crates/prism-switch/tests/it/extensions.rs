//! Packets that only IPv6 has: extension headers, link-local and mapped addresses. One switch with
//! both families.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::common::packet::{
    ATOMIC, AUTHENTICATED, FIRST, HOP, Header, LATER, LONG, OPTIONS, ROUTE, ROUTED, Tcp, ethernet,
    extended, ip6,
};
use super::common::*;
use prism_packets::Verdict;
use prism_proto::control::{FlowKey, Ops, Owner, Status};
use prism_switch::ServiceConfig;

#[test]
fn packets_behind_extension_headers_go_where_their_flow_says() {
    let chains: [&[Header]; 6] = [
        &[HOP],
        &[OPTIONS],
        &[ROUTED],
        &[ATOMIC],
        &[HOP, OPTIONS],
        &[HOP, OPTIONS, ROUTED, ATOMIC],
    ];
    in_lab(
        "extended",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            for hook in BOTH {
                for chain in chains {
                    for (from, to, out) in [
                        (CLIENT, VIP, (mac_of(BACKEND.ip()), CLIENT, BACKEND)),
                        (BACKEND, CLIENT, (CLIENT_MAC, VIP, CLIENT)),
                    ] {
                        let seen = lab.counter("seen_ip_options");
                        let frame = extended(from, to, chain);
                        let run = lab.run(hook, &frame);
                        check_sent(&run, &Tcp::new(from, to), out, &format!("{chain:?}"));
                        let end = frame.len() - 25;
                        assert_eq!(run.packet[54..end], frame[54..end], "headers stay");
                        assert_eq!(lab.counter("seen_ip_options"), seen + 1);
                    }
                }
            }
            let flow = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
            assert_eq!((flow.to_owner.packets, flow.to_client.packets), (12, 12));
        },
    );
}

#[test]
fn headers_that_may_hide_service_tcp_are_dropped_and_others_left_alone() {
    let refused: [(&[Header], &str); 8] = [
        (&[ROUTE], "drop_extension"),
        (&[AUTHENTICATED], "drop_extension"),
        (&[HOP, AUTHENTICATED], "drop_extension"),
        (&[LONG], "drop_extension"),
        (&[OPTIONS; 5], "drop_extension"),
        (&[FIRST], "drop_fragment"),
        (&[HOP, LATER], "drop_fragment"),
        (&[LATER, OPTIONS], "drop_fragment"),
    ];
    in_lab(
        "hidden",
        |_| {},
        |lab| {
            set(lab, Flow::OwnedBy(BACKEND));
            let other = SocketAddr::new(host([203, 0, 113, 5]), 80);
            for hook in BOTH {
                for (chain, counter) in refused {
                    let before = lab.counter(counter);
                    for (from, to) in [(CLIENT, VIP), (VIP, CLIENT), (BACKEND, CLIENT)] {
                        let run = lab.run(hook, &extended(from, to, chain));
                        assert_eq!(run.verdict, Verdict::Drop, "{chain:?} {from} {to}");
                    }
                    assert_eq!(lab.counter(counter), before + 3, "{chain:?}");
                    let frame = extended(CLIENT, other, chain);
                    let run = lab.run(hook, &frame);
                    assert_eq!((run.verdict, run.packet), (Verdict::Pass, frame));
                }
                let truncated = lab.counter("punt_truncated");
                let mut cut = extended(CLIENT, VIP, &[HOP, OPTIONS]);
                cut.truncate(54 + 8 + 2);
                assert_eq!(lab.run(hook, &cut).verdict, Verdict::Pass);
                assert_eq!(lab.counter("punt_truncated"), truncated + 1);
            }
        },
    );
}

#[test]
fn link_local_senders_and_neighbour_discovery_are_left_alone() {
    in_lab(
        "link-local",
        |_| {},
        |lab| {
            let neighbour = SocketAddr::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).into(), 9);
            let mut solicitation = vec![135, 0, 0, 0, 0, 0, 0, 0];
            solicitation.extend([0; 16]);
            let frames = [
                Tcp::new(neighbour, VIP).build(),
                ethernet(&ip6(CLIENT.ip(), VIP.ip(), 58, 255, &solicitation)),
            ];
            for hook in BOTH {
                for frame in &frames {
                    let run = lab.run(hook, frame);
                    assert_eq!((run.verdict, &run.packet), (Verdict::Pass, frame));
                }
            }
            assert_eq!(lab.counters(), []);
        },
    );
}

const CLIENT4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);
const VIP4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)), 80);
const FRONTEND4: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
const BACKEND4: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1)), 9000);

/// The hosts have IPv4 addresses too.
fn dual(config: &mut prism_switch::SwitchConfig) {
    config.services.push(ServiceConfig {
        addr: VIP4,
        tenant: 1,
        frontends: vec![FRONTEND4],
    });
    for (i, addr) in [FRONTEND4, BACKEND4.ip()].into_iter().enumerate() {
        let mut node = config.nodes[i].clone();
        node.addr = addr;
        config.nodes.push(node);
    }
    let control = SocketAddr::new(Ipv4Addr::new(10, 9, 9, 9).into(), CONTROL.port());
    config.control.push(control);
}

#[test]
fn one_table_has_the_flows_of_both_families() {
    in_lab("dual", dual, |lab| {
        sh("ip addr add 192.0.2.254/24 dev c0
            ip neigh replace 192.0.2.1 lladdr 02:00:00:00:00:c1 dev c0 nud permanent
            echo 1 > /proc/sys/net/ipv4/ip_forward");
        let mut own4 = request(
            Ops::OWN,
            5,
            FlowKey {
                client: CLIENT4,
                vip: VIP4,
            },
            0,
        );
        own4.owner = Owner {
            addr: BACKEND4,
            via: BACKEND4.ip(),
        };
        for hook in BOTH {
            assert_eq!(lab.command(hook, own4).status, Status::Ok);
            set(lab, Flow::OwnedBy(BACKEND));
            let backend = mac_of(BACKEND.ip());
            for (from, to, out) in [
                (CLIENT, VIP, (backend, CLIENT, BACKEND)),
                (CLIENT4, VIP4, (backend, CLIENT4, BACKEND4)),
                (BACKEND, CLIENT, (CLIENT_MAC, VIP, CLIENT)),
                (BACKEND4, CLIENT4, (CLIENT_MAC, VIP4, CLIENT4)),
            ] {
                let tcp = Tcp::new(from, to);
                check_sent(&lab.run(hook, &tcp.build()), &tcp, out, "dual");
            }
            assert_eq!(lab.flows().len(), 2);
            own4.epoch += 1;
        }
        mapped_addresses_are_none_of_ipv4(lab);
    });
}

/// An IPv6 packet with IPv4-mapped addresses is not of the IPv4 flow.
fn mapped_addresses_are_none_of_ipv4(lab: &Lab) {
    let mapped = |addr: SocketAddr| match addr.ip() {
        IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), addr.port()),
        IpAddr::V6(_) => addr,
    };
    for hook in BOTH {
        for (from, to) in [
            (mapped(CLIENT4), mapped(VIP4)),
            (mapped(BACKEND4), mapped(CLIENT4)),
            (mapped(CLIENT4), VIP),
        ] {
            let frame = Tcp::new(from, to).build();
            let run = lab.run(hook, &frame);
            assert_eq!(
                (run.verdict, run.packet),
                (Verdict::Pass, frame),
                "{from} {to}"
            );
        }
    }
}
