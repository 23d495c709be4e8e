//! Any bytes as a request: no panic. A head ends with an empty line, and has no line end but CRLF. A
//! forwarded head reads as the same one.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_http::{Headers, Limits, RequestHead};
use prism_s3::Operation;

fuzz_target!(|data: &[u8]| {
    let Ok(Some((head, consumed))) = RequestHead::parse(data, &Limits::DEFAULT) else {
        return;
    };
    let taken = &data[..consumed];
    assert!(taken.ends_with(b"\r\n\r\n"));
    let ends = taken.iter().filter(|&&b| b == b'\n').count();
    assert_eq!(ends, taken.windows(2).filter(|w| w == b"\r\n").count());
    assert_eq!(ends, taken.iter().filter(|&&b| b == b'\r').count());
    for end in 0..consumed.min(256) {
        let prefix = RequestHead::parse(&data[..end], &Limits::DEFAULT);
        assert_eq!(prefix, Ok(None), "a prefix of a good head is incomplete");
    }
    let mut again = Vec::new();
    head.write_forward(head.framing(), &Headers::new(), &mut again);
    // A target in absolute form without path grows by one byte.
    if again.len() < Limits::DEFAULT.head_bytes && head.headers().get("host").is_some() {
        let (second, all) = RequestHead::parse(&again, &Limits::DEFAULT)
            .expect("what is forwarded is well-formed")
            .expect("and complete");
        assert_eq!(all, again.len());
        assert_eq!(second.method(), head.method());
        assert_eq!((second.path(), second.query()), (head.path(), head.query()));
        assert_eq!(second.framing(), head.framing());
    }
    let _ = Operation::parse(&head);
});
