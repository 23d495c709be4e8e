//! A SYN of a flow that has an owner: the client's next connection, or a forgery. The answer of the
//! owner's host decides which.

use std::net::SocketAddr;

use super::common::packet::{ACK, FIN, RST, SYN, Tcp};
use super::common::*;
use prism_packets::{Hook, Run, Verdict};
use prism_proto::control::{FlowState, Ops, Status};

const FRONTENDS_WAY: ([u8; 6], SocketAddr, SocketAddr) = (MAC_OF_FRONTEND, CLIENT, VIP);
const MAC_OF_FRONTEND: [u8; 6] = [2, 0xaa, 10, 0, 0, 1];

fn syn() -> Tcp {
    let mut tcp = Tcp::new(CLIENT, VIP);
    tcp.flags = SYN;
    tcp
}

/// A host without a socket answers the SYN.
fn refusal(host: SocketAddr) -> Tcp {
    let mut tcp = Tcp::new(host, CLIENT);
    (tcp.flags, tcp.seq, tcp.ack) = (RST | ACK, 0, syn().seq + 1);
    tcp.payload.clear();
    tcp
}

fn send(lab: &Lab, hook: Hook, tcp: &Tcp) -> Run {
    lab.run(hook, &tcp.build())
}

fn state(lab: &Lab) -> (FlowState, u64) {
    let f = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
    (f.state, f.epoch)
}

fn to_client(lab: &Lab, hook: Hook, tcp: &Tcp) {
    check_sent(
        &send(lab, hook, tcp),
        tcp,
        (CLIENT_MAC, VIP, CLIENT),
        "to client",
    );
}

#[test]
fn a_syn_of_a_live_flow_goes_to_its_owner_and_changes_nothing() {
    in_lab(
        "syn",
        |_| {},
        |lab| {
            for hook in BOTH {
                for (owner, host) in [(BACKEND, BACKEND.ip()), (VIP, FRONTEND)] {
                    set(lab, Flow::OwnedBy(owner));
                    let before = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
                    let challenged = lab.counter("flow_syn_challenged");
                    check_sent(
                        &send(lab, hook, &syn()),
                        &syn(),
                        (mac_of(host), CLIENT, owner),
                        "SYN",
                    );
                    assert_eq!(lab.counter("flow_syn_challenged"), challenged + 1);
                    // The owner's kernel challenges the SYN. Its own resets are no answer.
                    to_client(lab, hook, &Tcp::new(owner, CLIENT));
                    let mut reset = refusal(owner);
                    reset.seq = 0x0102_0309;
                    to_client(lab, hook, &reset);
                    let after = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
                    assert_eq!((after.state, after.epoch), (before.state, before.epoch));
                    assert_eq!(after.to_owner.packets, before.to_owner.packets);
                }
            }
        },
    );
}

#[test]
fn an_owner_without_the_socket_refuses_a_syn_and_the_next_reaches_a_frontend() {
    in_lab(
        "syn-refused",
        |_| {},
        |lab| {
            for hook in BOTH {
                for owner in [BACKEND, BACKEND2, VIP] {
                    set(lab, Flow::OwnedBy(owner));
                    let old_epoch = state(lab).1;
                    let (purged, dropped) = (
                        lab.counter("flow_syn_purged"),
                        lab.counter("drop_syn_refused"),
                    );
                    send(lab, hook, &syn());
                    let before = lab.clock();
                    let run = send(lab, hook, &refusal(owner));
                    assert_eq!(run.verdict, Verdict::Drop, "the client must not see it");
                    assert_eq!(lab.counter("flow_syn_purged"), purged + 1);
                    assert_eq!(lab.counter("drop_syn_refused"), dropped + 1);
                    let (now, epoch) = state(lab);
                    assert_eq!(now, FlowState::Absent);
                    assert!(epoch >= before && epoch >= old_epoch);
                    let late = lab.own(CLIENT, owner, before - 1);
                    assert_eq!(
                        (late.status, late.state),
                        (Status::Stale, FlowState::Absent)
                    );
                    check_sent(&send(lab, hook, &syn()), &syn(), FRONTENDS_WAY, "again");
                    let again = state(lab).1;
                    assert_eq!(lab.own(CLIENT, owner, again + 1).status, Status::Ok);
                }
            }
        },
    );
}

