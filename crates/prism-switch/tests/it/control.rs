//! The control protocol: the answers of the programs.

use super::common::*;
use libbpf_rs::{MapCore, MapFlags};
use prism_packets::{Hook, Verdict};
use prism_proto::control::{
    ControlKey, FlowState, MAX_EPOCH_AHEAD_NS, MAX_EPOCH_STEP, OFFSETS, Ops, Owner, SIGNED_BYTES,
    Status, VERSION,
};
use prism_switch::{ALL_TENANTS, SenderConfig};

#[test]
fn a_flow_is_owned_blocked_unblocked_and_released() {
    in_lab(
        "life",
        |_| {},
        |lab| {
            for (hook, base) in BOTH.into_iter().zip([10, 20]) {
                let send = |ops: Ops, epoch, owner| {
                    let mut r = request(ops, base + epoch, flow(CLIENT), 0);
                    r.owner = owner;
                    let a = lab.command(hook, r);
                    (a.status, a.state, a.epoch - base, a.owner)
                };
                let (one, two) = (owned(BACKEND), owned(BACKEND2));
                let steps = [
                    (Ops::OWN.and(Ops::BLOCK), 1, one, FlowState::Blocked, one),
                    (Ops::UNBLOCK, 2, Owner::NONE, FlowState::Forward, one),
                    (Ops::OWN, 3, two, FlowState::Forward, two),
                    (Ops::BLOCK, 4, Owner::NONE, FlowState::Blocked, two),
                    (
                        Ops::OWN.and(Ops::UNBLOCK),
                        5,
                        owned(VIP),
                        FlowState::Forward,
                        owned(VIP),
                    ),
                    (Ops::RELEASE, 6, Owner::NONE, FlowState::Absent, Owner::NONE),
                ];
                for (ops, epoch, owner, state, now) in steps {
                    assert_eq!(
                        send(ops, epoch, owner),
                        (Status::Ok, state, epoch, now),
                        "{ops:?}"
                    );
                    assert_eq!(
                        send(ops, epoch, owner),
                        (Status::Ok, state, epoch, now),
                        "repetition of {ops:?}"
                    );
                }
            }
        },
    );
}

#[test]
fn every_refusal_has_its_status_and_counter() {
    in_lab(
        "refusals",
        |_| {},
        |lab| {
            let base = request(Ops::OWN, 5, flow(CLIENT), lab.clock());
            let own = |owner: Owner| prism_proto::control::Request { owner, ..base };
            let good = own(owned(BACKEND));
            let mut foreign_vip = good;
            foreign_vip.flow.vip = OTHER_VIP;
            let mut no_service = good;
            no_service.flow.vip.set_port(81);
            let mut zero_port = good;
            zero_port.flow.vip.set_port(0);
            let mut late = good;
            late.time_ns -= 2_500_000_000;
            let mut early = good;
            early.time_ns += 3_500_000_000;
            let mut foreign_via = good;
            foreign_via.owner.via = FOREIGN.ip();
            let ops = |ops| prism_proto::control::Request { ops, ..good };
            let rows = [
                (late, Status::Late),
                (early, Status::Late),
                (ops(Ops::BLOCK.and(Ops::UNBLOCK)), Status::BadRequest),
                (ops(Ops::RELEASE.and(Ops::OWN)), Status::BadRequest),
                (ops(Ops(16)), Status::BadRequest),
                (ops(Ops::BLOCK), Status::BadRequest),
                (own(Owner::NONE), Status::BadRequest),
                (no_service, Status::NoService),
                (zero_port, Status::NoService),
                (foreign_vip, Status::Denied),
                (own(owned(FOREIGN)), Status::Denied),
                (own(owned(CLIENT)), Status::Denied),
                (foreign_via, Status::Denied),
            ];
            for hook in BOTH {
                for (r, status) in &rows {
                    let a = lab.raw_command(hook, &r.encode(&key())).unwrap();
                    assert_eq!(a.status, *status, "{r:?}");
                    assert_eq!(
                        (a.state, a.epoch, a.owner),
                        (FlowState::Absent, 0, Owner::NONE)
                    );
                    assert_eq!((a.request_id, a.ops, a.flow), (r.request_id, r.ops, r.flow));
                }
            }
            assert!(lab.flows().is_empty(), "nothing changed");
            // The requests that ask for the clock are late too.
            for (name, count) in [
                ("control_late", 5),
                ("control_bad_request", 10),
                ("control_no_service", 4),
                ("control_denied", 8),
            ] {
                assert_eq!(lab.counter(name), count, "{name}");
            }
        },
    );
}

