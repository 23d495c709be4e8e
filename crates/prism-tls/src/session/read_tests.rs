use rustls::AlertDescription;

use super::*;
use crate::session::content::key_update;
use crate::session::read::{MAX_BARREN_RECORDS, MAX_KEY_UPDATES};

fn refused(by: &mut Session, mut input: Vec<u8>) -> AlertDescription {
    let error = by.open(&mut input).unwrap_err();
    assert_eq!(by.open(&mut input), Err(OpenError::Failed));
    error.alert()
}

#[test]
fn data_arrives_for_every_version_and_suite() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let data: Vec<u8> = (0..40_000_u32).map(|i| i as u8).collect();
        let records = sealed(&mut client, &data);
        assert_eq!(open_all(&mut server, records), (data, vec![]));
    }
}

#[test]
fn a_record_in_parts_changes_nothing_until_it_is_whole() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let record = sealed(&mut client, b"hello");
        for cut in 0..record.len() {
            let mut part = record[..cut].to_vec();
            let need = if cut < HEADER_BYTES {
                HEADER_BYTES
            } else {
                record.len()
            };
            let incomplete = Opened {
                consumed: 0,
                event: Event::Incomplete { need },
            };
            assert_eq!(server.open(&mut part), Ok(incomplete));
            assert_eq!(part, record[..cut]);
        }
        assert_eq!(open_all(&mut server, record).0, b"hello");
    }
}

#[test]
fn a_changed_bit_anywhere_never_opens() {
    for (version, suite) in all() {
        let (_, mut client) = pair(version, suite);
        let record = sealed(&mut client, b"hello");
        for bit in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let (mut server, _) = pair(version, suite);
            match server.open(&mut damaged) {
                Err(_) => {}
                Ok(opened) => assert!(matches!(opened.event, Event::Incomplete { .. }), "{bit}"),
            }
        }
    }
}

#[test]
fn a_record_that_comes_twice_or_out_of_order_is_forged() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let (first, second) = (sealed(&mut client, b"1"), sealed(&mut client, b"2"));
        assert_eq!(open_all(&mut server, first.clone()).0, b"1");
        assert_eq!(refused(&mut server, first), AlertDescription::BadRecordMac);
        let (mut server, _) = pair(version, suite);
        assert_eq!(refused(&mut server, second), AlertDescription::BadRecordMac);
    }
}

#[test]
fn padding_is_removed() {
    let (mut server, mut client) = tls13();
    let padded = [b"data".as_slice(), &[kind::APPLICATION_DATA], &[0; 300]].concat();
    let record = forge(&mut client, 0, &padded);
    assert_eq!(open_all(&mut server, record).0, b"data");
    let only_padding = forge(&mut client, 0, &[0; 30]);
    assert_eq!(
        refused(&mut server, only_padding),
        AlertDescription::UnexpectedMessage
    );
}

#[test]
fn lengths_are_limited() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let full = forge(
            &mut client,
            kind::APPLICATION_DATA,
            &[1; MAX_PLAINTEXT_BYTES],
        );
        assert!(full.len() <= MAX_RECORD_BYTES);
        assert_eq!(open_all(&mut server, full).0.len(), MAX_PLAINTEXT_BYTES);
        let long = forge(
            &mut client,
            kind::APPLICATION_DATA,
            &[1; MAX_PLAINTEXT_BYTES + 1],
        );
        assert_eq!(refused(&mut server, long), AlertDescription::RecordOverflow);

        let (mut server, _) = pair(version, suite);
        let header = vec![kind::APPLICATION_DATA, 3, 3, 0x41, 1];
        assert_eq!(
            refused(&mut server, header),
            AlertDescription::RecordOverflow
        );
        let (mut server, _) = pair(version, suite);
        let short = vec![kind::APPLICATION_DATA, 3, 3, 0, 3, 1, 2, 3];
        assert_eq!(refused(&mut server, short), AlertDescription::BadRecordMac);
    }
}

#[test]
fn the_first_wrong_byte_of_a_header_is_enough() {
    let (mut server, _) = tls13();
    assert_eq!(
        refused(&mut server, vec![20]),
        AlertDescription::UnexpectedMessage
    );
    let (mut server, _) = tls13();
    assert_eq!(
        refused(&mut server, vec![21]),
        AlertDescription::UnexpectedMessage
    );
    let (mut server, _) = tls12();
    assert_eq!(
        refused(&mut server, vec![20]),
        AlertDescription::UnexpectedMessage
    );
    let (mut server, _) = tls12();
    let other = vec![23, 3, 1, 0, 30];
    assert_eq!(
        refused(&mut server, other),
        AlertDescription::ProtocolVersion
    );
}

#[test]
fn only_a_whole_key_update_alone_in_its_record_is_accepted() {
    let unexpected = AlertDescription::UnexpectedMessage;
    let malformed = AlertDescription::DecodeError;
    let cases: [(&[u8], AlertDescription); 9] = [
        (&[], unexpected),
        (&[1, 0, 0, 1, 0], unexpected),
        (&[4, 0, 0, 1, 0], unexpected),
        (&[5, 0, 0, 0], unexpected),
        (&[11, 0, 0, 1, 0], unexpected),
        (&[24], malformed),
        (&[24, 0, 0, 0], malformed),
        (&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0], malformed),
        (&[24, 0, 0, 1, 2], AlertDescription::IllegalParameter),
    ];
    for (message, alert) in cases {
        let (mut server, mut client) = tls13();
        let record = forge(&mut client, kind::HANDSHAKE, message);
        assert_eq!(refused(&mut server, record), alert, "{message:?}");
    }
}

