//! Any bytes as an answer: no panic. An answer that a relay would pass on unchanged is one that the
//! parser accepts, and no field of it concerns one connection only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_http::{Limits, Method, PlainAnswer, ResponseFraming, ResponseHead, Version};

fuzz_target!(|data: &[u8]| {
    let parsed = ResponseHead::parse(data, &Limits::DEFAULT);
    let Some(plain) = PlainAnswer::find(data, &Limits::DEFAULT) else {
        return;
    };
    let (head, consumed) = parsed.expect("a plain answer parses").expect("is whole");
    assert_eq!((plain.status, plain.head_bytes), (head.status(), consumed));
    assert!(head.version() == Version::Http11 && head.keep_alive());
    let framing = ResponseFraming::Length(plain.body_bytes);
    assert_eq!(head.framing(&Method::GET), Ok(framing));
    let mut rest = head.clone();
    rest.remove_hop_by_hop();
    let dropped = head.headers().len() - rest.headers().len();
    assert_eq!(dropped, 1, "its length, which the next head would restate");
});
