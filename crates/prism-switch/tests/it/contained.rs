//! Keys of single nodes: what a node may change, and the passes by which it takes a flow over.

use std::net::SocketAddr;

use super::common::packet::Tcp;
use super::common::*;
use prism_packets::Hook;
use prism_proto::control::{Answer, FlowKey, FlowState, Ops, Owner, Pass, Request, Status, Term};
use prism_switch::{SenderConfig, TermPhase};

/// A command of `by` with `owner` for its `OWN`.
struct Said {
    by: Member,
    ops: Ops,
    owner: SocketAddr,
    epoch: u64,
    pass: Option<Pass>,
}

impl Said {
    fn new(by: Member, ops: Ops, epoch: u64) -> Self {
        let owner = by.owner;
        Self {
            by,
            ops,
            owner,
            epoch,
            pass: None,
        }
    }

    fn about(self, other: Member) -> Self {
        let owner = other.owner;
        Self { owner, ..self }
    }

    fn with(self, pass: Pass) -> Self {
        let pass = Some(pass);
        Self { pass, ..self }
    }

    fn answer(&self, lab: &Lab, hook: Hook) -> Answer {
        let request = Request {
            key_id: self.by.key_id(),
            time_ns: tai_ns(),
            ..stating(self.ops, CLIENT, self.owner, self.epoch)
        };
        let datagram = request.in_term(Term(TERM));
        let datagram = datagram.encode_with(self.pass, &self.by.key());
        let answer = lab.command_under(CONTROL, hook, &datagram, self.by.key_id(), &self.by.key());
        answer.unwrap().message
    }

    fn ends(self, lab: &Lab, hook: Hook, status: Status) {
        let answer = self.answer(lab, hook);
        let Self { ops, epoch, .. } = self;
        assert_eq!(answer.status, status, "{ops:?} {epoch}");
        if status == Status::Ok && ops.has(Ops::OWN) {
            let now = (answer.epoch, answer.owner);
            assert_eq!(now, (epoch, owned(self.owner)), "{ops:?}");
        }
    }

    /// The command is refused as one for another node's flow, and changes nothing.
    fn ends_foreign(self, lab: &Lab, hook: Hook) {
        let read = || lab.view.flow_of(&flow(CLIENT)).unwrap();
        let now = || read().map(|f| (f.state, f.epoch, f.owner));
        let (before, count) = (now(), lab.counter("control_foreign"));
        let denied = lab.counter("control_denied");
        self.ends(lab, hook, Status::Denied);
        assert_eq!(now(), before);
        assert_eq!(lab.counter("control_foreign"), count + 1);
        assert_eq!(lab.counter("control_denied"), denied);
    }
}

#[test]
fn a_node_changes_its_own_flows_only() {
    in_contained("own", |lab, hook| {
        let e = tai_ns();
        let say = Said::new;
        // Only a frontend makes a flow, and only for itself.
        say(BE, OWN, e).ends_foreign(lab, hook);
        say(FE, OWN, e).about(BE).ends_foreign(lab, hook);
        say(FE, HOLD, e).ends(lab, hook, Status::Ok);
        for ops in [OWN, HOLD, Ops::OWN, Ops::UNBLOCK, Ops::BLOCK, Ops::RELEASE] {
            say(BE, ops, e + 1).ends_foreign(lab, hook);
            if ops.has(Ops::OWN) {
                say(BE, ops, e + 1).about(FE).ends_foreign(lab, hook);
            }
        }
        // The order of epochs is judged first: a late or repeated command has its answer.
        say(BE, OWN, e).ends(lab, hook, Status::Stale);
        say(FE, Ops::UNBLOCK, e + 1).ends(lab, hook, Status::Ok);
        say(FE, Ops::BLOCK, e + 2).ends(lab, hook, Status::Ok);
        say(FE, OWN, e + 3).ends(lab, hook, Status::Ok);
        say(FE, Ops::RELEASE, e + 4).ends(lab, hook, Status::Ok);
        say(BE, Ops::RELEASE, e + 5).ends(lab, hook, Status::Ok);
        // A key that all share changes everything.
        let mut shared = stating(OWN, CLIENT, BACKEND, e + 6);
        let owned_by = |request| lab.in_term(hook, TERM, request).unwrap().message.status;
        assert_eq!(owned_by(shared), Status::Ok);
        shared.owner = owned(BACKEND2);
        shared.epoch += 1;
        assert_eq!(owned_by(shared), Status::Ok);
    });
}

