//! Any bytes as a chunked body, cut anywhere: no panic, the same result whole and in pieces, and
//! never more data than allowed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_http::{BodyError, ChunkedDecoder};

const LIMIT: u64 = 1 << 16;

fn decode(data: &[u8], piece: usize) -> Result<(Vec<u8>, usize, bool), BodyError> {
    let mut decoder = ChunkedDecoder::new(LIMIT);
    let (mut out, mut total) = (Vec::new(), 0);
    for mut rest in data.chunks(piece) {
        while !rest.is_empty() && !decoder.is_done() {
            let step = decoder.consume(rest)?;
            assert!(step.consumed > 0 && step.data.end <= step.consumed);
            out.extend_from_slice(&rest[step.data]);
            rest = &rest[step.consumed..];
            total += step.consumed;
        }
    }
    Ok((out, total, decoder.is_done()))
}

fuzz_target!(|input: (u8, &[u8])| {
    let (piece, data) = input;
    let whole = decode(data, data.len().max(1));
    assert_eq!(whole, decode(data, usize::from(piece).max(1)));
    if let Ok((out, total, _)) = whole {
        assert!(out.len() as u64 <= LIMIT && total <= data.len());
    }
});
