//! Any bytes as a request that another node has verified, alone and within a preamble: no panic. A
//! value that is accepted has no other encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_proto::relay::Preamble;
use prism_proto::verified::Verified;

fuzz_target!(|input: &[u8]| {
    if let Ok(verified) = Verified::decode(input) {
        assert_eq!(verified.encode(), input);
    }
    if let Ok(Some((preamble, len))) = Preamble::decode(input) {
        let mut encoded = Vec::new();
        preamble.encode(&mut encoded);
        assert_eq!(encoded, input[..len]);
    }
});