#[test]
fn all_addresses_of_a_flow_are_of_one_family() {
    in_lab(
        "mixed",
        |_| {},
        |lab| {
            let other: std::net::IpAddr = match IS_V6 {
                true => std::net::Ipv4Addr::LOCALHOST.into(),
                false => std::net::Ipv6Addr::LOCALHOST.into(),
            };
            let mut good = request(Ops::OWN, 5, flow(CLIENT), lab.clock());
            good.owner = owned(BACKEND);
            let mut mixed = [good; 3];
            mixed[0].flow.client.set_ip(other);
            mixed[1].owner.addr.set_ip(other);
            mixed[2].owner.via = other;
            for hook in BOTH {
                for request in mixed {
                    let answer = lab.raw_command(hook, &request.encode(&key())).unwrap();
                    assert_eq!(answer.status, Status::BadRequest, "{request:?}");
                }
            }
            assert!(lab.flows().is_empty());
        },
    );
}

#[test]
fn an_epoch_far_ahead_is_refused_and_what_is_there_can_be_released() {
    in_lab(
        "ahead",
        |_| {},
        |lab| {
            for hook in BOTH {
                let own = |epoch| {
                    let mut r = request(Ops::OWN, epoch, flow(CLIENT), 0);
                    r.owner = owned(BACKEND);
                    lab.command(hook, r)
                };
                let refused = lab.counter("control_ahead");
                // The clock may have advanced before the program reads it.
                let far = lab.clock() + MAX_EPOCH_AHEAD_NS + 1_000_000_000;
                for epoch in [u64::MAX, far] {
                    assert_eq!(own(epoch).status, Status::Ahead, "{epoch}");
                }
                assert_eq!(lab.counter("control_ahead"), refused + 2);
                let epoch = lab.clock() + MAX_EPOCH_AHEAD_NS;
                assert_eq!(own(epoch).status, Status::Ok);
                for (step, status) in [
                    (u64::MAX - epoch, Status::Ahead),
                    (1_000_000_000, Status::Ahead),
                    (MAX_EPOCH_STEP, Status::Ok),
                ] {
                    let released = lab.plain(Ops::RELEASE, CLIENT, epoch + step);
                    assert_eq!(released.status, status, "{step}");
                }
                pause(1);
            }
        },
    );
}

#[test]
fn forged_truncated_and_foreign_messages_change_nothing_and_are_counted() {
    in_lab(
        "forged",
        |_| {},
        |lab| {
            let mut r = request(Ops::OWN, 5, flow(CLIENT), lab.clock());
            r.owner = owned(BACKEND);
            let good = r.encode(&key());
            let other = ControlKey::new([1; 16]);
            let unknown = prism_proto::control::Request { key_id: 8, ..r };
            let answer = r.answer(Status::Ok, FlowState::Forward, 5, r.owner, 1);
            for hook in BOTH {
                let mut forged = 0;
                let [_, ops, _, key_id, _, _, _, epoch, .., owner_port, _] = OFFSETS;
                for at in [ops, key_id, epoch, owner_port, SIGNED_BYTES, 119] {
                    let mut bad = good;
                    bad[at] ^= 1;
                    assert_eq!(lab.raw_command(hook, &bad), None);
                    forged += 1;
                }
                assert_eq!(lab.raw_command(hook, &r.encode(&other)), None);
                assert_eq!(lab.raw_command(hook, &unknown.encode(&key())), None);
                forged += 2;
                let before = lab.counter("control_malformed");
                let long = [&good[..], &[0]].concat();
                let mut magic = good;
                magic[0] ^= 1;
                let mut version = good;
                version[4] = VERSION + 1;
                let bad: [&[u8]; 7] = [
                    &good[..119],
                    &[],
                    &long,
                    &magic,
                    &version,
                    &answer.encode(&key()),
                    &good[..60],
                ];
                for bytes in bad {
                    assert_eq!(lab.raw_command(hook, bytes), None);
                }
                assert_eq!(lab.counter("control_malformed") - before, 7);
                let times = if hook == Hook::Tc { 1 } else { 2 };
                assert_eq!(lab.counter("control_forged"), forged * times);
            }
            assert!(lab.flows().is_empty());
        },
    );
}

