//! Every suite, with input cut anywhere; data in both directions proves the keys.

use std::io::Write;

use prism_tls::accept::Settings;
use prism_tls::{DirectionKeys, Suite, Version};
use rustls::crypto::aws_lc_rs::default_provider;

use crate::support::*;

#[test]
fn every_suite_is_established_and_carries_data_however_its_bytes_are_cut() {
    let server = server();
    for suite in SUITES {
        for cut in Cut::ALL {
            let mut client = connect(client_of_suite(suite));
            let established = handshake(&mut client, &server, cut, &[]).unwrap();
            assert_eq!(established.cipher_suite, suite);
            assert!(!established.resumed);
            let is_tls13 = !suite.contains("_WITH_");
            let version = version_of(&established);
            assert_eq!(version == Version::Tls13, is_tls13, "{suite}");
            assert_eq!(established.keys.suite, aead(suite));
            assert!(established.unread.is_empty(), "{suite} {cut:?}");
            let mut served = Served::new(established);
            exchange(&mut client, &mut served, 10_000);
            feed(&mut client, &served.close());
            assert!(client.process_new_packets().unwrap().peer_has_closed());
        }
    }
}

fn aead(suite: &str) -> Suite {
    match suite {
        name if name.contains("AES_128") => Suite::Aes128Gcm,
        name if name.contains("AES_256") => Suite::Aes256Gcm,
        _ => Suite::ChaCha20Poly1305,
    }
}

#[test]
fn a_hello_in_many_records_is_put_together() {
    let server = server();
    for bytes in [1, 7, 100] {
        let mut client = connect(client_of_suite("TLS_AES_128_GCM_SHA256"));
        let hello = drain(&mut client);
        let mut acceptor = Acceptor::new(&server);
        for content in hello[5..].chunks(bytes) {
            let record = [&[22, 3, 1, 0, content.len() as u8], content].concat();
            let Step::Wait {
                acceptor: next,
                output,
            } = acceptor.receive(&record)
            else {
                panic!("no wait");
            };
            feed(&mut client, &output);
            acceptor = next;
        }
        let step = acceptor.receive(&drain(&mut client));
        assert!(matches!(step, Step::Established(_)), "{step:?}");
    }
}

#[test]
fn every_suite_that_can_be_configured_can_be_served() {
    for suite in SUITES {
        let text = format!("[service.tls]\nsuites = [{suite:?}]");
        let Err(prism_config::ConfigError::Invalid(problems)) =
            prism_config::Config::from_toml(&text)
        else {
            panic!("the rest is missing");
        };
        let field = "service.tls.suites";
        assert!(
            problems.iter().all(|p| !p.field.starts_with(field)),
            "{problems:?}"
        );
    }
}

#[test]
fn data_in_the_segment_of_finished_is_kept_for_the_record_layer() {
    let server = server();
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"] {
        for cut in Cut::ALL {
            let mut client = connect(client_of_suite(suite));
            // rustls buffers it, and sends it right behind its Finished.
            let request = [b'r'; 40_000];
            client.writer().write_all(&request).unwrap();
            let established = handshake(&mut client, &server, cut, &[]).unwrap();
            assert!(established.unread.len() > request.len(), "{suite} {cut:?}");
            let mut served = Served::new(established);
            assert_eq!(served.open(&[]), request);
            exchange(&mut client, &mut served, 1_000);
        }
    }
}

#[test]
fn bytes_behind_the_handshake_come_back_as_they_were_sent() {
    let server = server();
    // Records that rustls would refuse, and a part of one record.
    let behind = b"\x16\x03\x03\x00\x04\0\0\0\0\x17\x03\x03\x40\x11part";
    for suite in SUITES {
        for cut in Cut::ALL {
            let mut client = connect(client_of_suite(suite));
            let is_tls13 = !suite.contains("_WITH_");
            // In TLS 1.2 the client's last flight comes before the handshake's end: the
            // bytes are a false start.
            let established = if is_tls13 {
                handshake(&mut client, &server, cut, behind).unwrap()
            } else {
                handshake_with_false_start(&mut client, &server, cut, behind)
            };
            assert_eq!(established.unread, behind, "{suite} {cut:?}");
        }
    }
}

