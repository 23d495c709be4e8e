//! A standby takes copies of flows at its own address, and keeps those that are copied again.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::common::*;
use prism_packets::Hook;
use prism_proto::control::{FlowState, Ops, Status, Term};
use prism_switch::{SwitchConfig, TermPhase};

/// The own address of a host of a pair.
const OWN_ADDRESS: SocketAddr = SocketAddr::new(host([10, 9, 9, 8]), CONTROL.port());
const BLOCKED: Ops = Ops::OWN.and(Ops::BLOCK).and(Ops::ANNOUNCE);
const ENDED: Ops = Ops::RELEASE.and(Ops::ANNOUNCE);

fn of_pair(config: &mut SwitchConfig) {
    config.copies = vec![OWN_ADDRESS.ip()];
    config.copied = Duration::from_millis(600);
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new(CLIENT.ip(), port)
}

/// Copies a state under the term of the switch that decides.
fn copy(lab: &Lab, hook: Hook, ops: Ops, port: u16, epoch: u64) -> Option<Status> {
    let mut copy = stating(ops, client(port), BACKEND, epoch);
    copy.time_ns = tai_ns();
    let datagram = copy.in_term(Term(6)).encode(&key());
    let answer = lab.command_at(OWN_ADDRESS, hook, &datagram)?;
    assert_eq!(answer.term, Term(5), "the standby's own");
    Some(answer.message.status)
}

fn state(lab: &Lab, port: u16) -> FlowState {
    let known = lab.view.flow_of(&flow(client(port))).unwrap();
    known.map_or(FlowState::Absent, |known| known.state)
}

#[test]
fn a_standby_takes_copies_at_its_own_address_and_an_arbiter_compares_them() {
    in_lab("copies", of_pair, |lab| {
        for hook in [Hook::Tc, Hook::Xdp] {
            let epoch = lab.view.flow_of(&flow(client(1))).unwrap();
            let epoch = epoch.map_or(0, |known| known.epoch);
            set_term(lab, 5, TermPhase::Standby, 1);
            assert_eq!(copy(lab, hook, FACT, 1, epoch + 7), Some(Status::Ok));
            assert_eq!(copy(lab, hook, BLOCKED, 1, epoch + 6), Some(Status::Stale), "outdated");
            assert_eq!(copy(lab, hook, BLOCKED, 1, epoch + 8), Some(Status::Ok));
            assert_eq!(state(lab, 1), FlowState::Blocked);
            assert_eq!(copy(lab, hook, OWN, 1, epoch + 9), None, "it decides nothing");
            assert_eq!(copy(lab, hook, ENDED, 1, epoch + 9), Some(Status::Ok));
            assert_eq!(copy(lab, hook, FACT, 1, epoch + 8), Some(Status::Stale), "a late one");
            assert_eq!(state(lab, 1), FlowState::Absent);
            set_term(lab, 5, TermPhase::Settled, 1);
            assert_eq!(copy(lab, hook, FACT, 1, epoch + 20), None, "of a later term");
            let fact = stating(FACT, client(1), BACKEND, epoch + 20);
            let compared = lab.in_term(hook, 5, fact).unwrap().message.status;
            assert_eq!(compared, Status::OldTerm);
        }
    });
}

#[test]
fn a_standby_forgets_what_is_not_copied_again() {
    in_lab("copied", of_pair, |lab| {
        set_term(lab, 5, TermPhase::Standby, 1);
        let mut agent = lab.agent();
        for port in [1, 2] {
            assert_eq!(copy(lab, Hook::Tc, FACT, port, 7), Some(Status::Ok));
        }
        assert_eq!(copy(lab, Hook::Tc, BLOCKED, 3, 7), Some(Status::Ok));
        let (begun, mut expired) = (Instant::now(), 0);
        while begun.elapsed() < Duration::from_millis(900) {
            assert_eq!(copy(lab, Hook::Tc, FACT, 1, 7), Some(Status::Ok));
            let aged = agent.step(Instant::now()).unwrap();
            assert_eq!(aged.reset, 0, "a standby resets no client");
            expired += aged.expired;
            pause(20);
        }
        assert_eq!((expired, state(lab, 1)), (2, FlowState::Forward));
        // A young term ends nothing.
        set_term(lab, 5, TermPhase::Young, 1);
        pause(700);
        assert_eq!(agent.step(Instant::now()).unwrap().expired, 0);
    });
}
