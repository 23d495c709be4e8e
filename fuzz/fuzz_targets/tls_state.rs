//! Any bytes as a session from another host: no panic. A session that is accepted has no other
//! encoding, and works.
#![no_main]

use libfuzzer_sys::fuzz_target;
use prism_tls::{MAX_SAVED_BYTES, SealError, Session};

fuzz_target!(|input: (&[u8], &[u8])| {
    let (saved, mut wire) = (input.0, input.1.to_vec());
    let Ok(restored) = Session::restore(saved) else {
        return;
    };
    assert!(saved.len() <= MAX_SAVED_BYTES);
    let is_worn_out = restored.write_records_left() == 0;
    let again = restored
        .save()
        .expect("a session that was restored can be saved");
    // A KeyUpdate becomes due if the write key is used up.
    assert!(is_worn_out || again.as_slice() == saved);
    let mut session = Session::restore(&again).expect("it can be restored again");
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
        Ok(again) => assert!(Session::restore(&again).is_ok()),
        // A session at the end of its sequence numbers fails too.
        Err(_) => assert!(failed || saved.windows(7).any(|bytes| bytes == [0xff; 7])),
    }
});
