//! Clients that speak another protocol, or break the rules of TLS. Each gets an alert or silence,
//! and none gets further or costs much.

use prism_tls::HandshakeError;
use prism_tls::accept::MAX_HANDSHAKE_BYTES;

use crate::support::*;

const SUITE: &str = "TLS_AES_128_GCM_SHA256";

fn receive(bytes: &[u8]) -> Step {
    Acceptor::new(&server()).receive(bytes)
}

fn failure(step: Step) -> Failure {
    match step {
        Step::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn hello() -> Vec<u8> {
    drain(&mut connect(client_of_suite(SUITE)))
}

/// Whether this is a plaintext alert of that description, in a record of any version.
fn is_alert(output: &[u8], description: u8) -> bool {
    matches!(output, [21, 3, _, 0, 2, 2, said] if *said == description)
}

/// Whether the last record is a fatal alert in the clear, or may be a sealed one.
fn ends_in_alert(output: &[u8]) -> bool {
    let sealed_at = output.len().saturating_sub(5 + 2 + 1 + 16);
    matches!(output, [.., 21, 3, _, 0, 2, 2, _])
        || matches!(output[sealed_at..], [23, 3, 3, 0, 19, ..])
}

#[test]
fn plain_http_is_told_apart_at_its_first_byte() {
    for request in ["GET / HTTP/1.1\r\n\r\n", "PUT", "O"] {
        let step = receive(request.as_bytes());
        assert!(matches!(step, Step::NotTls { is_http: true }), "{request}");
    }
}

#[test]
fn what_is_neither_tls_nor_http_is_told_apart_from_both() {
    for bytes in [
        &b"\x80\x2e\x01\x03\x01"[..],
        b"\0",
        b"\r\n",
        b"\x15\x03\x03\0\x02\x01\0",
        b"get /",
    ] {
        let step = receive(bytes);
        assert!(matches!(step, Step::NotTls { is_http: false }), "{bytes:?}");
    }
}

#[test]
fn no_bytes_change_nothing() {
    let Step::Wait { acceptor, output } = receive(&[]) else {
        panic!("no wait");
    };
    assert!(output.is_empty());
    assert!(matches!(acceptor.receive(b"GET "), Step::NotTls { .. }));
}

#[test]
fn a_header_that_no_record_has_ends_the_handshake_at_once() {
    for header in [&b"\x16\x02\0\0\x10"[..], b"\x16\x03\x01\xff\xff"] {
        let failure = failure(receive(header));
        assert_eq!(fault(&failure.error), Fault::Peer);
        assert_eq!(failure.output[0], 21, "{header:?}: {failure:?}");
    }
    let mut later = hello();
    later.extend_from_slice(b"\x99\x03\x03\0\x01\0");
    let failure = failure(receive(&later));
    assert_eq!(fault(&failure.error), Fault::Peer);
}

#[test]
fn a_hello_of_garbage_gets_decode_error() {
    let failure = failure(receive(b"\x16\x03\x01\0\x08\x01\0\0\x04\xff\xff\xff\xff"));
    assert!(is_alert(&failure.output, 50), "{failure:?}");
    assert!(matches!(failure.error, HandshakeError::Protocol(_)));
}

#[test]
fn a_client_with_nothing_in_common_gets_handshake_failure() {
    let settings = prism_tls::accept::Settings {
        suites: vec!["TLS_AES_256_GCM_SHA384".into()],
        ..Default::default()
    };
    let server = server_with(&settings, 1, system_clock());
    let step = Acceptor::new(&server).receive(&hello());
    let failure = failure(step);
    assert!(is_alert(&failure.output, 40), "{failure:?}");
    assert_eq!(fault(&failure.error), Fault::Mismatch);
}

#[test]
fn a_client_that_does_not_trust_the_certificate_is_told_apart() {
    let stranger = Authority::new();
    let mut client = connect(stranger.client(rustls::crypto::aws_lc_rs::default_provider()));
    let Step::Wait { acceptor, output } = receive(&drain(&mut client)) else {
        panic!("no first flight");
    };
    let mut wire = output.as_slice();
    while !wire.is_empty() {
        client.read_tls(&mut wire).unwrap();
        if client.process_new_packets().is_err() {
            break;
        }
    }
    let failure = failure(acceptor.receive(&drain(&mut client)));
    assert!(
        matches!(failure.error, HandshakeError::Refused(_)),
        "{failure:?}"
    );
    assert_eq!(fault(&failure.error), Fault::Mismatch);
}

#[test]
fn a_foreign_protocol_by_alpn_is_refused_with_its_alert() {
    let mut config = client_of_suite(SUITE);
    config.alpn_protocols = vec![b"h2".to_vec()];
    let mut client = connect(config);
    let failure = failure(receive(&drain(&mut client)));
    assert_eq!(fault(&failure.error), Fault::Mismatch);
    // The alert follows the ServerHello, so only the client can read it.
    let mut wire = failure.output.as_slice();
    client.read_tls(&mut wire).unwrap();
    let error = client.process_new_packets().unwrap_err();
    assert_eq!(
        error,
        rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol)
    );
}

#[test]
fn a_forged_finished_is_refused_under_the_handshake_key() {
    let mut client = connect(client_of_suite(SUITE));
    let Step::Wait { acceptor, output } = receive(&drain(&mut client)) else {
        panic!("no first flight");
    };
    feed(&mut client, &output);
    let mut wire = drain(&mut client);
    *wire.last_mut().unwrap() ^= 1;
    let failure = failure(acceptor.receive(&wire));
    assert!(
        matches!(failure.error, HandshakeError::Protocol(_)),
        "{failure:?}"
    );
    // The alert is sealed, like all records after the ServerHello.
    assert!(matches!(failure.output[..], [23, 3, 3, 0, 19, ..]));
    assert!(matches!(
        client.read_tls(&mut failure.output.as_slice()),
        Ok(24)
    ));
    assert!(client.process_new_packets().is_err());
}

#[test]
fn a_handshake_without_end_is_cut_off() {
    // A ClientHello of 64 KiB, in records of 4 KiB that never complete it.
    let mut record = vec![0x16, 3, 1, 0x10, 0];
    record.resize(5 + 0x1000, 0);
    let mut first = record.clone();
    first[5..9].copy_from_slice(&[1, 0, 0xff, 0xf0]);
    let mut step = receive(&first);
    for _ in 0..MAX_HANDSHAKE_BYTES / record.len() + 2 {
        step = match step {
            Step::Wait { acceptor, .. } => acceptor.receive(&record),
            Step::Failed(failure) => {
                assert_eq!(failure.error, HandshakeError::TooLong(MAX_HANDSHAKE_BYTES));
                assert!(is_alert(&failure.output, 50), "{failure:?}");
                return;
            }
            other => panic!("{other:?}"),
        };
    }
    panic!("never cut off");
}

#[test]
fn many_useless_records_are_cut_off() {
    // change_cipher_spec is ignored once in TLS 1.3, but costs nothing to send.
    let mut wire = hello();
    for _ in 0..MAX_HANDSHAKE_BYTES / 6 {
        wire.extend_from_slice(b"\x14\x03\x03\0\x01\x01");
    }
    assert_eq!(fault(&failure(receive(&wire)).error), Fault::Peer);
}

#[test]
fn a_hello_with_any_byte_changed_ends_in_an_alert_or_goes_on() {
    let server = server();
    let hello = hello();
    for at in 5..hello.len() {
        for change in [0x01, 0x80, 0xff] {
            let mut changed = hello.clone();
            changed[at] ^= change;
            match Acceptor::new(&server).receive(&changed) {
                Step::Wait { .. } => {}
                Step::Failed(failure) => {
                    assert!(ends_in_alert(&failure.output), "{failure:?}");
                    assert_ne!(fault(&failure.error), Fault::Local, "{failure:?}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn random_bytes_never_establish_anything() {
    let server = server();
    let mut random = fastrand::Rng::with_seed(7);
    let good = hello();
    for _ in 0..20_000 {
        let mut acceptor = Acceptor::new(&server);
        if random.bool() {
            match acceptor.receive(&good) {
                Step::Wait { acceptor: next, .. } => acceptor = next,
                other => panic!("{other:?}"),
            }
        }
        for _ in 0..4 {
            let kind = random.u8(20..24);
            let body: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
            let mut record = vec![kind, 3, random.u8(0..5), 0, body.len() as u8];
            record.extend(body);
            match acceptor.receive(&record) {
                Step::Wait { acceptor: next, .. } => acceptor = next,
                Step::Failed(failure) => {
                    assert_ne!(fault(&failure.error), Fault::Local, "{failure:?}");
                    break;
                }
                Step::NotTls { .. } => break,
                Step::Established(_) => panic!("established"),
            }
        }
    }
}
