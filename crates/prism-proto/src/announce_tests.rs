#![allow(clippy::unwrap_used)]
use std::net::SocketAddr;

use super::*;
use crate::control::{Answer, Owner, Request, RunId};

const TERM: Term = Term(5);

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
        term: Term(4),
    }
}

fn registry(flows: u16) -> Registry {
    let mut registry = Registry::default();
    for port in 1..=flows {
        registry.hold(owned(port, 7)).unwrap();
    }
    registry
}

fn answer(sent: &OwnedFlow, status: Status, owner: Owner) -> CommandOutcome {
    let command = sent.announcement();
    let request = Request {
        key_id: 1,
        request_id: 1,
        time_ns: 1,
        ops: command.ops,
        epoch: command.epoch,
        flow: command.flow,
        owner: command.owner,
        run: RunId::NONE,
    };
    let state = if owner == Owner::NONE {
        FlowState::Absent
    } else {
        FlowState::Forward
    };
    let answer: Answer = request.answer(status, state, sent.epoch, owner, 1);
    CommandOutcome::Answered(answer)
}

#[test]
fn all_flows_are_announced_and_few_at_a_time_and_then_it_is_said_once() {
    let mut registry = registry(1000);
    let mut announcer = Announcer::default();
    assert!(announcer.begin(TERM) && !announcer.begin(TERM));
    let mut seen = Vec::new();
    loop {
        let batch: Vec<_> = std::iter::from_fn(|| announcer.poll(&registry)).collect();
        assert!(batch.len() <= MAX_UNDER_WAY);
        if batch.is_empty() {
            break;
        }
        assert_eq!(announcer.poll_done(), None);
        for sent in batch {
            seen.push(sent.flow.client.port());
            let outcome = answer(&sent, Status::Ok, sent.owner);
            let announced = announcer.handle(TERM, &sent, outcome, &mut registry);
            assert_eq!(announced, Announced::Known);
            assert_eq!(registry.get(&sent.flow).unwrap().term, TERM);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (1..=1000).collect::<Vec<_>>());
    assert_eq!(
        (announcer.poll_done(), announcer.poll_done()),
        (Some(TERM), None)
    );
    announcer.on_new_lease();
    assert_eq!(announcer.poll_done(), Some(TERM));
}

#[test]
fn an_unanswered_flow_is_announced_again_as_it_is_by_then() {
    let mut registry = registry(1);
    let mut announcer = Announcer::default();
    announcer.begin(TERM);
    let sent = announcer.poll(&registry).unwrap();
    assert_eq!(announcer.poll(&registry), None);
    registry.hold(owned(1, 9)).unwrap();
    let unanswered = CommandOutcome::Unanswered;
    announcer.handle(TERM, &sent, unanswered, &mut registry);
    assert_eq!(announcer.poll_done(), None);
    assert_eq!(announcer.poll(&registry), Some(owned(1, 9)));
    registry.forget(&sent.flow, 9);
    announcer.handle(TERM, &owned(1, 9), unanswered, &mut registry);
    assert_eq!(
        (announcer.poll(&registry), announcer.poll_done()),
        (None, Some(TERM))
    );
}

#[test]
fn a_flow_is_lost_to_another_owner_only_at_its_present_epoch() {
    let other = Owner {
        addr: "10.0.0.9:80".parse().unwrap(),
        ..owned(1, 7).owner
    };
    for (epoch, owner, expected) in [
        (7, other, Announced::Lost),
        (7, Owner::NONE, Announced::Outranked { above: 7 }),
        (7, owned(1, 7).owner, Announced::Void),
        (9, other, Announced::Void),
    ] {
        let mut registry = registry(1);
        let mut announcer = Announcer::default();
        announcer.begin(TERM);
        let sent = announcer.poll(&registry).unwrap();
        registry.hold(owned(1, epoch)).unwrap();
        let outcome = answer(&sent, Status::Stale, owner);
        assert_eq!(
            announcer.handle(TERM, &sent, outcome, &mut registry),
            expected
        );
    }
}

#[test]
fn a_newer_term_begins_all_over_and_makes_earlier_answers_void() {
    let mut registry = registry(2);
    let mut announcer = Announcer::default();
    announcer.begin(TERM);
    let sent = announcer.poll(&registry).unwrap();
    assert!(announcer.begin(Term(TERM.0 + 1)));
    let outcome = answer(&sent, Status::Ok, sent.owner);
    assert_eq!(
        announcer.handle(TERM, &sent, outcome, &mut registry),
        Announced::Void
    );
    assert_eq!(registry.get(&sent.flow).unwrap().term, Term(4));
    assert_eq!(std::iter::from_fn(|| announcer.poll(&registry)).count(), 2);
    announcer.settle(TERM);
    assert!(announcer.is_young());
    announcer.settle(Term(TERM.0 + 1));
    assert!(!announcer.is_young());
}

#[test]
fn too_many_changes_are_a_new_walk() {
    let registry = registry(3);
    let mut announcer = Announcer::default();
    announcer.begin(TERM);
    for _ in 0..=MAX_AGAIN {
        announcer.touch(owned(1, 7).flow);
    }
    assert_eq!(std::iter::from_fn(|| announcer.poll(&registry)).count(), 3);
}
