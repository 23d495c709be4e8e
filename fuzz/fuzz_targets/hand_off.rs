//! Any bytes as a frame from another node: no panic, nothing kept beyond the
//! frame's own size, and what is taken has one encoding only.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_proto::node::{FRAME_PREFIX_BYTES, Frame, MAX_FRAME_BYTES};
use prism_tls::{SavedSession, Session};

fuzz_target!(|input: &[u8]| {
    if let Ok(Some(len)) = Frame::announced_len(input) {
        assert!(len <= MAX_FRAME_BYTES);
    }
    let _ = Frame::peek_hand_off_id(input);
    let Ok(frame) = Frame::decode(input) else {
        return;
    };
    let encoded = frame.encode();
    assert_eq!(&encoded[FRAME_PREFIX_BYTES..], input);
    let Frame::HandOff(hand_off) = frame else {
        return;
    };
    assert!(hand_off.tcp.queued_bytes() <= input.len());
    if let Some(tls) = hand_off.tls
        && let Ok(saved) = SavedSession::decode(&tls.session)
    {
        let mut session = Session::restore(saved).expect("what was decoded can be restored");
        let _ = session.open(&mut tls.sealed.clone());
    }
});
