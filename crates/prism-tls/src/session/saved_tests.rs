use prism_proto::wire::DecodeError;

use super::*;

/// Saves a session, and restores it as another host does.
fn moved(session: Session) -> Session {
    let bytes = session.save().unwrap();
    assert!(bytes.len() <= MAX_SAVED_BYTES);
    let restored = Session::restore(&bytes).unwrap();
    assert_eq!(restored.save().unwrap(), bytes);
    Session::restore(&bytes).unwrap()
}

#[test]
fn a_session_goes_on_after_every_move() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        for round in 0..10 {
            let question = sealed(&mut client, &[round; 100]);
            assert_eq!(open_all(&mut server, question).0, [round; 100]);
            server = moved(server);
            if version == Version::Tls13 && round % 3 == 0 {
                plan_request(&mut server);
            }
            server = moved(server);
            let answer = sealed(&mut server, &[!round; 200]);
            assert_eq!(open_all(&mut client, answer).0, [!round; 200]);
        }
    }
}

#[test]
fn an_answer_that_is_due_moves_with_the_session() {
    let (mut server, mut client) = tls13();
    plan_request(&mut client);
    let mut out = Vec::new();
    client.seal_control(&mut out).unwrap();
    open_all(&mut server, out);
    server = moved(server);
    assert!(server.wants_control());
    let answer = sealed(&mut server, b"x");
    assert_eq!(open_all(&mut client, answer).1, [Event::KeyUpdate]);
}

#[test]
fn counters_and_closed_sides_move_with_the_session() {
    let (mut server, mut client) = tls13();
    let mut out = forge(&mut client, kind::APPLICATION_DATA, b"");
    plan_update(&mut client);
    client.seal_control(&mut out).unwrap();
    client.seal_close_notify(&mut out).unwrap();
    open_all(&mut server, out);
    let mut server = moved(server);
    assert_eq!((server.reader.barren, server.reader.updates), (2, 1));
    assert!(server.read_closed() && !server.write_closed());
    server.seal_close_notify(&mut Vec::new()).unwrap();
    assert!(moved(server).write_closed());
}

#[test]
fn the_longest_saved_session_has_the_stated_size() {
    let lengths = all().map(|(version, suite)| pair(version, suite).0.save().unwrap().len());
    assert_eq!(lengths.max(), Some(MAX_SAVED_BYTES));
}

#[test]
fn every_cut_and_every_addition_is_refused() {
    for (version, suite) in all() {
        let bytes = pair(version, suite).0.save().unwrap();
        for cut in 0..bytes.len() {
            assert!(Session::restore(&bytes[..cut]).is_err());
        }
        let mut longer = bytes.to_vec();
        longer.push(0);
        assert_eq!(
            Session::restore(&longer).unwrap_err(),
            DecodeError::Trailing(1).into()
        );
    }
}

#[test]
fn impossible_fields_are_refused() {
    let invalid = DecodeError::Invalid;
    let good = tls13().0.save().unwrap();
    let cases = [
        (0, b'X', invalid("magic")),
        (
            4,
            2,
            DecodeError::Version {
                found: 2,
                expected: 1,
            },
        ),
        (5, 1, invalid("protocol")),
        (6, 9, invalid("suite")),
        (7, 2, invalid("read state")),
        (8, 2, invalid("write state")),
        (9, 4, invalid("KeyUpdate")),
        (10, 33, invalid("records without data")),
        (11, 1, invalid("reserved byte")),
        (12, 0, invalid("fragment size")),
        (12, 0x41, invalid("fragment size")),
        (14, 0x41, invalid("KeyUpdates received")),
    ];
    for (at, value, error) in cases {
        let mut bad = good.to_vec();
        bad[at] = value;
        assert_eq!(Session::restore(&bad).unwrap_err(), error.into(), "{at}");
    }
    let mut worn_out = good.to_vec();
    worn_out[16..24].fill(255);
    assert_eq!(
        Session::restore(&worn_out).unwrap_err(),
        RestoreError::Keys(KeysError::Exhausted)
    );
    let mut bad = tls12().0.save().unwrap();
    bad[9] = 1;
    assert_eq!(
        Session::restore(&bad).unwrap_err(),
        RestoreError::from(invalid("KeyUpdate"))
    );
}

#[test]
fn a_session_in_the_kernel_or_failed_does_not_move() {
    let (mut server, _) = tls13();
    server.write_to_kernel().unwrap();
    assert_eq!(server.save().unwrap_err(), SaveError::InKernel);
    let (mut server, _) = tls13();
    assert!(server.open(&mut [0]).is_err());
    assert_eq!(server.save().unwrap_err(), SaveError::Failed);
}

#[test]
fn mixed_versions_and_wrong_lengths_make_no_session() {
    let suite = Suite::Aes256Gcm;
    let read = direction(Version::Tls12, suite, 1, 0);
    let write = direction(Version::Tls13, suite, 1, 0);
    let keys = SessionKeys { suite, read, write };
    assert_eq!(Session::new(keys).unwrap_err(), KeysError::MixedVersions);
    for version in [Version::Tls12, Version::Tls13] {
        let short = |seed| direction(version, Suite::Aes128Gcm, seed, 0);
        let keys = SessionKeys {
            suite,
            read: short(1),
            write: short(2),
        };
        assert_eq!(Session::new(keys).unwrap_err(), KeysError::SecretLength);
    }
}
