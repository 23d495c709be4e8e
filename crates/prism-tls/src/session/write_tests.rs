use rustls::AlertDescription;

use super::*;

const LIMIT: u64 = 1 << 24;

#[test]
fn a_key_update_is_answered_under_the_old_key_before_the_next_data() {
    let (mut server, mut client) = tls13();
    plan_request(&mut client);
    plan_request(&mut client);
    let out = sealed(&mut client, b"question");
    let (data, events) = open_all(&mut server, out);
    assert_eq!(
        (data.as_slice(), events),
        (b"question".as_slice(), vec![Event::KeyUpdate])
    );
    assert!(server.wants_control());
    let answer = sealed(&mut server, b"answer");
    assert!(!server.wants_control());
    let (data, events) = open_all(&mut client, answer);
    assert_eq!(
        (data.as_slice(), events),
        (b"answer".as_slice(), vec![Event::KeyUpdate])
    );
    assert!(!client.wants_control(), "an answer is not answered");
}

#[test]
fn an_answer_and_a_request_are_two_key_updates() {
    let (mut server, mut client) = tls13();
    plan_request(&mut client);
    let mut out = Vec::new();
    client.seal_control(&mut out).unwrap();
    open_all(&mut server, out);
    plan_request(&mut server);
    let mut out = Vec::new();
    server.seal_control(&mut out).unwrap();
    assert_eq!(
        open_all(&mut client, out).1,
        [Event::KeyUpdate, Event::KeyUpdate]
    );
    assert!(client.wants_control());
}

#[test]
fn plaintext_in_its_place_gives_the_same_records() {
    for (version, suite) in all() {
        let (mut one, mut other) = (at(version, suite, 0, 3), at(version, suite, 0, 3));
        let data = vec![7; 20_000];
        let room = one.surroundings();
        let mut records = Vec::new();
        for piece in data.chunks(MAX_PLAINTEXT_BYTES) {
            let mut record = vec![0; room.before];
            record.extend_from_slice(piece);
            record.resize(record.len() + room.after + 10, 0);
            let made = one.seal_in_place(&mut record, piece.len()).unwrap();
            assert_eq!(made, piece.len() + room.total());
            records.extend_from_slice(&record[..made]);
        }
        assert_eq!(records, sealed(&mut other, &data));
    }
}

#[test]
fn a_record_in_place_waits_for_a_key_update_and_for_room() {
    let (mut server, mut client) = tls13();
    let mut record = vec![0; 5 + 10 + 17];
    assert_eq!(server.seal_in_place(&mut record, 11), Err(SealError::Size));
    assert_eq!(
        server.seal_in_place(&mut record, usize::MAX),
        Err(SealError::Size)
    );
    plan_update(&mut server);
    assert_eq!(
        server.seal_in_place(&mut record, 10),
        Err(SealError::ControlFirst)
    );
    let mut out = Vec::new();
    server.seal_control(&mut out).unwrap();
    assert_eq!(server.seal_in_place(&mut record, 10), Ok(32));
    out.extend_from_slice(&record);
    assert_eq!(
        open_all(&mut client, out),
        (vec![0; 10], vec![Event::KeyUpdate])
    );
}

#[test]
fn records_are_as_long_as_they_may_be() {
    let (mut server, mut client) = tls13();
    let data = vec![3; 2 * MAX_PLAINTEXT_BYTES + 500];
    let out = sealed(&mut server, &data);
    assert_eq!(out.len(), data.len() + 3 * server.surroundings().total());
    assert_eq!(open_all(&mut client, out).0, data);
}

#[test]
fn tls_1_3_takes_a_new_key_before_the_old_one_is_worn_out() {
    let (version, suite) = (Version::Tls13, Suite::Aes128Gcm);
    let mut server = at(version, suite, 0, LIMIT - 1);
    let read = direction(version, suite, 2, LIMIT - 1);
    let write = direction(version, suite, 1, 0);
    let mut client = Session::new(SessionKeys { suite, read, write }).unwrap();
    let data = vec![3; 2 * MAX_PLAINTEXT_BYTES + 500];
    let out = sealed(&mut server, &data);
    let opened = open_all(&mut client, out);
    assert_eq!(opened, (data, vec![Event::KeyUpdate]));
    assert_eq!(server.write_records_left(), LIMIT - 2);
}

