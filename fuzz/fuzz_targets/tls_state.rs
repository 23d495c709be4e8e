//! Any bytes as a session from another host: no panic. A session that is accepted has no other
//! encoding, and works.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_tls::{MAX_SAVED_BYTES, SavedSession, SealError, Session};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (saved, mut wire) = (input.0, input.1.to_vec());
    let Ok(decoded) = SavedSession::decode(saved) else {
        return;
    };
    assert!(saved.len() <= MAX_SAVED_BYTES);
    assert_eq!(decoded.encode().as_slice(), saved);
    let mut session = Session::restore(decoded).expect("what was decoded can be restored");
    let mut out = Vec::new();
    match session.seal(b"data", &mut out) {
        Ok(()) => assert!(!out.is_empty()),
        Err(error) => {
            assert!(matches!(error, SealError::Closed | SealError::Exhausted));
            assert!(out.is_empty());
        }
    }
    session.seal_control(&mut out).unwrap();
    assert!(!session.wants_control());
    let failed = session.open(&mut wire).is_err();
    session.seal_close_notify(&mut out).unwrap();
    assert!(session.write_closed());
    match session.save() {
        Ok(again) => assert!(SavedSession::decode(&again.encode()).is_ok()),
        // A session at the end of its sequence numbers fails too.
        Err(_) => assert!(failed || saved.windows(7).any(|bytes| bytes == [0xff; 7])),
    }
});
