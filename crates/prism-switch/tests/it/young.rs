//! Packets in a young term, in which the table may lack flows.

use std::net::SocketAddr;

use super::common::packet::{ACK, FIN, RST, SYN, Tcp};
use super::common::*;
use prism_packets::{Hook, Verdict};
use prism_proto::control::{FlowState, Ops, Status};
use prism_switch::TermPhase;

const TERM: u32 = 5;
/// Sequence number of the frontend's SYN ACK.
const ISN: u32 = u32::MAX;
const MAC_OF_FRONTEND: [u8; 6] = [2, 0xaa, 10, 0, 0, 1];
const TO_FRONTEND: Out = (MAC_OF_FRONTEND, CLIENT, VIP);

/// Both phases in which nothing is decided, at both hooks.
fn in_young_term(name: &str, test: impl Fn(&Lab, Hook, TermPhase) + Sync) {
    in_lab(
        name,
        |_| {},
        |lab| {
            let mut term = TERM;
            for phase in [TermPhase::Young, TermPhase::Standby] {
                for hook in BOTH {
                    term += 1;
                    set_term(lab, term, TermPhase::Settled, 0);
                    test_prepared(lab, term);
                    set_term(lab, term, phase, 0);
                    test(lab, hook, phase);
                }
            }
        },
    );
}

/// The flow of `CLIENT` has an entry or not, as the test before left it. This one has none.
fn test_prepared(lab: &Lab, term: u32) {
    let Some(known) = lab.view.flow_of(&flow(CLIENT)).unwrap() else {
        return;
    };
    let epoch = known.epoch.max(tai_ns()) + 1;
    let released = lab.in_term(Hook::Tc, term, stating(Ops::RELEASE, CLIENT, VIP, epoch));
    assert_eq!(released.unwrap().message.status, Status::Ok);
}

fn tcp(source: SocketAddr, dest: SocketAddr, flags: u8) -> Tcp {
    let mut tcp = Tcp::new(source, dest);
    tcp.flags = flags;
    tcp
}

fn from_client(flags: u8, ack: u32) -> Tcp {
    let mut tcp = tcp(CLIENT, VIP, flags);
    tcp.ack = ack;
    tcp
}

fn syn_ack() -> Tcp {
    let mut tcp = tcp(VIP, CLIENT, SYN | ACK);
    (tcp.seq, tcp.payload) = (ISN, vec![]);
    tcp
}

fn dropped(lab: &Lab, hook: Hook, tcp: &Tcp, counter: &str) {
    let before = lab.counter(counter);
    let name = format!("{counter} {:#x}", tcp.flags);
    assert_eq!(lab.run(hook, &tcp.build()).verdict, Verdict::Drop, "{name}");
    assert_eq!(lab.counter(counter), before + 1, "{name}");
}

fn passes(lab: &Lab, hook: Hook, tcp: &Tcp, out: Out) {
    check_sent(&lab.run(hook, &tcp.build()), tcp, out, "passes");
}

/// A connection opens: its handshake passes, and then all of its packets.
fn open(lab: &Lab, hook: Hook) {
    passes(lab, hook, &tcp(CLIENT, VIP, SYN), TO_FRONTEND);
    passes(lab, hook, &syn_ack(), (CLIENT_MAC, VIP, CLIENT));
    passes(lab, hook, &from_client(ACK, ISN.wrapping_add(1)), TO_FRONTEND);
}

#[test]
fn of_unknown_flows_only_new_connections_pass() {
    in_young_term("young", |lab, hook, _| {
        let before = lab.view.flow_of(&flow(CLIENT)).unwrap();
        let right = ISN.wrapping_add(1);
        for flags in [ACK, ACK | FIN, RST, RST | ACK, SYN | ACK, 0] {
            dropped(lab, hook, &from_client(flags, right), "drop_young");
        }
        passes(lab, hook, &tcp(CLIENT, VIP, SYN), TO_FRONTEND);
        dropped(lab, hook, &from_client(ACK, right), "drop_young");
        passes(lab, hook, &syn_ack(), (CLIENT_MAC, VIP, CLIENT));
        for (flags, ack) in [(ACK, ISN), (ACK, right + 1), (RST | ACK, right), (0, right)] {
            dropped(lab, hook, &from_client(flags, ack), "drop_young");
        }
        // A repeated SYN forgets nothing.
        passes(lab, hook, &tcp(CLIENT, VIP, SYN), TO_FRONTEND);
        passes(lab, hook, &from_client(ACK, right), TO_FRONTEND);
        passes(lab, hook, &from_client(ACK, right + 1000), TO_FRONTEND);
        passes(lab, hook, &from_client(ACK | FIN, right), TO_FRONTEND);
        let now = lab.view.flow_of(&flow(CLIENT)).unwrap();
        let epoch = |f: Option<prism_switch::FlowRecord>| f.map(|f| f.epoch);
        assert_eq!(epoch(now), epoch(before), "the SYN has raised no tombstone");
    });
}

