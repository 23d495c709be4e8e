//! Any bytes as what travels with a request, alone and within a preamble: no panic. A value that is
//! accepted is read again from its own encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_proto::facts::{Facts, Form};
use prism_proto::relay::Preamble;

fuzz_target!(|input: &[u8]| {
    if let Ok(facts) = Facts::decode(input) {
        let again = Facts::decode(&facts.encode(Form::Entries));
        assert_eq!(again, Ok(facts));
    }
    if let Ok(Some((preamble, _))) = Preamble::decode(input) {
        let mut encoded = Vec::new();
        preamble.encode(Form::Entries, &mut encoded);
        let len = encoded.len();
        assert_eq!(Preamble::decode(&encoded), Ok(Some((preamble, len))));
    }
});