#[test]
fn tls_1_2_ends_before_its_key_is_worn_out() {
    for suite in [Suite::Aes128Gcm, Suite::Aes256Gcm] {
        let mut server = at(Version::Tls12, suite, 0, LIMIT - 2);
        let mut out = Vec::new();
        let too_much = vec![0; 2 * MAX_PLAINTEXT_BYTES + 1];
        assert_eq!(server.seal(&too_much, &mut out), Err(SealError::Exhausted));
        assert!(out.is_empty());
        server.seal(&too_much[1..], &mut out).unwrap();
        assert_eq!(server.seal(b"x", &mut out), Err(SealError::Exhausted));
        assert_eq!(
            server.seal_in_place(&mut [0; 64], 1),
            Err(SealError::Exhausted)
        );
        let before = out.len();
        server.seal_close_notify(&mut out).unwrap();
        assert!(out.len() > before);
    }
}

#[test]
fn a_sequence_number_never_wraps() {
    for (version, suite) in all() {
        let read = direction(version, suite, 1, 0);
        let write = direction(version, suite, 2, u64::MAX);
        let keys = SessionKeys { suite, read, write };
        assert_eq!(Session::new(keys).unwrap_err(), KeysError::Exhausted);
        let mut server = at(version, suite, 0, u64::MAX - 1);
        let mut record = vec![0; 64];
        let half = &mut server.writer.half;
        half.seal(&mut record, 1, kind::ALERT, &mut Unwitnessed)
            .unwrap();
        assert!(
            half.seal(&mut record, 1, kind::ALERT, &mut Unwitnessed)
                .is_err()
        );
        assert!(
            half.seal(&mut record, 1, kind::ALERT, &mut Unwitnessed)
                .is_err()
        );
    }
}

#[test]
fn nothing_follows_an_alert_of_ours() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let mut out = Vec::new();
        server
            .seal_fatal_alert(AlertDescription::RecordOverflow, &mut out)
            .unwrap();
        assert_eq!(server.seal(b"x", &mut out), Err(SealError::Closed));
        let before = out.len();
        server.seal_close_notify(&mut out).unwrap();
        server.seal_control(&mut out).unwrap();
        assert_eq!(out.len(), before);
        let aborted = Event::Aborted(AlertDescription::RecordOverflow);
        assert_eq!(open_all(&mut client, out).1, [aborted]);
    }
}

#[test]
fn explicit_nonces_count_up_from_the_iv() {
    let mut server = at(Version::Tls12, Suite::Aes128Gcm, 0, 1);
    let base = u64::from_be_bytes([2 ^ 0x5a; 8]);
    for sequence in 1..4 {
        let record = sealed(&mut server, b"x");
        let explicit = u64::from_be_bytes(record[5..13].try_into().unwrap());
        assert_eq!(explicit, base + sequence);
    }
}

#[test]
fn secrets_are_not_printed() {
    let (server, _) = tls13();
    assert_eq!(
        format!("{server:?}"),
        "Session { version: Tls13, suite: Aes128Gcm, .. }"
    );
    let saved = format!("{:?}", server.save().unwrap());
    assert!(!saved.contains("1, 1"), "{saved}");
    let (mut server, _) = tls12();
    let keys = format!("{:?}", server.write_to_kernel().unwrap());
    assert_eq!(
        keys,
        "KernelKeys { version: Tls12, suite: Aes128Gcm, sequence: 7, .. }"
    );
    server.write_from_kernel(7).unwrap();
    let saved = format!("{:?}", server.save().unwrap());
    assert!(
        !saved.contains("91, 91"),
        "an IV is no one's business: {saved}"
    );
}
