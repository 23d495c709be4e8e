//! Services, tenants and nodes: the tables, and the effect of a change on open connections.

use std::net::SocketAddr;

use super::common::packet::Tcp;
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{FlowKey, Ops, Status};
use prism_switch::ServiceConfig;

#[test]
fn several_frontends_share_connections_and_a_change_moves_few() {
    let frontends: Vec<_> = (1..=16).map(|i| host([10, 0, 3, i])).collect();
    let many = |config: &mut prism_switch::SwitchConfig, n: usize| {
        config.services[0].frontends = frontends[..n].to_vec();
        config
            .nodes
            .extend(frontends.iter().map(|ip| node(*ip, 1, true, false)));
    };
    in_lab(
        "frontends",
        |config| many(config, 16),
        |lab| {
            let pick = |port| {
                let client = SocketAddr::new(CLIENT.ip(), port);
                let run = lab.run(Hook::Tc, &Tcp::new(client, VIP).build());
                run.packet[..6].to_vec()
            };
            let before: Vec<_> = (1..=1600).map(pick).collect();
            for ip in &frontends {
                let share = before.iter().filter(|mac| **mac == mac_of(*ip)).count();
                assert!((50..200).contains(&share), "{ip} has {share} of 1600");
            }
            let mut config = lab.config.clone();
            many(&mut config, 15);
            config.nodes.truncate(4 + 16);
            lab.switch.update_tables(&config).unwrap();
            let after: Vec<_> = (1..=1600).map(pick).collect();
            let gone = mac_of(frontends[15]);
            for (b, a) in before.iter().zip(&after) {
                assert!(b == a || *b == gone, "only the removed frontend's move");
            }
        },
    );
}

/// A service of tenant 1 at one of many addresses.
fn many_vips(i: u8) -> SocketAddr {
    SocketAddr::new(host([198, 51, 101, i]), 443)
}

/// Gives tenant 1 so many services instead of its first.
fn set_vips(config: &mut prism_switch::SwitchConfig, n: u8) {
    config.services.remove(0);
    config.services.extend((1..=n).map(|i| ServiceConfig {
        addr: many_vips(i),
        tenant: 1,
        frontends: vec![FRONTEND],
    }));
}

/// Gives the flow of `client` with `vip` to `owner`.
fn give(lab: &Lab, client: SocketAddr, vip: SocketAddr, owner: SocketAddr, epoch: u64) {
    let mut request = request(Ops::OWN, epoch, FlowKey { client, vip }, 0);
    request.owner = owned(owner);
    assert_eq!(lab.command(Hook::Tc, request).status, Status::Ok);
}

#[test]
fn an_owner_is_found_in_whichever_service_of_its_tenant() {
    in_lab(
        "services",
        |config| set_vips(config, 32),
        |lab| {
            let owner = |i: u8| SocketAddr::new(BACKEND.ip(), 9000 + u16::from(i));
            for i in 1..=32 {
                give(lab, CLIENT, many_vips(i), owner(i), 5);
            }
            // A hint may be from another CPU or this one, so the packet is sent twice.
            for hook in [BOTH, BOTH].concat() {
                for i in 1..=32 {
                    let packet = Tcp::new(owner(i), CLIENT);
                    let out = (CLIENT_MAC, many_vips(i), CLIENT);
                    check_sent(&lab.run(hook, &packet.build()), &packet, out, "owner");
                }
            }
            let stranger = Tcp::new(owner(33), CLIENT).build();
            assert_eq!(lab.run(Hook::Tc, &stranger).verdict, Verdict::Drop);
        },
    );
}

#[test]
fn an_owner_of_several_services_answers_each_client_as_its_service() {
    in_lab(
        "mixed",
        |config| set_vips(config, 4),
        |lab| {
            let client = |i: u8| SocketAddr::new(CLIENT.ip(), 40_000 + u16::from(i));
            let check = |i: u8, vip: SocketAddr| {
                for hook in BOTH {
                    let packet = Tcp::new(BACKEND, client(i));
                    let out = (CLIENT_MAC, vip, client(i));
                    check_sent(&lab.run(hook, &packet.build()), &packet, out, "owner");
                }
            };
            let vip = |i: u8| many_vips(i / 10 + 1);
            for i in 0..40 {
                give(lab, client(i), vip(i), BACKEND, 5);
            }
            // Service by service, and then in turn, so that hints are wrong.
            for i in (0..40).chain((0..40).map(|i| i % 4 * 10 + i / 4)).chain(0..40) {
                check(i, vip(i));
            }
            // The clients' next connections are of another service.
            for i in 0..40 {
                let gone = FlowKey {
                    client: client(i),
                    vip: vip(i),
                };
                let answer = lab.command(Hook::Tc, request(Ops::RELEASE, 6, gone, 0));
                assert_eq!(answer.status, Status::Ok);
                let next = vip((i + 10) % 40);
                give(lab, client(i), next, BACKEND, 6);
                check(i, next);
            }
        },
    );
}

#[test]
fn a_node_that_is_none_any_more_keeps_its_flows_and_gets_no_other() {
    in_lab(
        "former",
        |_| {},
        |lab| {
            assert_eq!(lab.own(CLIENT, BACKEND, 5).status, Status::Ok);
            let mut config = lab.config.clone();
            config.nodes.retain(|node| node.addr != BACKEND.ip());
            lab.switch.update_tables(&config).unwrap();
            for hook in BOTH {
                let there = Tcp::new(CLIENT, VIP);
                let out = (mac_of(BACKEND.ip()), CLIENT, BACKEND);
                check_sent(&lab.run(hook, &there.build()), &there, out, "to it");
                let back = Tcp::new(BACKEND, CLIENT);
                let out = (CLIENT_MAC, VIP, CLIENT);
                check_sent(&lab.run(hook, &back.build()), &back, out, "from it");
            }
            let other = SocketAddr::new(CLIENT.ip(), 40_001);
            assert_eq!(lab.own(other, BACKEND, 5).status, Status::Denied);
            let outside = Tcp::new(BACKEND, other).build();
            assert_eq!(lab.run(Hook::Tc, &outside).verdict, Verdict::Pass);
            lab.switch.update_tables(&lab.config).unwrap();
            assert_eq!(lab.own(other, BACKEND, 5).status, Status::Ok);
        },
    );
}