#[test]
fn a_refusal_ends_only_the_flow_that_its_syn_was_passed_to() {
    in_lab(
        "syn-matched",
        |_| {},
        |lab| {
            for hook in BOTH {
                // There was no SYN.
                set(lab, Flow::OwnedBy(BACKEND));
                to_client(lab, hook, &refusal(BACKEND));
                // Hosts other than the owner refuse it.
                send(lab, hook, &syn());
                for other in [BACKEND2, VIP] {
                    assert_eq!(send(lab, hook, &refusal(other)).verdict, Verdict::Drop);
                }
                // The flow has moved away and back since.
                let epoch = state(lab).1;
                lab.own(CLIENT, BACKEND2, epoch + 1);
                lab.own(CLIENT, BACKEND, epoch + 2);
                to_client(lab, hook, &refusal(BACKEND));
                assert_eq!(state(lab), (FlowState::Forward, epoch + 2));
                // The flow is moving.
                send(lab, hook, &syn());
                lab.plain(Ops::BLOCK, CLIENT, epoch + 3);
                for packet in [refusal(BACKEND), syn()] {
                    assert_eq!(send(lab, hook, &packet).verdict, Verdict::Drop);
                }
                assert_eq!(state(lab), (FlowState::Blocked, epoch + 3));
                lab.plain(Ops::UNBLOCK, CLIENT, epoch + 4);
                to_client(lab, hook, &refusal(BACKEND));
                assert_eq!(state(lab), (FlowState::Forward, epoch + 4));
            }
        },
    );
}

#[test]
fn a_frontend_that_accepts_the_syn_of_a_flow_it_had_has_a_new_connection() {
    in_lab(
        "syn-accepted",
        |_| {},
        |lab| {
            for hook in BOTH {
                let mut accepts = Tcp::new(VIP, CLIENT);
                (accepts.flags, accepts.payload) = (SYN | ACK, vec![]);
                set(lab, Flow::OwnedBy(VIP));
                to_client(lab, hook, &accepts);
                assert_eq!(state(lab).0, FlowState::Forward, "of no SYN");
                let before = lab.clock();
                send(lab, hook, &syn());
                to_client(lab, hook, &accepts);
                let (now, epoch) = state(lab);
                assert_eq!(now, FlowState::Absent);
                assert!(epoch >= before, "its predecessor's commands are stale");
                // A listener at a backend is not the service.
                set(lab, Flow::OwnedBy(BACKEND));
                send(lab, hook, &syn());
                accepts.source = BACKEND;
                assert_eq!(send(lab, hook, &accepts).verdict, Verdict::Drop);
                assert_eq!(state(lab).0, FlowState::Absent);
            }
        },
    );
}

#[test]
fn a_syn_ends_a_flow_at_once_when_both_ends_have_closed() {
    in_lab(
        "syn-closed",
        |_| {},
        |lab| {
            for hook in BOTH {
                for (acknowledges, is_over) in [(false, false), (true, true)] {
                    set(lab, Flow::None);
                    set(lab, Flow::OwnedBy(BACKEND));
                    let mut owner_fin = Tcp::new(BACKEND, CLIENT);
                    owner_fin.flags = FIN | ACK;
                    let end = owner_fin.seq + owner_fin.payload.len() as u32 + 1;
                    to_client(lab, hook, &owner_fin);
                    let mut client_fin = Tcp::new(CLIENT, VIP);
                    client_fin.flags = FIN | ACK;
                    client_fin.ack = if acknowledges { end } else { end - 1 };
                    send(lab, hook, &client_fin);
                    let way = match is_over {
                        true => FRONTENDS_WAY,
                        false => (mac_of(BACKEND.ip()), CLIENT, BACKEND),
                    };
                    check_sent(&send(lab, hook, &syn()), &syn(), way, "SYN");
                    assert_eq!(state(lab).0 == FlowState::Absent, is_over);
                }
            }
        },
    );
}