#[test]
fn an_owner_is_the_node_that_signs_or_the_service_through_it() {
    let tls = SocketAddr::new(VIP.ip(), 443);
    let own_port = SocketAddr::new(FRONTEND, 12_345);
    let by_frontend = [
        (VIP, FRONTEND, true),
        (own_port, FRONTEND, true),
        (BACKEND, FRONTEND, false),
        (BACKEND2, FRONTEND, false),
        (tls, FRONTEND, false),
        (VIP, BACKEND.ip(), false),
        (BACKEND, BACKEND.ip(), false),
    ];
    in_contained("named", |lab, hook| {
        for (addr, via, is_applied) in by_frontend {
            for ops in [OWN, HOLD, Ops::OWN] {
                let request = Request {
                    key_id: FE.key_id(),
                    time_ns: tai_ns(),
                    owner: Owner { addr, via },
                    ..stating(ops, CLIENT, VIP, tai_ns())
                };
                let datagram = request.in_term(Term(TERM)).encode(&FE.key());
                let foreign = lab.counter("control_foreign");
                let answer = lab.command_under(CONTROL, hook, &datagram, FE.key_id(), &FE.key());
                let expected = if is_applied { Status::Ok } else { Status::Denied };
                let status = answer.unwrap().message.status;
                assert_eq!(status, expected, "{addr} via {via}");
                // The address of no node is refused before that.
                let is_foreign = !is_applied && addr != tls;
                assert_eq!(lab.counter("control_foreign"), foreign + u64::from(is_foreign));
            }
        }
    });
}

#[test]
fn no_other_node_takes_the_packets_of_an_owner_by_its_address() {
    // A client has a connection at a backend, and none on the same ports to another service. The
    // switch finds the backend's packets by its address and port alone.
    let tls = SocketAddr::new(VIP.ip(), 443);
    in_lab(
        "reverse",
        |config| {
            let mut service = config.services[0].clone();
            service.addr = tls;
            config.services.insert(0, service);
            config.senders.extend([FE.sender(), BE.sender()]);
        },
        |lab| {
            set_term(lab, TERM, TermPhase::Settled, 0);
            let e = tai_ns();
            Said::new(FE, HOLD, e).ends(lab, Hook::Tc, Status::Ok);
            let pass = FE.pass(BE, e + 1);
            Said::new(BE, OWN, e + 1).with(pass).ends(lab, Hook::Tc, Status::Ok);
            for addr in [BACKEND, tls] {
                let flow = FlowKey { client: CLIENT, vip: tls };
                let request = Request {
                    key_id: FE.key_id(),
                    owner: Owner { addr, via: FRONTEND },
                    ..request(OWN, tai_ns(), flow, tai_ns())
                };
                let datagram = request.in_term(Term(TERM)).encode(&FE.key());
                let answer = lab.command_under(CONTROL, Hook::Tc, &datagram, FE.key_id(), &FE.key());
                let expected = if addr == tls { Status::Ok } else { Status::Denied };
                assert_eq!(answer.unwrap().message.status, expected);
                for hook in BOTH {
                    let tcp = Tcp::new(BACKEND, CLIENT);
                    let out = (CLIENT_MAC, VIP, CLIENT);
                    check_sent(&lab.run(hook, &tcp.build()), &tcp, out, "as its service");
                }
            }
        },
    );
}

#[test]
fn a_copy_at_a_standby_names_its_sender_only() {
    in_contained("standby-owner", |lab, hook| {
        set_term(lab, TERM, TermPhase::Standby, 0);
        let e = tai_ns();
        let copy = |addr| {
            let request = Request {
                key_id: FE.key_id(),
                time_ns: tai_ns(),
                owner: Owner { addr, via: FRONTEND },
                ..stating(FACT, CLIENT, VIP, e)
            };
            let datagram = request.in_term(Term(TERM)).encode(&FE.key());
            let answer = lab.command_under(CONTROL, hook, &datagram, FE.key_id(), &FE.key());
            answer.unwrap().message.status
        };
        assert_eq!(copy(BACKEND), Status::Denied);
        assert_eq!(copy(VIP), Status::Ok);
        set_term(lab, TERM, TermPhase::Settled, 0);
    });
}

