#![allow(clippy::unwrap_used)]
use super::*;

fn owned(port: u16, epoch: u64) -> OwnedFlow {
    OwnedFlow {
        flow: FlowKey {
            client: SocketAddr::from(([192, 0, 2, 9], port)),
            vip: "198.51.100.1:443".parse().unwrap(),
        },
        owner: Owner {
            addr: "[2001:db8::3]:80".parse().unwrap(),
            via: "10.0.0.3".parse().unwrap(),
        },
        epoch,
        is_blocked: port.is_multiple_of(2),
        is_confirmed: true,
        term: Term(3),
    }
}

#[test]
fn the_greatest_epoch_stays_and_is_not_forgotten_for_an_older_one() {
    let mut registry = Registry::default();
    let flow = owned(1, 0).flow;
    for epoch in [7, 9, 8] {
        registry.hold(owned(1, epoch)).unwrap();
    }
    registry.forget(&flow, 8);
    assert_eq!(registry.get(&flow), Some(owned(1, 9)));
    registry.confirm(&flow, 7, Term(2));
    assert_eq!(registry.get(&flow).unwrap().term, Term(3));
    registry.confirm(&flow, 7, Term(4));
    assert_eq!(registry.get(&flow).unwrap().term, Term(4));
    registry.forget(&flow, 9);
    assert!(registry.is_empty());
}

#[test]
fn a_walk_sees_all_that_stay_while_others_come_and_go() {
    let mut registry = Registry::default();
    for port in (10..1000).step_by(10) {
        registry.hold(owned(port, 1)).unwrap();
    }
    let (mut after, mut seen) = (None, Vec::new());
    while let Some((position, found)) = registry.next(after) {
        let port = found.flow.client.port();
        assert_eq!(found, owned(port, 1));
        seen.push(port);
        after = Some(position);
        registry.forget(&found.flow, 1);
        registry.hold(owned(port - 1, 1)).unwrap();
    }
    assert_eq!(seen, (10..1000).step_by(10).collect::<Vec<_>>());
}

#[test]
fn only_a_confirmation_of_this_owner_is_held() {
    use crate::control::{Request, RunId};
    let mut registry = Registry::default();
    let OwnedFlow { flow, owner, .. } = owned(1, 5);
    let request = |ops| Request {
        key_id: 1,
        request_id: 1,
        time_ns: 1,
        ops,
        epoch: 5,
        flow,
        owner,
        run: RunId::NONE,
    };
    let own = Ops::OWN.and(Ops::UNBLOCK);
    let other = owned(1, 5).owner.via;
    let other = Owner {
        addr: "10.9.9.9:1".parse().unwrap(),
        via: other,
    };
    for (ops, status, state, at) in [
        (own, Status::Stale, FlowState::Forward, owner),
        (own, Status::Ok, FlowState::Forward, other),
        (own, Status::Ok, FlowState::Absent, owner),
        (Ops::QUERY, Status::Ok, FlowState::Forward, owner),
    ] {
        let answer = request(ops).answer(status, state, 5, at, 1);
        assert_eq!(registry.note(&answer, Term(3), owner), Ok(false));
    }
    assert!(registry.is_empty());
    let answer = request(own).answer(Status::Ok, FlowState::Blocked, 5, owner, 1);
    assert_eq!(registry.note(&answer, Term(3), owner), Ok(true));
    assert!(registry.get(&flow).unwrap().is_blocked);
}

#[test]
fn a_full_registry_takes_no_more_and_keeps_what_it_has() {
    let mut registry = Registry::default();
    let all = |n: usize| {
        let [_, a, b, c] = u32::try_from(n).unwrap().to_be_bytes();
        let mut owned = owned(1, 1);
        owned.flow.client.set_ip([10, a, b, c].into());
        owned
    };
    for n in 0..MAX_FLOWS {
        registry.hold(all(n)).unwrap();
    }
    assert_eq!(registry.hold(all(MAX_FLOWS)), Err(Full));
    let again = OwnedFlow { epoch: 2, ..all(7) };
    assert_eq!(registry.hold(again), Ok(()));
    assert_eq!(registry.len(), MAX_FLOWS);
}
