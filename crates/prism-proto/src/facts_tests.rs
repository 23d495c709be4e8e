#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;
use crate::entries::MAX_ENTRIES_BYTES;

/// Facts of every kind that a form can say.
pub(crate) fn every_form(form: Form) -> Vec<Facts> {
    let callers = [
        Caller::AccessKey("AKIAEXAMPLE".into()),
        Caller::AccessKey("k".repeat(255)),
        Caller::Anonymous,
    ];
    let seed = Seed {
        signature: [7; 32],
        time_s: u64::MAX,
    };
    let mut bodies = vec![Body::Unsaid, Body::Sha256([5; 32])];
    for trailer in [false, true] {
        bodies.extend([None, Some(seed)].map(|seed| Body::Chunks { trailer, seed }));
    }
    let client = ClientFacts {
        address: "192.0.2.7:4711".parse().unwrap(),
        service: "[2001:db8::1]:443".parse().unwrap(),
        is_tls: true,
    };
    let mut all = Vec::new();
    for caller in &callers {
        for body in &bodies {
            for trace in [None, TraceId::new([3; 16])] {
                let first = Facts {
                    trace,
                    caller: caller.clone(),
                    body: body.clone(),
                    ..Facts::of_anonymous(0x0123_4567_89ab_cdef)
                };
                all.push(first.clone());
                for progress in [Progress::MovedOn, Progress::AnswerWaits] {
                    if form == Form::Entries || *body == Body::Unsaid {
                        all.push(Facts {
                            progress,
                            ..first.clone()
                        });
                    }
                }
                if form == Form::Entries {
                    all.push(Facts {
                        upstream: Some("u".repeat(255)),
                        client: Some(client),
                        lineage: Some(LineageFacts {
                            count: u64::MAX,
                            id: 1,
                        }),
                        retries: 3,
                        hides_missing: true,
                        redirect: Some(RedirectFacts {
                            steps: 5,
                            fields: b"A: b\r\n".to_vec(),
                        }),
                        limits: vec![u64::MAX, 7],
                        ..first
                    });
                }
            }
        }
    }
    all
}

#[test]
fn every_form_round_trips_and_is_whole_or_refused() {
    for form in [Form::Entries, Form::Former] {
        let all = every_form(form);
        for facts in &all {
            let bytes = facts.encode(form);
            assert!(bytes.len() <= MAX_ENTRIES_BYTES);
            assert_eq!(Facts::decode(&bytes).as_ref(), Ok(facts));
            for len in 0..bytes.len() {
                assert!(Facts::decode(&bytes[..len]).is_err(), "{facts:?} {len}");
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(Facts::decode(&longer), Err(DecodeError::Trailing(1)));
            let same = all.iter().filter(|other| other.encode(form) == bytes);
            assert_eq!(same.count(), 1, "{facts:?}");
        }
    }
}

/// A list of these entries.
fn list(entries: &[(u8, &[u8])]) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_sized(&mut out, |out| {
        for (kind, value) in entries {
            put_entry(out, *kind, |out| out.put(value));
        }
    });
    out
}

#[test]
fn a_later_release_may_add_entries_that_are_skipped_and_no_others() {
    let (request, caller) = ((1, &[0; 8][..]), (3, &b"key"[..]));
    let facts = Facts::decode(&list(&[request, caller])).unwrap();
    let skipped = list(&[request, caller, (133, b"x"), (255, b"")]);
    assert_eq!(Facts::decode(&skipped), Ok(facts));
    for refused in [
        &[request, caller, (9, b"x")][..],
        &[request, caller, (127, b"")],
        &[request, caller, (128, b"x")],
        &[request, caller, (129, b"")],
        &[request, caller, (130, b"x")],
        &[request, caller, (131, b"")],
        &[request, caller, (131, &[0; MAX_FIELDS_BYTES + 2])],
        &[request, caller, (132, &[0; 7])],
        &[request, caller, (132, &[0; 8 * MAX_LIMITS + 8])],
        // Twice, and out of order.
        &[request, request, caller],
        &[caller, request],
        // A body of two kinds.
        &[request, caller, (4, &[0; 32]), (5, &[0])],
        &[request],
        &[caller],
        &[],
    ] {
        assert!(Facts::decode(&list(refused)).is_err(), "{refused:?}");
    }
    let long = vec![0; MAX_ENTRIES_BYTES];
    let long = list(&[request, caller, (129, &long)]);
    assert_eq!(
        Facts::decode(&long),
        Err(DecodeError::TooLong("length of the entries"))
    );
}

#[test]
fn the_longest_facts_fit_into_a_list_and_into_a_context() {
    let longest = every_form(Form::Entries).into_iter().map(|facts| Facts {
        redirect: Some(RedirectFacts {
            steps: u8::MAX,
            fields: vec![b'x'; MAX_FIELDS_BYTES],
        }),
        ..facts
    });
    for facts in longest {
        let bytes = facts.encode(Form::Entries);
        assert!(bytes.len() <= crate::node::MAX_CONTEXT_BYTES);
        assert_eq!(Facts::decode(&bytes), Ok(facts));
    }
}

#[test]
fn nothing_is_not_taken_for_an_anonymous_caller() {
    assert!(Facts::decode(&[]).is_err());
    assert!(Facts::decode(&[0]).is_err());
    let with = |version, rest: &[u8]| {
        let bytes = [&[version][..], &[0; 8], &[NOT_TRACED], rest].concat();
        Facts::decode(&bytes)
    };
    assert!(with(FORMER_VERSION, &[CALLER_ANONYMOUS, BODY_UNSAID]).is_ok());
    assert!(with(FORMER_VERSION, &[0, BODY_UNSAID]).is_err());
    assert!(with(FORMER_VERSION, &[CALLER_ACCESS_KEY, 0, BODY_UNSAID]).is_err());
    assert!(with(VERSION + 1, &[CALLER_ANONYMOUS, BODY_UNSAID]).is_err());
}

#[test]
fn a_trace_of_zeros_is_refused() {
    let with = |trace: [u8; 16]| {
        let rest = [CALLER_ANONYMOUS, BODY_UNSAID];
        let former = [&[FORMER_VERSION][..], &[0; 8], &[TRACED], &trace, &rest].concat();
        let entries = list(&[(1, &[0; 8]), (2, &trace), (3, b"")]);
        [former, entries].map(|bytes| Facts::decode(&bytes).map(drop))
    };
    assert_eq!(with([1; 16]), [Ok(()), Ok(())]);
    let refused = Err(DecodeError::Invalid("identifier of the trace"));
    assert_eq!(with([0; 16]), [refused; 2]);
}

#[test]
fn random_changes_never_panic_and_mean_one_thing() {
    let mut random = fastrand::Rng::with_seed(1);
    for form in [Form::Entries, Form::Former] {
        let forms = every_form(form);
        for _ in 0..100_000 {
            let mut bad = forms[random.usize(..forms.len())].encode(form);
            for _ in 0..random.usize(1..4) {
                let at = random.usize(..bad.len());
                bad[at] = random.u8(..);
            }
            if let Ok(facts) = Facts::decode(&bad) {
                let again = Facts::decode(&facts.encode(Form::Entries));
                assert_eq!(again, Ok(facts));
            }
        }
    }
}