#[test]
fn a_flow_moves_with_a_pass_of_its_owner() {
    in_contained("pass", |lab, hook| {
        let e = tai_ns();
        let say = Said::new;
        say(FE, HOLD, e).ends(lab, hook, Status::Ok);
        let good = FE.pass(BE, e + 1);
        for bad in [
            FE.pass(BE, e),
            FE.pass(BE, e + 2),
            FE.pass(BE2, e + 1),
            BE.pass(BE, e + 1),
            BE2.pass(BE, e + 1),
            FE.with_secret(3).pass(BE, e + 1),
        ] {
            say(BE, OWN, e + 1).with(bad).ends_foreign(lab, hook);
        }
        say(BE2, OWN, e + 1).with(good).ends_foreign(lab, hook);
        say(BE, OWN, e + 2).with(good).ends_foreign(lab, hook);
        for _ in 0..2 {
            say(BE, OWN, e + 1).with(good).ends(lab, hook, Status::Ok);
        }
        // Between backends, signed under the other secret, and back to the frontend.
        let between = BE.with_secret(2).pass(BE2, e + 2);
        say(BE2, OWN, e + 2).with(between).ends(lab, hook, Status::Ok);
        say(BE, OWN, e + 1).with(good).ends(lab, hook, Status::Stale);
        say(BE, OWN, e + 3).with(good).ends_foreign(lab, hook);
        let back = BE2.pass(FE, e + 3);
        say(FE, OWN, e + 3).with(back).ends(lab, hook, Status::Ok);
        // Nobody takes what is over.
        say(FE, Ops::RELEASE, e + 4).ends(lab, hook, Status::Ok);
        let late = FE.pass(BE, e + 5);
        say(BE, OWN, e + 5).with(late).ends_foreign(lab, hook);
        // A frontend makes a flow of its own word alone, not of a hand-off.
        for pass in [BE.pass(FE, e + 5), Pass::VOID] {
            say(FE, OWN, e + 5).with(pass).ends_foreign(lab, hook);
        }
        say(FE, OWN, e + 5).ends(lab, hook, Status::Ok);
    });
}

#[test]
fn a_node_that_is_handed_its_own_flow_keeps_its_socket() {
    in_contained("own-again", |lab, hook| {
        let e = tai_ns();
        let say = Said::new;
        say(FE, HOLD, e).ends(lab, hook, Status::Ok);
        let moved = FE.pass(BE, e + 1);
        say(BE, OWN, e + 1).with(moved).ends(lab, hook, Status::Ok);
        let other = SocketAddr::new(BACKEND.ip(), BACKEND.port() + 1);
        let by_other = |epoch| Said { owner: other, ..say(BE, OWN, epoch) };
        for pass in [Pass::VOID, FE.pass(BE, e + 2), BE2.pass(BE, e + 2)] {
            by_other(e + 2).with(pass).ends_foreign(lab, hook);
        }
        // It takes its flow back with the pass of a target that has refused.
        say(BE, OWN, e + 2).with(BE2.pass(BE, e + 2)).ends(lab, hook, Status::Ok);
        by_other(e + 3).ends(lab, hook, Status::Ok);
    });
}

#[test]
fn a_pass_that_was_passed_on_names_the_node_between() {
    in_contained("onward", |lab, hook| {
        let e = tai_ns();
        let say = Said::new;
        say(FE, OWN, e).ends(lab, hook, Status::Ok);
        let moved = FE.pass(BE, e + 1);
        say(BE, OWN, e + 1).with(moved).ends(lab, hook, Status::Ok);
        // BE returns it to FE, which passes it on to BE2.
        let (to_fe, on) = (BE.pass(FE, e + 2), passage(BE2, e + 2));
        let onward = |by: Member, pass: Pass| pass.onward(by.key_id(), &by.key(), &on).unwrap();
        say(BE2, OWN, e + 2).with(to_fe).ends_foreign(lab, hook);
        let forged = onward(FE, FE.pass(FE, e + 2));
        say(BE2, OWN, e + 2).with(forged).ends_foreign(lab, hook);
        // A pass for another node is none for the one that passes it on.
        let stolen = onward(BE2, to_fe);
        say(BE2, OWN, e + 2).with(stolen).ends_foreign(lab, hook);
        let good = onward(FE, to_fe);
        assert_eq!(good.onward(FE.key_id(), &FE.key(), &on), None);
        say(BE2, OWN, e + 2).with(good).ends(lab, hook, Status::Ok);
    });
}