#[test]
fn replays_change_nothing() {
    in_lab(
        "replay",
        |_| {},
        |lab| {
            let mut r = request(Ops::OWN, 5, flow(CLIENT), lab.clock());
            r.owner = owned(BACKEND);
            let recorded = r.encode(&key());
            for _ in 0..2 {
                let a = lab.raw_command(Hook::Tc, &recorded).unwrap();
                assert_eq!((a.status, a.state), (Status::Ok, FlowState::Forward));
            }
            assert_eq!(lab.plain(Ops::RELEASE, CLIENT, 6).status, Status::Ok);
            let a = lab.raw_command(Hook::Tc, &recorded).unwrap();
            assert_eq!(
                (a.status, a.state, a.epoch),
                (Status::Stale, FlowState::Absent, 6)
            );
            assert_eq!(lab.live(), 0);
        },
    );
}

#[test]
fn a_query_tells_the_clock_and_only_ones_own_flows() {
    in_lab(
        "query",
        |config| {
            config.senders.push(SenderConfig {
                key_id: 9,
                key: ControlKey::new([9; 16]),
                tenant: 2,
                node: Vec::new(),
            });
        },
        |lab| {
            lab.own(CLIENT, BACKEND, 5);
            let now = lab.clock();
            let a = lab.command(Hook::Tc, request(Ops::QUERY, 0, flow(CLIENT), 0));
            assert_eq!(
                (a.status, a.state, a.epoch, a.owner),
                (Status::Ok, FlowState::Forward, 5, owned(BACKEND))
            );
            assert!(a.time_ns >= now && a.time_ns < now + 1_000_000_000);
            let nowhere = std::net::SocketAddr::new(std::net::Ipv6Addr::UNSPECIFIED.into(), 0);
            let none = prism_proto::control::FlowKey {
                client: nowhere,
                vip: nowhere,
            };
            assert_eq!(
                lab.command(Hook::Xdp, request(Ops::QUERY, 0, none, 0))
                    .status,
                Status::Ok
            );
            let mut foreign = request(Ops::QUERY, 0, flow(CLIENT), 0);
            foreign.key_id = 9;
            let run = |r: prism_proto::control::Request| {
                let source = std::net::SocketAddr::new(FRONTEND, 1);
                let datagram = r.encode(&ControlKey::new([9; 16]));
                let run = lab.run(Hook::Tc, &packet::udp(source, CONTROL, &datagram));
                assert_eq!(run.verdict, Verdict::Send);
                let payload = packet::Parsed::new(&run.packet).payload.to_vec();
                prism_proto::control::Answer::decode(&payload, 9, &ControlKey::new([9; 16]))
                    .unwrap()
            };
            let late = run(foreign);
            assert_eq!((late.status, late.state), (Status::Late, FlowState::Absent));
            foreign.time_ns = lab.clock();
            let denied = run(foreign);
            assert_eq!(
                (denied.status, denied.state),
                (Status::Denied, FlowState::Absent)
            );
        },
    );
}

#[test]
fn a_frontend_of_all_tenants_owns_flows_and_a_backend_of_another_does_not() {
    in_lab(
        "of-all",
        |config| config.nodes[0].tenant = ALL_TENANTS,
        |lab| {
            for (epoch, owner, status) in [
                (5, Owner { addr: VIP, via: FRONTEND }, Status::Ok),
                (6, owned(BACKEND), Status::Ok),
                (7, owned(FOREIGN), Status::Denied),
            ] {
                let mut command = request(Ops::OWN, epoch, flow(CLIENT), lab.clock());
                command.owner = owner;
                assert_eq!(lab.command(Hook::Tc, command).status, status, "{owner:?}");
            }
        },
    );
}

