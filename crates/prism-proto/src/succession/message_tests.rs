#![allow(clippy::unwrap_used, clippy::indexing_slicing)]
use super::*;

fn connection() -> ConnectionState {
    ConnectionState {
        flow: FlowKey {
            client: "192.0.2.9:50000".parse().unwrap(),
            vip: "198.51.100.1:443".parse().unwrap(),
        },
        local: "10.0.0.3:20001".parse().unwrap(),
        epoch: Some(1 << 60),
        confirmed: true,
        since_ns: 7,
        moves: 1,
        origin: "fe0".into(),
        is_newcomer: true,
        input: vec![1; 20],
        output: vec![2; 10],
        tls: Some(TlsState {
            session: Zeroizing::new(vec![3; 100]),
            sealed: vec![4; 40],
        }),
        kernel: Some(KernelState {
            overhead_bytes: 22,
            first_sequence: 1,
            first_queued: 2,
            written: 3,
            all_records: 1 << 24,
            records_left: 1 << 23,
        }),
        proxied: None,
    }
}

fn messages() -> Vec<Message> {
    let bare = ConnectionState {
        epoch: None,
        tls: None,
        kernel: None,
        ..connection()
    };
    let connection = |id, state| Message::Connection {
        id,
        state: Box::new(state),
    };
    vec![
        Message::Listener(Some("198.51.100.1:80".parse().unwrap())),
        Message::Listener(None),
        Message::Prepare,
        Message::Prepared,
        Message::Go,
        Message::Ready,
        connection(1, super::tests::connection()),
        connection(2, bare),
        Message::Taken { id: 3 },
        Message::Refused { id: 4 },
        Message::End,
    ]
}

#[test]
fn messages_round_trip_and_every_other_length_is_refused() {
    for version in [1, 2] {
        for message in messages() {
            let bytes = message.encode(version);
            assert_eq!(Message::decode(&bytes, version), Ok(message));
            for len in 0..bytes.len() {
                assert!(Message::decode(&bytes[..len], version).is_err());
            }
            let longer = [&bytes[..], &[0]].concat();
            let refused = Err(DecodeError::Trailing(1));
            assert_eq!(Message::decode(&longer, version), refused);
        }
    }
}

#[test]
fn a_successor_of_the_former_release_takes_a_proxy_for_its_client() {
    let proxied = Some(ClientFacts {
        address: "203.0.113.9:50000".parse().unwrap(),
        service: "203.0.113.1:443".parse().unwrap(),
        is_tls: true,
    });
    for (version, expected) in [(1, None), (2, proxied)] {
        let message = |proxied| Message::Connection {
            id: 1,
            state: Box::new(ConnectionState {
                proxied,
                ..connection()
            }),
        };
        let bytes = message(proxied).encode(version);
        assert_eq!(Message::decode(&bytes, version), Ok(message(expected)));
    }
}

#[test]
fn random_changes_never_panic_and_a_message_has_one_encoding() {
    let mut random = fastrand::Rng::with_seed(1);
    for good in messages().iter().map(|message| message.encode(2)) {
        for _ in 0..20_000 {
            let mut bad = good.clone();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(0..bad.len());
                bad[at] = random.u8(..);
            }
            if let Ok(message) = Message::decode(&bad, 2) {
                assert_eq!(message.encode(2), bad);
            }
        }
    }
}

#[test]
fn the_largest_connection_fits_into_a_message() {
    let mut largest = connection();
    largest.origin = "n".repeat(255);
    largest.input = vec![0; MAX_BUFFER_BYTES];
    largest.output = vec![0; MAX_BUFFER_BYTES];
    largest.tls = Some(TlsState {
        session: Zeroizing::new(vec![0; MAX_SESSION_BYTES]),
        sealed: vec![0; MAX_BUFFER_BYTES],
    });
    assert!(largest.fits());
    let state = Box::new(largest.clone());
    let bytes = Message::Connection { id: 1, state }.encode(2);
    assert!(bytes.len() <= MAX_MESSAGE_BYTES);
    largest.input.push(0);
    assert!(!largest.fits());
}

#[test]
fn the_highest_common_version_counts() {
    assert_eq!(common_version(&[3, 2], &[2, 1]), Some(2));
    assert_eq!(common_version(&[2, 3], &[3, 2, 4]), Some(3));
    assert_eq!(common_version(&[3], &[2, 1]), None);
}

#[test]
fn another_version_is_refused_by_name() {
    let bytes = Message::Go.encode(2);
    let refused = DecodeError::Version {
        found: 2,
        expected: 1,
    };
    assert_eq!(Message::decode(&bytes, 1), Err(refused));
}

#[test]
fn debug_shows_no_client_data() {
    let shown = format!("{:?}", connection());
    assert!(
        !shown.contains("[1, 1") && !shown.contains("[3, 3"),
        "{shown}"
    );
}