#[test]
fn a_young_term_takes_what_a_node_states_of_itself() {
    in_contained("facts", |lab, hook| {
        let e = tai_ns();
        let say = Said::new;
        set_term(lab, TERM, TermPhase::Young, 1);
        say(BE2, FACT, e).about(BE).ends_foreign(lab, hook);
        say(BE, FACT, e).ends(lab, hook, Status::Ok);
        // A flow that another node has announced needs its pass.
        say(BE2, FACT, e + 1).ends_foreign(lab, hook);
        let end = Ops::RELEASE.and(Ops::ANNOUNCE);
        say(BE2, end, e + 1).ends_foreign(lab, hook);
        let good = BE.pass(BE2, e + 1);
        say(BE2, FACT, e + 1).with(good).ends(lab, hook, Status::Ok);
        say(BE2, end, e + 2).ends(lab, hook, Status::Ok);
        // Nobody announces the end of what is not known.
        say(BE, end, e + 3).ends_foreign(lab, hook);
        say(BE, FACT, e + 3).ends(lab, hook, Status::Ok);
        set_term(lab, TERM, TermPhase::Settled, 1);
        let read = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
        assert_eq!((read.state, read.owner), (FlowState::Forward, owned(BACKEND)));
        set_term(lab, TERM, TermPhase::Settled, 1);
    });
}

#[test]
fn a_pass_without_an_owner_has_no_meaning() {
    in_contained("no-owner", |lab, hook| {
        let bad = Request {
            key_id: BE.key_id(),
            time_ns: tai_ns(),
            owner: Owner::NONE,
            ..stating(Ops::BLOCK.and(Ops::PASS), CLIENT, BACKEND, 9)
        };
        let datagram = bad.in_term(Term(TERM)).encode(&BE.key());
        let answer = lab.command_under(CONTROL, hook, &datagram, BE.key_id(), &BE.key());
        assert_eq!(answer.unwrap().message.status, Status::BadRequest);
    });
}

#[test]
fn two_nodes_with_one_number_are_named() {
    in_lab(
        "collision",
        |_| {},
        |lab| {
            let mut config = lab.config.clone();
            let twin = SenderConfig {
                node: vec![BE2.via()],
                ..BE.sender()
            };
            config.senders.extend([BE.sender(), twin]);
            let told = lab.switch.update_tables(&config).unwrap_err().to_string();
            for node in [BE.via(), BE2.via()] {
                assert!(told.contains(&node.to_string()), "{told}");
            }
        },
    );
}

#[test]
fn commands_are_taken_from_interfaces_that_lead_to_nodes() {
    // Test runs come in by the loopback interface.
    for (interfaces, is_taken) in [(vec![], true), (vec![1], true), (vec![2, 3], false)] {
        in_lab(
            "interfaces",
            |config| config.control_interfaces = interfaces.iter().copied().collect(),
            |lab| {
                for hook in BOTH {
                    let dropped = lab.counter("control_interface");
                    let query = request(Ops::QUERY, 0, flow(CLIENT), tai_ns());
                    let answer = lab.raw_command(hook, &query.encode(&key()));
                    assert_eq!(answer.is_some(), is_taken);
                    let dropped = lab.counter("control_interface") - dropped;
                    assert_eq!(dropped > 0, !is_taken);
                    let lease = packet::Tcp::new(SocketAddr::new(FRONTEND, 5555), CONTROL);
                    let verdict = lab.run(hook, &lease.build()).verdict;
                    assert_eq!(verdict != prism_packets::Verdict::Drop, is_taken);
                }
            },
        );
    }
}
