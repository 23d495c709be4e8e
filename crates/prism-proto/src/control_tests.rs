#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;

fn key() -> ControlKey {
    ControlKey::new(*b"0123456789abcdef")
}

fn request() -> Request {
    Request {
        key_id: 7,
        request_id: 0x1122_3344_5566_7788,
        time_ns: 1_800_000_000_000_000_000,
        ops: Ops::OWN.and(Ops::UNBLOCK),
        epoch: 42,
        flow: FlowKey {
            client: "192.0.2.9:50000".parse().unwrap(),
            vip: "198.51.100.1:80".parse().unwrap(),
        },
        owner: Owner {
            addr: "10.0.0.3:80".parse().unwrap(),
            via: "10.0.0.3".parse().unwrap(),
        },
        run: RunId::NONE,
    }
}

#[test]
fn both_directions_round_trip() {
    let r = request();
    assert_eq!(Request::decode(&r.encode(&key()), 7, &key()), Ok(r));
    for status in Status::ALL {
        let a = r.answer(status, FlowState::Blocked, 43, r.owner, 99);
        assert_eq!(Answer::decode(&a.encode(&key()), 7, &key()), Ok(a));
    }
}

#[test]
fn a_term_round_trips_in_bytes_that_were_zero() {
    let plain = request().encode(&key());
    assert_eq!(plain[13..16], [0; 3]);
    for term in [Term::NONE, Term(1), Term(0x01_02_03), Term::MAX] {
        let asked = request().in_term(term);
        let bytes = asked.encode(&key());
        assert_eq!(Stamped::<Request>::decode(&bytes, 7, &key()), Ok(asked));
        assert_eq!(Request::decode(&bytes, 7, &key()), Ok(request()));
        let answer = request().answer(Status::Young, FlowState::Absent, 0, Owner::NONE, 9);
        let answer = answer.in_term(term);
        let bytes = answer.encode(&key());
        assert_eq!(Stamped::<Answer>::decode(&bytes, 7, &key()), Ok(answer));
    }
    assert_eq!(Term::MAX.next(), None);
}

#[test]
fn any_changed_bit_or_length_is_refused() {
    let good = request().encode(&key());
    for at in 0..MESSAGE_BYTES * 8 {
        let mut bad = good;
        bad[at / 8] ^= 1 << (at % 8);
        assert!(Request::decode(&bad, 7, &key()).is_err(), "bit {at}");
    }
    for len in 0..MESSAGE_BYTES {
        assert!(Request::decode(&good[..len], 7, &key()).is_err());
    }
    assert!(
        Answer::decode(&good, 7, &key()).is_err(),
        "a request is no answer"
    );
}

#[test]
fn keys_are_not_printed() {
    assert_eq!(format!("{:?}", key()), "ControlKey(..)");
}

#[test]
fn a_pass_takes_the_place_of_the_owners_address() {
    let to = Passage {
        flow: request().flow,
        epoch: 42,
        via: "10.0.0.3".parse().unwrap(),
    };
    let pass = Pass::new(&key(), &to);
    let others = [
        Passage { epoch: 43, ..to },
        Passage {
            via: "10.0.0.4".parse().unwrap(),
            ..to
        },
    ];
    for other in others {
        assert_ne!(pass, Pass::new(&key(), &other));
    }
    let onward = pass.onward(9, &key(), &to).unwrap();
    assert_eq!(onward.onward(9, &key(), &to), None);
    for pass in [pass, onward] {
        let bytes = pass.encode();
        assert_eq!(
            Pass::restore(&mut crate::wire::Reader::new(&bytes)),
            Ok(pass)
        );
    }
    let plain = request().in_term(Term::NONE);
    let [ops, owner] = [6, 72];
    for (addr, is_at_service) in [("10.0.0.3:80", 0), ("198.51.100.1:80", 1)] {
        let mut with = plain;
        with.message.owner.addr = addr.parse().unwrap();
        let bytes = with.encode_with(Some(onward), &key());
        assert_eq!(bytes[ops], plain.message.ops.0 | Ops::PASS.0);
        let place = [&onward.encode()[..], &[is_at_service, 0, 0, 0]].concat();
        assert_eq!(bytes[owner..owner + 16], place);
    }
    let mut query = plain;
    query.message.ops = Ops::BLOCK;
    assert_eq!(query.encode_with(Some(pass), &key()), query.encode(&key()));
}