#[test]
fn a_connection_of_a_young_term_is_none_of_the_next() {
    in_young_term("young-again", |lab, hook, phase| {
        open(lab, hook);
        let (term, _) = lab.view.term().unwrap();
        set_term(lab, term.0 + 1, phase, 1);
        let ack = from_client(ACK, ISN.wrapping_add(1));
        dropped(lab, hook, &ack, "drop_young");
        set_term(lab, term.0 + 1, TermPhase::Settled, 1);
        passes(lab, hook, &ack, TO_FRONTEND);
    });
}

#[test]
fn no_reset_reaches_a_client() {
    in_young_term("young-resets", |lab, hook, _| {
        let counter = "drop_young_reset";
        for flags in [RST, RST | ACK] {
            dropped(lab, hook, &tcp(VIP, CLIENT, flags), counter);
        }
        let (term, phase) = lab.view.term().unwrap();
        for owner in [BACKEND, VIP] {
            set_term(lab, term.0, TermPhase::Settled, 0);
            let own = stating(OWN, CLIENT, owner, tai_ns());
            let own = lab.in_term(hook, term.0, own).unwrap();
            assert_eq!(own.message.status, Status::Ok);
            set_term(lab, term.0, phase, 0);
            for flags in [RST, RST | ACK] {
                dropped(lab, hook, &tcp(owner, CLIENT, flags), counter);
            }
            passes(lab, hook, &tcp(owner, CLIENT, ACK), (CLIENT_MAC, VIP, CLIENT));
        }
        // Not of a client's connection.
        let other = tcp(BACKEND, FRONTEND_AT, RST);
        assert_eq!(lab.run(hook, &other.build()).verdict, Verdict::Pass);
    });
}

const FRONTEND_AT: SocketAddr = SocketAddr::new(FRONTEND, 999);

#[test]
fn known_flows_go_on_and_a_syn_of_one_ends_nothing() {
    in_young_term("young-known", |lab, hook, _| {
        let (term, phase) = lab.view.term().unwrap();
        for owner in [BACKEND, VIP] {
            set_term(lab, term.0, TermPhase::Settled, 0);
            let epoch = tai_ns();
            let own = lab.in_term(hook, term.0, stating(OWN, CLIENT, owner, epoch)).unwrap();
            assert_eq!(own.message.status, Status::Ok);
            // It is a hint of the term before.
            set_term(lab, term.0, phase, 1);
            let via = owned(owner).via;
            let to_owner = (mac_of(via), CLIENT, owner);
            passes(lab, hook, &from_client(ACK, 1), to_owner);
            passes(lab, hook, &tcp(CLIENT, VIP, SYN), to_owner);
            let mut accepts = syn_ack();
            accepts.source = owner;
            match owner == VIP {
                true => passes(lab, hook, &accepts, (CLIENT_MAC, VIP, CLIENT)),
                false => dropped(lab, hook, &accepts, "drop_syn_refused"),
            }
            dropped(lab, hook, &tcp(owner, CLIENT, RST | ACK), "drop_young_reset");
            let now = lab.view.flow_of(&flow(CLIENT)).unwrap().unwrap();
            assert_eq!((now.state, now.epoch), (FlowState::Forward, epoch));
        }
    });
}

#[test]
fn an_announcement_of_a_connection_before_an_open_one_is_outranked() {
    in_lab(
        "young-newer",
        |_| {},
        |lab| {
            for (hook, term) in BOTH.into_iter().zip([6, 8]) {
                set_term(lab, term, TermPhase::Young, 1);
                let before = tai_ns();
                passes(lab, hook, &tcp(CLIENT, VIP, SYN), TO_FRONTEND);
                let announce = |ops: Ops, owner, epoch| {
                    let fact = stating(ops.and(Ops::ANNOUNCE), CLIENT, owner, epoch);
                    let answer = lab.in_term(hook, term, fact).unwrap().message;
                    (answer.status, answer.state, answer.epoch)
                };
                passes(lab, hook, &syn_ack(), (CLIENT_MAC, VIP, CLIENT));
                let right = ISN.wrapping_add(1);
                passes(lab, hook, &from_client(ACK, right), TO_FRONTEND);
                let outranked = (Status::Stale, FlowState::Absent, 0);
                assert_eq!(announce(OWN, BACKEND, before), outranked);
                assert_eq!(announce(Ops::RELEASE, BACKEND, before), outranked);
                let own = announce(OWN, VIP, before);
                assert_eq!(own, (Status::Ok, FlowState::Forward, before));
                let now = tai_ns();
                let own = announce(OWN, BACKEND, now);
                assert_eq!(own, (Status::Ok, FlowState::Forward, now));
                passes(lab, hook, &from_client(ACK, 1), (mac_of(BACKEND.ip()), CLIENT, BACKEND));
                assert_eq!(announce(Ops::RELEASE, BACKEND, now + 1).0, Status::Ok);
            }
        },
    );
}
