#![allow(clippy::unwrap_used)]
use std::net::SocketAddr;

use super::*;
use crate::control::{FlowState, Request, RunId};

/// The term of the arbiter, and that of the standby.
const TERM: Term = Term(5);
const FORMER: Term = Term(2);
const SECOND_NS: u64 = 1_000_000_000;

fn owned(port: u16, epoch: u64) -> OwnedFlow {
    OwnedFlow {
        flow: FlowKey {
            client: SocketAddr::from(([192, 0, 2, 9], port)),
            vip: "198.51.100.1:443".parse().unwrap(),
        },
        owner: Owner {
            addr: "10.0.0.3:80".parse().unwrap(),
            via: "10.0.0.3".parse().unwrap(),
        },
        epoch,
        is_blocked: false,
        is_confirmed: true,
        term: TERM,
    }
}

fn registry(flows: u16) -> Registry {
    let mut registry = Registry::default();
    for port in 1..=flows {
        registry.hold(owned(port, 7)).unwrap();
    }
    registry
}

fn answered(sent: &Copy, status: Status) -> CommandOutcome {
    let Command {
        ops,
        epoch,
        flow,
        owner,
    } = sent.command;
    let request = Request {
        key_id: 1,
        request_id: 1,
        time_ns: 1,
        ops,
        epoch,
        flow,
        owner,
        run: RunId::NONE,
    };
    CommandOutcome::Answered(request.answer(status, FlowState::Forward, epoch, owner, 1))
}

/// A copier, its worker's flows, and the time.
#[derive(Default)]
struct Worker {
    copier: Copier,
    registry: Registry,
    now_ns: u64,
}

impl Worker {
    /// A worker whose copier has found the standby.
    fn with_standby(flows: u16) -> Self {
        let mut worker = Self {
            registry: registry(flows),
            ..Self::default()
        };
        assert_eq!(worker.all(TERM), [], "not at once in a new term");
        worker.now_ns += SECOND_NS;
        let probe = worker.all(TERM);
        assert_eq!(probe.len(), 1, "one copy asks");
        worker.end(&probe, FORMER, Status::Ok);
        assert_eq!(worker.lag(), usize::from(flows));
        worker
    }

    /// All copies of this moment.
    fn all(&mut self, term: Term) -> Vec<Copy> {
        let next = || self.copier.poll(&self.registry, term, self.now_ns);
        std::iter::from_fn(next).collect()
    }

    fn end(&mut self, copies: &[Copy], heard: Term, status: Status) {
        for copy in copies {
            let outcome = answered(copy, status);
            self.copier.handle(copy, heard, outcome, self.now_ns);
        }
    }

    fn lag(&self) -> usize {
        self.copier.lag(&self.registry)
    }

    /// Answers all copies of a second.
    fn run(&mut self) -> Vec<Copy> {
        let mut seen = Vec::new();
        for _ in 0..1000 {
            let copies = self.all(TERM);
            assert!(copies.len() <= MAX_UNDER_WAY);
            self.end(&copies, FORMER, Status::Ok);
            seen.extend(copies);
            self.now_ns += SECOND_NS / 1000;
        }
        seen
    }
}

#[test]
fn a_standby_gets_all_flows_then_each_change_and_all_again_later() {
    let mut worker = Worker::with_standby(1000);
    let seen = worker.run();
    assert_eq!((seen.len(), worker.lag()), (1000, 0));
    assert!(worker.run().is_empty());
    // Two changes of a flow are one copy.
    let flow = owned(3, 9).flow;
    for epoch in [8, 9] {
        worker.registry.hold(owned(3, epoch)).unwrap();
        worker.copier.touch(flow);
    }
    assert_eq!(worker.lag(), 1);
    let changed = worker.all(TERM);
    let commands: Vec<Command> = changed.iter().map(|copy| copy.command).collect();
    assert_eq!(commands, [owned(3, 9).announcement()]);
    assert_eq!(worker.lag(), 1, "it is under way");
    worker.end(&changed, FORMER, Status::Ok);
    assert_eq!(worker.lag(), 0);
    worker.now_ns += PASS_NS - 2 * SECOND_NS;
    assert_eq!(worker.run().len(), 1000);
    assert_eq!(worker.lag(), 0);
}

