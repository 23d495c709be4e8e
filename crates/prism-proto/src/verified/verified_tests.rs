#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;

pub(crate) fn every_form() -> Vec<Verified> {
    let callers = [
        Caller::AccessKey("AKIAEXAMPLE".into()),
        Caller::AccessKey("k".repeat(255)),
        Caller::Anonymous,
    ];
    let seed = Seed {
        signature: [7; 32],
        time_s: u64::MAX,
    };
    let mut bodies = vec![
        Body::Unsaid,
        Body::Spent,
        Body::MovedOn,
        Body::Sha256([5; 32]),
    ];
    for trailer in [false, true] {
        bodies.extend([None, Some(seed)].map(|seed| Body::Chunks { trailer, seed }));
    }
    let all = callers.iter().flat_map(|caller| {
        bodies.iter().flat_map(|body| {
            [None, TraceId::new([3; 16])].map(|trace| Verified {
                request_id: 0x0123_4567_89ab_cdef,
                trace,
                caller: caller.clone(),
                body: body.clone(),
            })
        })
    });
    all.collect()
}

#[test]
fn every_form_round_trips_and_is_whole_or_refused() {
    let forms = every_form();
    for verified in &forms {
        let bytes = verified.encode();
        assert_eq!(Verified::decode(&bytes).as_ref(), Ok(verified));
        for len in 0..bytes.len() {
            assert!(
                Verified::decode(&bytes[..len]).is_err(),
                "{verified:?} {len}"
            );
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Verified::decode(&longer), Err(DecodeError::Trailing(1)));
        let same = forms.iter().filter(|other| other.encode() == bytes);
        assert_eq!(same.count(), 1, "{verified:?}");
    }
}

#[test]
fn nothing_is_not_taken_for_an_anonymous_caller() {
    assert!(Verified::decode(&[]).is_err());
    assert!(Verified::decode(&[0]).is_err());
    let with = |version, rest: &[u8]| {
        let bytes = [&[version][..], &[0; 8], &[NOT_TRACED], rest].concat();
        Verified::decode(&bytes)
    };
    assert!(with(VERSION, &[CALLER_ANONYMOUS, BODY_UNSAID]).is_ok());
    assert!(with(VERSION, &[0, BODY_UNSAID]).is_err());
    assert!(with(VERSION, &[CALLER_ACCESS_KEY, 0, BODY_UNSAID]).is_err());
    assert!(with(VERSION + 1, &[CALLER_ANONYMOUS, BODY_UNSAID]).is_err());
}

#[test]
fn a_trace_of_zeros_is_refused() {
    let with = |trace: [u8; 16]| {
        let rest = [CALLER_ANONYMOUS, BODY_UNSAID];
        let bytes = [&[VERSION][..], &[0; 8], &[TRACED], &trace, &rest].concat();
        Verified::decode(&bytes)
    };
    assert!(with([1; 16]).is_ok());
    let refused = DecodeError::Invalid("identifier of the trace");
    assert_eq!(with([0; 16]), Err(refused));
}

#[test]
fn random_changes_never_panic_and_have_one_encoding() {
    let mut random = fastrand::Rng::with_seed(1);
    let forms = every_form();
    for _ in 0..100_000 {
        let mut bad = forms[random.usize(..forms.len())].encode();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bad.len());
            bad[at] = random.u8(..);
        }
        if let Ok(verified) = Verified::decode(&bad) {
            assert_eq!(verified.encode(), bad);
        }
    }
}