#[test]
fn tls_1_2_refuses_every_handshake_message() {
    let cases: [(&[u8], AlertDescription); 4] = [
        (&[], AlertDescription::UnexpectedMessage),
        (&[1, 0, 0, 0], AlertDescription::NoRenegotiation),
        (&key_update(0), AlertDescription::UnexpectedMessage),
        (&[16, 0, 0, 0], AlertDescription::UnexpectedMessage),
    ];
    for (message, alert) in cases {
        let (mut server, mut client) = tls12();
        let record = forge(&mut client, kind::HANDSHAKE, message);
        assert_eq!(refused(&mut server, record), alert, "{message:?}");
    }
}

#[test]
fn unknown_inner_types_are_refused() {
    for inner in [1, 20, 24, 255] {
        let (mut server, mut client) = tls13();
        let record = forge(&mut client, inner, b"x");
        assert_eq!(
            refused(&mut server, record),
            AlertDescription::UnexpectedMessage
        );
    }
}

#[test]
fn alerts_are_understood() {
    let (mut server, mut client) = tls13();
    let record = forge(&mut client, kind::ALERT, &[1, 90]);
    assert_eq!(open_all(&mut server, record).1, [Event::Empty]);
    let record = forge(&mut client, kind::ALERT, &[1, 40]);
    let aborted = Event::Aborted(AlertDescription::HandshakeFailure);
    assert_eq!(open_all(&mut server, record).1, [aborted]);
    assert!(server.write_closed());
    assert_eq!(server.seal(b"x", &mut Vec::new()), Err(SealError::Closed));
    assert_eq!(server.save().unwrap_err(), SaveError::Failed);

    let (mut server, mut client) = tls12();
    let record = forge(&mut client, kind::ALERT, &[1, 100]);
    assert_eq!(open_all(&mut server, record).1, [Event::Empty]);
    for content in [[1, 0].as_slice(), &[1], &[2, 20, 2, 20], &[7, 20]] {
        let (mut server, mut client) = tls12();
        let record = forge(&mut client, kind::ALERT, content);
        if content == [1, 0] {
            assert_eq!(open_all(&mut server, record).1, [Event::CloseNotify]);
        } else {
            assert_eq!(refused(&mut server, record), AlertDescription::DecodeError);
        }
    }
}

#[test]
fn what_follows_the_end_of_the_data_is_not_read() {
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let mut out = sealed(&mut client, b"last");
        client.seal_close_notify(&mut out).unwrap();
        out.extend_from_slice(b"GET / HTTP/1.1\r\n\r\n");
        let (data, events) = open_all(&mut server, out);
        assert_eq!(data, b"last");
        assert_eq!(events, [Event::CloseNotify, Event::Discarded]);
        assert!(server.read_closed() && !server.write_closed());
        let answer = sealed(&mut server, b"answer");
        assert_eq!(open_all(&mut client, answer).0, b"answer");
    }
}

#[test]
fn records_without_data_are_limited_and_data_restores_the_limit() {
    let many = usize::from(MAX_BARREN_RECORDS);
    for (version, suite) in all() {
        let (mut server, mut client) = pair(version, suite);
        let mut empty = |n| {
            let mut record = || forge(&mut client, kind::APPLICATION_DATA, b"");
            (0..n).flat_map(|_| record()).collect::<Vec<_>>()
        };
        let (some, more) = (empty(many), empty(many + 1));
        assert_eq!(open_all(&mut server, some).1.len(), many);
        let mut rest = more;
        let error = server.open(&mut rest).unwrap_err();
        assert_eq!(error, OpenError::TooManyBarrenRecords);
    }
    let (mut server, mut client) = tls13();
    for _ in 0..5 {
        for _ in 0..many {
            plan_update(&mut client);
            let mut out = Vec::new();
            client.seal_control(&mut out).unwrap();
            assert_eq!(open_all(&mut server, out).1, [Event::KeyUpdate]);
        }
        let data = sealed(&mut client, b"x");
        assert_eq!(open_all(&mut server, data).0, b"x");
    }
}

#[test]
fn key_updates_of_a_session_are_limited() {
    let (mut server, mut client) = tls13();
    server.reader.updates = MAX_KEY_UPDATES;
    let record = forge(&mut client, kind::HANDSHAKE, &key_update(0));
    assert_eq!(
        refused(&mut server, record),
        AlertDescription::UnexpectedMessage
    );
}

#[test]
fn a_peer_that_wears_its_key_out_is_asked_for_another_once() {
    let limit = 1 << 24;
    let mut server = at(Version::Tls13, Suite::Aes128Gcm, limit - 1, 0);
    let mut client = at(Version::Tls13, Suite::Aes128Gcm, 0, 0);
    client.writer.half = Half::new(
        Suite::Aes128Gcm,
        direction(Version::Tls13, Suite::Aes128Gcm, 1, limit - 1),
    )
    .unwrap();
    let record = sealed(&mut client, b"x");
    open_all(&mut server, record);
    assert!(server.wants_control());
    let mut out = Vec::new();
    server.seal_control(&mut out).unwrap();
    assert!(!out.is_empty() && !server.wants_control());
}