#[test]
fn what_a_refusal_tells_of_the_flow_depends_on_who_may_command_it() {
    in_lab(
        "told",
        |_| {},
        |lab| {
            assert_eq!(lab.own(CLIENT, BACKEND, 5).status, Status::Ok);
            let ops = Ops::OWN.and(Ops::UNBLOCK);
            let base = request(ops, 6, flow(CLIENT), lab.clock());
            let own = |owner| prism_proto::control::Request { owner, ..base };
            let (mut both, mut late) = (own(owned(BACKEND)), own(owned(BACKEND)));
            both.ops = ops.and(Ops::BLOCK);
            late.time_ns = 1;
            let (known, nothing) = (
                (FlowState::Forward, 5, owned(BACKEND)),
                (FlowState::Absent, 0, Owner::NONE),
            );
            let rows = [
                (own(owned(FOREIGN)), Status::Denied, nothing),
                (own(owned(CLIENT)), Status::Denied, nothing),
                (both, Status::BadRequest, known),
                (late, Status::Late, known),
            ];
            for hook in BOTH {
                for (request, status, told) in &rows {
                    let a = lab.raw_command(hook, &request.encode(&key())).unwrap();
                    assert_eq!(a.status, *status, "{request:?}");
                    assert_eq!((a.state, a.epoch, a.owner), *told, "{status:?}");
                }
            }
        },
    );
}

#[test]
fn a_full_table_refuses_and_evicts_nobody() {
    in_lab(
        "full",
        |config| config.max_flows = 8,
        |lab| {
            let client = |port| std::net::SocketAddr::new(CLIENT.ip(), port);
            let mut full = 0;
            for port in 1..=64 {
                match lab.own(client(port), BACKEND, 5).status {
                    Status::Ok => assert_eq!(full, 0, "no room appears by itself"),
                    Status::Full => full += 1,
                    other => panic!("{other:?}"),
                }
            }
            let flows = lab.flows();
            assert!(
                flows.len() >= 8 && full > 0,
                "{} flows, {full} refused",
                flows.len()
            );
            assert!(flows.iter().all(|f| f.owner == owned(BACKEND)));
            assert_eq!(lab.counter("control_full"), full);
            let port = flows[0].flow.client.port();
            // Flows that have an entry still move.
            assert_eq!(lab.own(client(port), BACKEND2, 6).status, Status::Ok);
            assert_eq!(lab.plain(Ops::BLOCK, client(port), 7).status, Status::Ok);
        },
    );
}

#[test]
fn control_packets_without_a_udp_checksum_are_answered() {
    in_lab(
        "nosum",
        |_| {},
        |lab| {
            for hook in BOTH {
                let datagram = request(Ops::QUERY, 0, flow(CLIENT), 0).encode(&key());
                let mut p =
                    packet::udp(std::net::SocketAddr::new(FRONTEND, 1), CONTROL, &datagram);
                let at = 14 + IP_BYTES + 6;
                p[at..at + 2].fill(0);
                let run = lab.run(hook, &p);
                // IPv6 packets must have one (RFC 8200, section 8.1).
                let verdict = if IS_V6 { Verdict::Drop } else { Verdict::Send };
                assert_eq!(run.verdict, verdict);
                if !IS_V6 && run.packet[at..at + 2] != [0, 0] {
                    packet::verify(&run.packet);
                }
            }
        },
    );
}

#[test]
fn a_program_of_another_control_protocol_does_not_replace_the_switch() {
    in_lab(
        "other-version",
        |_| {},
        |lab| {
            lab.own(CLIENT, BACKEND, 5);
            let pin = format!("/sys/fs/bpf/{}/control_version", lab.config.pin_dir);
            let pinned = libbpf_rs::MapHandle::from_pinned_path(&pin).unwrap();
            let set = |version: u8| {
                let value = u32::from(version).to_le_bytes();
                pinned.update(&[0; 4], &value, MapFlags::ANY).unwrap();
            };
            set(VERSION + 1);
            let told = prism_switch::Switch::load(&lab.config).err().unwrap();
            let told = told.to_string();
            let names_both = told.contains(&format!("version {}", VERSION + 1))
                && told.contains(&format!("this program {VERSION}"));
            assert!(names_both && told.contains("--unload"), "{told}");
            // The switch that runs answers as before.
            assert_eq!(lab.own(CLIENT, BACKEND, 6).status, Status::Ok);
            set(VERSION);
            drop(prism_switch::Switch::load(&lab.config).unwrap());
            // Releases without this pin speak version 2.
            std::fs::remove_file(&pin).unwrap();
            drop(prism_switch::Switch::load(&lab.config).unwrap());
            assert!(std::path::Path::new(&pin).exists());
            assert_eq!(lab.own(CLIENT, BACKEND, 7).status, Status::Ok);
        },
    );
}
