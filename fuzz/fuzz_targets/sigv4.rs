//! A signed request verifies. The same request with damage causes no panic, and verifies only if its
//! signed parts are the same for all readers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_http::{Headers, Limits, RequestHead};
use prism_s3::query::Query;
use prism_s3::time::parse_iso_basic;
use prism_s3::{Authenticator, Operation, Principal};
use prism_signer::{Body, Signer};

fuzz_target!(|input: (&str, &str, u16, u8)| {
    let (target, value, at, byte) = input;
    let now = parse_iso_basic("20130524T000000Z").expect("a valid time");
    let authenticator = Authenticator::new([("key", "secret")], "r");
    let is_signed = |head: &RequestHead| {
        let query = Query::parse(head.query());
        let known = query.and_then(|query| authenticator.authenticate(head, &query, now));
        known.is_ok_and(|known| known.principal != Principal::Anonymous)
    };
    let mut headers = Headers::new();
    headers.append("Host", "h").expect("a valid header");
    if headers.append("x-amz-meta-a", value).is_err() {
        return;
    }
    let signer = Signer::new("key", "secret", "r");
    if signer
        .sign("GET", target, &mut headers, Body::Unsigned, now)
        .is_err()
    {
        return;
    }
    let mut bytes = format!("GET {target} HTTP/1.1\r\n").into_bytes();
    headers.write_to(&mut bytes);
    bytes.extend_from_slice(b"\r\n");
    let Ok(Some((head, _))) = RequestHead::parse(&bytes, &Limits::DEFAULT) else {
        return;
    };
    // Absolute form names the host too, but the signer signs paths.
    if head.target() != target || !target.starts_with('/') {
        return;
    }
    assert!(is_signed(&head) || target.contains("ignature"));
    let place = usize::from(at) % bytes.len();
    bytes[place] = byte;
    if let Ok(Some((damaged, _))) = RequestHead::parse(&bytes, &Limits::DEFAULT)
        && is_signed(&damaged)
    {
        assert_eq!(Operation::parse(&damaged), Operation::parse(&head));
    }
});