#[test]
fn a_pass_is_slow_and_a_change_does_not_wait_for_it() {
    let mut worker = Worker::with_standby(10_000);
    let copies = worker.all(TERM);
    assert_eq!(copies.len(), 1, "one step");
    worker.end(&copies, FORMER, Status::Ok);
    let next_ns = worker.copier.next_timeout_ns().unwrap();
    assert!(next_ns > worker.now_ns && next_ns < worker.now_ns + SECOND_NS / 1000);
    worker.copier.touch(owned(9_999, 7).flow);
    assert_eq!(worker.all(TERM).len(), 1);
}

#[test]
fn a_flow_that_ended_is_released_and_one_that_moved_is_its_new_owners() {
    let mut worker = Worker::with_standby(3);
    worker.run();
    for port in 1..=3 {
        worker.registry.forget(&owned(port, 7).flow, 7);
    }
    worker.copier.touch(owned(1, 7).flow);
    worker.copier.release(owned(2, 7).flow, 8);
    // The client has a new connection on the same ports.
    worker.copier.release(owned(3, 7).flow, 8);
    worker.registry.hold(owned(3, 20)).unwrap();
    let copies = worker.all(TERM);
    let commands: Vec<Command> = copies.iter().map(|copy| copy.command).collect();
    let release = Copy::of_release(owned(2, 7).flow, 8).command;
    assert_eq!(commands, [release, owned(3, 20).announcement()]);
}

#[test]
fn an_arbiter_is_left_alone_until_its_term_is_over() {
    let mut worker = Worker::with_standby(3);
    let copies = worker.all(TERM);
    worker.end(&copies, TERM, Status::Ok);
    worker.copier.touch(owned(1, 7).flow);
    worker.now_ns += 10 * PASS_NS;
    assert_eq!(worker.all(TERM), []);
    assert_eq!(worker.copier.next_timeout_ns(), None);
    assert_eq!(worker.all(Term(6)), []);
    worker.now_ns += SECOND_NS;
    assert_eq!(worker.all(Term(6)).len(), 1);
    // An arbiter of a term that this worker has not heard of.
    let mut worker = Worker::with_standby(3);
    let copies = worker.all(TERM);
    worker.end(&copies, Term(6), Status::OldTerm);
    assert!(worker.all(TERM).is_empty() && !worker.copier.has_standby());
}

#[test]
fn after_a_silence_all_flows_are_copied_again() {
    let mut worker = Worker::with_standby(3);
    worker.run();
    worker.copier.touch(owned(1, 7).flow);
    for copy in worker.all(TERM) {
        let silent = CommandOutcome::Unanswered;
        worker.copier.handle(&copy, FORMER, silent, worker.now_ns);
    }
    assert_eq!(worker.lag(), 3);
    worker.copier.release(owned(2, 7).flow, 8);
    assert_eq!(worker.all(TERM), []);
    worker.now_ns += SECOND_NS;
    assert_eq!(worker.run().len(), 4, "a question, and all flows");
    assert_eq!(worker.lag(), 0);
}

#[test]
fn refused_flows_and_too_many_changes_wait_for_a_pass() {
    let mut worker = Worker::with_standby(3);
    let copies = worker.all(TERM);
    worker.end(&copies, FORMER, Status::Full);
    worker.run();
    assert_eq!(worker.lag(), 1);
    worker.now_ns += PASS_NS;
    assert_eq!(worker.run().len(), 3);
    assert_eq!(worker.lag(), 0);
    for port in 0..=u16::try_from(MAX_CHANGED).unwrap() {
        worker.copier.touch(owned(port, 7).flow);
    }
    assert!(worker.copier.changed.len() < 2);
    assert!(worker.lag() >= 3);
    assert!(worker.run().len() >= 3);
}

#[test]
fn what_the_switch_has_not_decided_is_not_copied() {
    let mut worker = Worker::with_standby(1);
    let unconfirmed = OwnedFlow {
        is_confirmed: false,
        ..owned(2, 9)
    };
    worker.registry.hold(unconfirmed).unwrap();
    worker.copier.touch(unconfirmed.flow);
    assert_eq!(worker.run().len(), 1);
    worker.registry = Registry::default();
    worker.registry.hold(unconfirmed).unwrap();
    worker.copier = Copier::default();
    worker.run();
    assert!(worker.run().is_empty(), "there is nothing to ask with");
}