/// TLS 1.2, with `behind` right after the client's Finished.
fn handshake_with_false_start(
    client: &mut rustls::ClientConnection,
    server: &prism_tls::accept::ServerConfig,
    cut: Cut,
    behind: &[u8],
) -> Established {
    let acceptor = Acceptor::new(server);
    let Step::Wait { acceptor, output } = acceptor.receive(&drain(client)) else {
        panic!("no first flight");
    };
    feed(client, &output);
    let mut wire = drain(client);
    wire.extend_from_slice(behind);
    let mut waiting = Some(acceptor);
    let mut rest = wire.as_slice();
    let step_bytes = if matches!(cut, Cut::Everywhere) {
        1
    } else {
        wire.len()
    };
    while let Some(acceptor) = waiting.take() {
        let (piece, tail) = rest.split_at(step_bytes.min(rest.len()));
        rest = tail;
        match acceptor.receive(piece) {
            Step::Wait { acceptor, .. } => waiting = Some(acceptor),
            Step::Established(mut established) => {
                established.unread.extend_from_slice(rest);
                return established;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no end of the handshake");
}

#[test]
fn tickets_count_in_the_write_sequence() {
    let server = server();
    let mut client = connect(client_of_suite("TLS_AES_128_GCM_SHA256"));
    let established = handshake(&mut client, &server, Cut::Nowhere, &[]).unwrap();
    assert!(!established.output.is_empty());
    let DirectionKeys::Tls13 { sequence, .. } = established.keys.write else {
        panic!("not TLS 1.3");
    };
    assert_eq!(sequence, records(&established.output) as u64);
    let DirectionKeys::Tls13 { sequence, .. } = established.keys.read else {
        panic!("not TLS 1.3");
    };
    assert_eq!(sequence, 0);
}

fn records(mut wire: &[u8]) -> usize {
    let mut count = 0;
    while let [_, _, _, high, low, rest @ ..] = wire {
        wire = &rest[usize::from(u16::from_be_bytes([*high, *low]))..];
        count += 1;
    }
    count
}

#[test]
fn the_first_record_of_tls12_does_not_repeat_the_nonce_of_finished() {
    let server = server();
    for suite in [
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    ] {
        let mut client = connect(client_of_suite(suite));
        let established = handshake(&mut client, &server, Cut::Nowhere, &[]).unwrap();
        let output = established.output.clone();
        let mut served = Served::new(established);
        let data = served.seal(b"data");
        // Header (5), explicit nonce (8).
        let explicit = |record: &[u8]| u64::from_be_bytes(record[5..13].try_into().unwrap());
        let last = last_record(&output);
        assert_eq!(last[0], 22, "the Finished");
        assert_eq!(explicit(&data), explicit(last).wrapping_add(1), "{suite}");
    }
}

fn last_record(mut wire: &[u8]) -> &[u8] {
    loop {
        let bytes = 5 + usize::from(u16::from_be_bytes([wire[3], wire[4]]));
        if bytes == wire.len() {
            return wire;
        }
        wire = &wire[bytes..];
    }
}

#[test]
fn alpn_is_http11_where_the_client_names_protocols() {
    let server = server();
    for suite in [
        "TLS_AES_128_GCM_SHA256",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    ] {
        let mut config = client_of_suite(suite);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let established = handshake(&mut connect(config), &server, Cut::Nowhere, &[]).unwrap();
        assert_eq!(established.alpn.as_deref(), Some(&b"http/1.1"[..]));

        let without = client_of_suite(suite);
        let established = handshake(&mut connect(without), &server, Cut::Nowhere, &[]).unwrap();
        assert_eq!(established.alpn, None);
    }
}

#[test]
fn settings_choose_versions_and_suites() {
    let only_13 = Settings {
        minimum_version: Version::Tls13,
        ..Settings::default()
    };
    let server = server_with(&only_13, 1, system_clock());
    let old = client_of_suite("TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256");
    let failure = handshake(&mut connect(old), &server, Cut::Nowhere, &[]).unwrap_err();
    assert_eq!(fault(&failure.error), Fault::Mismatch);
    assert_eq!(failure.output, [21, 3, 3, 0, 2, 2, 70], "protocol_version");

    let ordered = Settings {
        suites: vec![
            "TLS_CHACHA20_POLY1305_SHA256".into(),
            "TLS_AES_128_GCM_SHA256".into(),
        ],
        ..Settings::default()
    };
    let server = server_with(&ordered, 1, system_clock());
    let any = || connect(FIXTURE.authority.client(default_provider()));
    let established = handshake(&mut any(), &server, Cut::Nowhere, &[]).unwrap();
    assert_eq!(established.keys.suite, Suite::ChaCha20Poly1305);
}

#[test]
fn settings_that_allow_no_handshake_are_refused_with_the_reason() {
    let refuse = |minimum_version, suites: &[&str]| {
        let settings = Settings {
            minimum_version,
            suites: suites.iter().map(|&s| s.into()).collect(),
        };
        let certificates = FIXTURE.certificates();
        prism_tls::accept::ServerConfig::new(&settings, certificates, None, system_clock())
            .unwrap_err()
            .to_string()
    };
    let unknown = refuse(Version::Tls12, &["TLS_RSA_WITH_RC4_128_MD5"]);
    assert!(unknown.contains("RC4"), "{unknown}");
    let old = ["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"];
    let none = refuse(Version::Tls13, &old);
    assert!(none.contains("no usable cipher suites"), "{none}");
}

#[test]
fn nothing_that_is_printed_holds_a_secret() {
    let server = server();
    for suite in SUITES {
        let mut client = connect(client_of_suite(suite));
        let established = handshake(&mut client, &server, Cut::Nowhere, &[]).unwrap();
        let (DirectionKeys::Tls13 { secret, .. } | DirectionKeys::Tls12 { key: secret, .. }) =
            &established.keys.write;
        let printed = format!("{:?} {server:?}", established.keys);
        let decimal = format!("{:?}", &secret.as_bytes()[..4]);
        assert!(
            !printed.contains(decimal.trim_matches(['[', ']'])),
            "{printed}"
        );
    }
}
